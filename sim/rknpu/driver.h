/* The drivers: buffers, open files, jobs and the cores that run them.  The map is in sim.h. */
#ifndef RKNPU_SIM_DRIVER_H
#define RKNPU_SIM_DRIVER_H

#include "sim.h"

#include <pthread.h>
#include <sys/types.h>

#include "abi.h"

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
    int file;        /* its pages are of, or -1 */
    uint8_t *cpu;    /* what the program maps */
    uint8_t *device; /* the NPU's view: the same bytes, or a copy that maintenance updates */
};
static const uint64_t IOVA_END = 0x100000000 - PAGE; /* the registers hold 32 bits of an address */
struct space {
    pthread_rwlock_t lock; /* read: a core runs a task; write: the buffers change */
    struct bo **bos;       /* sorted by iova */
    size_t count, capacity;
    uint64_t low, high;
    uint64_t bytes; /* of its buffers, in whole pages */
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
    struct space own; /* of rocket; rknpu has one for each IOMMU domain, shared by all files */
    struct bo **bos;  /* by handle - 1; NULL where it was closed */
    uint32_t bo_count, bo_capacity;
    uint64_t first_offset, next_offset; /* of buffers, for mmap */
    int home;                           /* core of its jobs, on rocket; -1 before the first */
    int jobs;                           /* not finished */
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
void device_reload(void);        /* as rmmod and insmod: resets everything but files and buffers */
int device_at_work(void);        /* rocket files that have run a job */
int device_quietest_core(void);  /* with the fewest of them */
int device_jobs(enum driver driver); /* not finished */

struct bo *file_bo(const struct file *file, uint32_t handle);
int file_add_bo(struct file *file, struct space *space, uint64_t size, bool cacheable, bool zero,
                struct bo **made);
void file_drop_bo(struct file *file, struct bo *bo);

struct driver_ioctl {
    uint32_t request; /* 0: the last row */
    enum call call;
    int (*run)(struct file *file, void *argument);
};
extern const struct driver_ioctl rocket_ioctls[], rknpu_ioctls[];

/* --- rknpu.c ------------------------------------------------------------------------------- */
void domains_forked(void); /* as space_forked, of every IOMMU domain */

/* --- nodes.c ------------------------------------------------------------------------------- */
int nodes_open(const char *path, int flags); /* a descriptor of a simulated file, or NOT_OURS */

/* --- core.c -------------------------------------------------------------------------------- */
struct job {
    struct file *file;
    struct space *space; /* that its addresses are in */
    enum driver driver;
    struct fault fault;
    uint32_t task_count;
    struct rocket_task *rocket_tasks; /* one of these two */
    struct rknpu_task *rknpu_tasks;
    struct bo **bos; /* inputs, then outputs */
    uint32_t in_count, bo_count;
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
enum { JOB_TIMEOUT_MS = 500 }; /* rocket_job.c: a job of rocket, all its tasks together */
bool cores_start(enum driver driver);
void core_submit(struct segment *segment);
/* Cancels waiting jobs of a file, or one job. */
void cores_drop(enum driver driver, const struct file *file, const struct job *job);
int core_least_busy(enum driver driver);
bool cores_hang(enum driver driver, uint32_t mask); /* any of them */
void cores_wedge(enum driver driver, bool wedged);  /* every job hangs */
void cores_reset(enum driver driver);
void cores_forked(void); /* in a child, which has neither threads nor jobs */
void job_put(struct job *job);
void sim_changed(void); /* wakes all who wait */
bool sim_wait(
    uint64_t deadline);    /* waits for a change; false: the deadline came first.  0: no deadline */
void sim_sleep(double ms); /* the others go on meanwhile */
uint64_t now_ns(void);     /* CLOCK_MONOTONIC */

#endif
