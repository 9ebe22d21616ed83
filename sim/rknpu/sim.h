/*
 * The simulator's parts, and what they know of each other.  Internal to the library.
 *
 *     preload.c, nodes.c      the functions a program calls: open, ioctl, mmap, close, stat, ...
 *     device.c                open files, the ioctls of every DRM driver, mappings
 *     rocket.c, rknpu.c       the ioctls of the two drivers
 *     memory.c, user.c        buffers, IOVA spaces, cache maintenance; a caller's memory
 *     core.c                  three cores a driver: queues, fences, hangs, resets
 *     chain.c, program.c      what a core is given: tasks; a list of commands -> registers
 *     check.c, matmul.c, dot*.c, floats*.c, flying.c    registers -> arithmetic -> bytes
 *     cost.c, report.c        the time model; counters and messages
 *     settings.c, fault.c     what a user may ask of the simulator
 */
#ifndef RKNPU_SIM_H
#define RKNPU_SIM_H

#define _GNU_SOURCE /* before any header of the C library: this file comes first everywhere */

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "abi.h"
#include "rknpu_sim.h"

#define SIM_API __attribute__((visibility("default")))
#define PRINTF(text, arguments) __attribute__((format(printf, text, arguments)))

enum driver { ROCKET, RKNPU, DRIVERS };
enum { CORES = 3, PAGE = 4096 };

/* Held whenever shared state is read or written, but not while a core computes. */
extern pthread_mutex_t sim_lock;

static inline uint64_t round_up(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

static inline uint64_t div_up(uint64_t value, uint64_t divisor)
{
    return (value + divisor - 1) / divisor;
}

/* --- settings.c ---------------------------------------------------------------------------- */
struct settings {
    bool strict;                /* a register nobody wrote, a byte past a buffer: refused */
    bool coherent;              /* device and CPU see the same bytes without maintenance */
    int cores;                  /* 1..3 */
    int log;                    /* 0 nothing, 1 what the kernel would log and why, 2 every task */
    double hang_ms;             /* how long a hung job takes; 0: as long as the driver waits */
    uint32_t iova_base;         /* lowest address that rocket hands out */
    uint32_t version;           /* of the rknpu driver: 908 is 0.9.8 */
    double mhz[DRIVERS];        /* of the NPU's clock */
    double core_gbs, total_gbs; /* GB/s of memory: one core, all of them */
    char nodes[256];            /* names below /dev/accel and /dev/dri, separated by commas */
    char report[256];           /* file that gets the counters when the process ends; - is stderr */
};
extern struct settings settings;

/* Applies "key=value key=value ..."; returns 0, or -1 with the reason in `why`. */
int settings_apply(const char *text, char *why, size_t size);
void settings_from_environment(void);
/* The driver behind a path such as /dev/accel/accel0, or -1: not simulated. */
int settings_driver_of(const char *path);

/* --- fault.c ------------------------------------------------------------------------------- */
enum call {
    CALL_OPEN,
    CALL_CREATE,
    CALL_MAP,
    CALL_DESTROY,
    CALL_SYNC,
    CALL_PREP,
    CALL_FINI,
    CALL_SUBMIT,
    CALL_ACTION,
    CALLS,
    NO_CALL
};
enum effect { NO_EFFECT, FAIL, HANG, STALE, FLIP, DEAD, WEDGE };
struct fault {
    enum effect effect;
    int error; /* errno of FAIL */
};
int fault_arm(const char *text, char *why, size_t size);
void fault_clear(void);
struct fault fault_at(enum call call); /* counts the call */

/* --- report.c ------------------------------------------------------------------------------ */
enum { WHY_SIZE = 240 };
struct why {
    char text[WHY_SIZE];
};
/* Writes the reason and returns false, so that a check can end with it. */
bool refuse(struct why *why, const char *format, ...) PRINTF(2, 3);
void sim_log(int level, const char *format, ...) PRINTF(2, 3);

/* What one task did, and the model's estimate of what it costs. */
struct cost {
    uint64_t macs, mac_cycles;           /* useful products; cycles of the MAC array */
    uint64_t features, weights, outputs; /* bytes moved */
    double ns;                           /* the model's, not a measurement */
    char shape[64];
};
void report_reset(void);
void report_submit(enum driver driver, int jobs);
void report_task(enum driver driver, int core, uint32_t words, const struct cost *cost);
void report_overhead(enum driver driver, int core, double ns);
void report_refused(enum driver driver, int core, const char *why);
void report_at_exit(void);

/* --- memory.c ------------------------------------------------------------------------------ */
struct space; /* what one IOMMU domain maps */
struct bo {
    struct space *space;
    uint32_t handle, flags;
    int refs;       /* one of the handle, one of each job that lists it */
    int writers;    /* jobs not finished that list it as an output */
    bool listed;    /* scratch of rocket.c: seen in this job's lists */
    uint64_t size;  /* bytes asked for */
    uint64_t limit; /* bytes a DMA may touch */
    uint64_t iova, offset, cookie;
    uint8_t *cpu;    /* what the program maps */
    uint8_t *device; /* what the NPU sees: the same, or a copy that maintenance updates */
};
struct space {
    pthread_rwlock_t lock; /* read: a core runs a task; write: the buffers change */
    struct bo **bos;       /* sorted by iova */
    size_t count, capacity;
    uint64_t low, high;
    bool top_down;
};
void space_init(struct space *space, uint64_t low, uint64_t high, bool top_down);
void space_forked(struct space *space); /* in a child: no thread holds the lock */
void space_destroy(struct space *space);
/* Makes a buffer that the caller maps at `offset`; returns 0 or -errno. */
int bo_create(struct space *space, uint64_t offset, uint64_t size, bool cacheable, bool zero,
              struct bo **made);
/* Maps its first bytes once more, as mmap does. */
void *bo_map(const struct bo *bo, void *at, size_t size, int access, bool fixed);
void bo_put(struct bo *bo);
void bo_sync(struct bo *bo, uint64_t offset, uint64_t size, bool to_device);
/* The buffer that holds an address, or NULL; with the space locked. */
struct bo *space_find(const struct space *space, uint64_t iova);

/* --- user.c -------------------------------------------------------------------------------- */
/* A caller's memory, as the kernel reads it: 0, or -EFAULT where there is none. */
int user_read(void *to, uint64_t from, size_t size);
/* The first `size` bytes of each of `count` structs that lie `stride` bytes apart. */
int user_read_array(void *to, uint64_t from, uint32_t count, uint32_t stride, size_t size);
int user_write(uint64_t to, const void *from, size_t size);
void close_descriptor(int fd); /* close() is a function of this library, too */

/* --- device.c ------------------------------------------------------------------------------ */
struct file {
    struct file *next;
    dev_t dev; /* of the memory file behind the descriptor */
    ino_t ino;
    struct fault fault; /* that strikes this call */
    int busy;           /* calls under way */
    enum driver driver;
    struct space own, *space;
    struct bo **bos; /* by handle - 1; NULL where it was closed */
    uint32_t bo_count, bo_capacity;
    uint64_t next_offset;
    int home; /* core of its jobs, on rocket; -1 before the first */
    int jobs; /* not finished */
    uint64_t id;
    char path[64];
};
enum { NOT_OURS = -1000000 };                 /* a descriptor of somebody else: not an errno */
int device_open(const char *path, int flags); /* a descriptor or -errno */
int device_ioctl(int fd, uint32_t request, uint64_t argument); /* or NOT_OURS */
/* As mmap; 0, or -errno, or NOT_OURS. */
int device_mmap(int fd, void *at, size_t size, int access, int flags, uint64_t offset, void **made);
const char *device_path(int fd); /* that opened it; NULL: not ours */
uint64_t device_id(int fd);      /* of the open file behind a descriptor; 0: not ours */
void device_closed(uint64_t id); /* one of its descriptors is gone */
void device_reload(void);        /* as rmmod and insmod: all forgotten but files and buffers */
int device_at_work(void);        /* rocket files that have run a job */
int device_quietest_core(void);  /* with the fewest of them */

struct bo *file_bo(const struct file *file, uint32_t handle);
int file_add_bo(struct file *file, uint64_t size, bool cacheable, bool zero, struct bo **made);
void file_drop_bo(struct file *file, struct bo *bo);

struct driver_ioctl {
    uint32_t request; /* 0: the last row */
    enum call call;
    int (*run)(struct file *file, void *argument);
};
extern const struct driver_ioctl rocket_ioctls[], rknpu_ioctls[];

/* --- core.c -------------------------------------------------------------------------------- */
struct job {
    struct file *file;
    enum driver driver;
    struct fault fault;
    uint32_t task_count;
    struct rocket_task *rocket_tasks; /* one of these two */
    struct rknpu_task *rknpu_tasks;
    struct bo **bos; /* inputs, then outputs */
    uint32_t in_count, bo_count;
    struct bo *task_bo;
    int cores;           /* at work for it */
    int pending;         /* segments not finished */
    int refs;            /* one of the submitter while it waits, one of the cores */
    int error;           /* why it ended, 0: well */
    uint32_t tasks_done; /* by the core that failed */
    int event;           /* of a fence for the caller, or -1 */
    double ns;           /* of the slowest core, by the model */
};
struct segment { /* a job's work for one core */
    struct segment *next;
    struct job *job;
    int core;
    uint32_t first, count; /* tasks */
    uint32_t done;
    double ns; /* by the model */
};
bool cores_start(enum driver driver);
void core_submit(struct segment *segment);
void cores_drop(const struct file *file); /* what waits for a core will not run */
int core_least_busy(enum driver driver);
bool core_hangs(enum driver driver, int core);
bool job_hangs(const struct job *job);
void cores_wedge(enum driver driver, bool wedged); /* every job hangs */
void cores_reset(enum driver driver);
void cores_forked(void); /* in a child: the threads are not there, nor are their jobs */
void job_put(struct job *job);
void sim_changed(void);           /* wakes all who wait */
bool sim_wait(uint64_t deadline); /* for a change; false: the time came first.  0: no deadline */
uint64_t now_ns(void);            /* CLOCK_MONOTONIC */

/* --- program.c ----------------------------------------------------------------------------- */
enum block { CNA, CORE, DPU, RDMA };
enum reg {
#define REGISTER(block, offset, name, defined, matmul, flying) name,
#include "registers.inc"
#undef REGISTER
    REGISTERS
};
struct registers {
    uint32_t value[REGISTERS];
    bool written[REGISTERS];
};
struct scratch {
    uint8_t *bytes;
    size_t size;
};
struct worker { /* what a core keeps from task to task */
    enum driver driver;
    int index;
    struct registers registers;
    bool warm; /* the registers have been given values */
    struct scratch scratch;
    struct why why;
};
struct program {
    uint32_t enable;
    uint32_t next, next_amount; /* of the chain; 0, 0: it ends here */
    uint32_t length;            /* commands, with the enable */
};
enum { ENABLE_SHORT = 0x0D, ENABLE_FULL = 0x1D, ENABLE_FLYING = 0x18 };

struct run { /* one task on one core */
    const struct space *space;
    const struct bo *list; /* that holds the commands */
    struct job *job;
    struct worker *worker;
    struct why *why;
    bool chained, write;
    struct cost cost;
    uint8_t *out; /* what it writes, first to last byte */
    uint64_t out_size;
};

/* Reads a list of `words` commands into the worker's registers. */
bool program_read(struct run *run, uint32_t address, uint32_t words, struct program *program);
/* Whether every register of an operation was written, with the only value that works. */
bool program_constants(const struct run *run, bool flying, bool rdma);
bool refuse_register(struct why *why, enum reg reg, uint32_t value, const char *reason);
/* The bytes of a buffer at an address, as the NPU sees them, or NULL and a reason. */
uint8_t *dma(struct run *run, uint32_t address, uint64_t size, const char *what);
/* At least `size` bytes, aligned to 64, that last until the next call. */
uint8_t *scratch_get(struct scratch *scratch, size_t size);

/* --- chain.c ------------------------------------------------------------------------------- */
/* Runs the tasks of a segment; false: the hardware would hang, and worker->why says where. */
bool segment_run(struct segment *segment, struct worker *worker);

/* --- check.c, matmul.c --------------------------------------------------------------------- */
enum input { INT8, FP16, BF16, TF32, INT4 };
struct format { /* of both operands */
    const char *name;
    uint32_t precision; /* code */
    uint32_t group;     /* output channels at a time */
    uint32_t k_tile;    /* input channels at a time: K is a multiple */
    uint32_t bits;
};
extern const struct format formats[];
enum output { TO_INT32, TO_INT16, TO_FP32, TO_FP16, TO_BF16 };
struct matmul {
    enum input in;
    enum output out;
    const struct format *format;
    uint32_t out_bytes;
    uint32_t k, n;          /* channels, padded */
    uint32_t width, height; /* of the feature cube: its product is M */
    uint32_t out_width, out_height;
    bool group_line_off;
    uint32_t line_stride; /* atoms of 16 bytes */
    int32_t surface_stride;
    uint32_t features, weights, output; /* addresses */
    uint32_t surfaces;                  /* of 16 bytes that a group of channels makes */
    uint32_t surface_pitch, group_pitch, notch;
    bool weight_reuse, data_reuse;
    uint32_t banks; /* register value */
};
bool matmul_check(struct run *run, uint32_t enable, struct matmul *mm);
/* `last` is the matmul before in the same chain, or NULL. */
bool matmul_reuse(struct run *run, const struct matmul *mm, const struct matmul *last);
bool matmul_run(struct run *run, const struct matmul *mm);
bool flying_run(struct run *run);

/* Where the DPU writes: the 16 bytes of (row, column, surface). */
struct writer {
    uint8_t *bytes;                       /* the first of the cube */
    uint64_t size;                        /* to its last */
    uint64_t row, column, surface, group; /* strides */
    uint32_t rows, columns, surfaces, groups;
};
bool writer_open(struct run *run, uint32_t address, struct writer *writer);
/* Whether what a task reads is not what it writes. */
bool apart(struct run *run, const uint8_t *bytes, uint64_t size, const char *what);

/* --- dot*.c: out[rows][32] = a[rows][32 * tiles] . w[tiles][32][32]^T, exact ---------------- */
typedef void dot_fn(const int8_t *a, size_t rows, size_t stride, const int8_t *w, size_t tiles,
                    int32_t *out);
extern dot_fn *dot_best;

/* --- floats*.c, numbers.c -------------------------------------------------------------------- */
struct floats {
    void (*widen)(enum input type, const uint8_t *from, size_t count, double *to);
    /* out[rows][16] = a[rows][k] . w[16][k]^T; k a multiple of 8 */
    void (*multiply)(const double *a, size_t rows, size_t k, const double *w, double *out);
};
extern const struct floats *floats_best;
uint16_t double_to_half(double value);
uint16_t double_to_bfloat(double value);

/* --- cost.c -------------------------------------------------------------------------------- */
void cost_matmul(const struct matmul *mm, enum driver driver, int cores, bool chained,
                 struct cost *cost);
void cost_flying(uint64_t elements, enum driver driver, int cores, struct cost *cost);
double cost_submit_ns(enum driver driver);

#endif
