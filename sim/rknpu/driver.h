/* The drivers: buffers, open files, jobs and the cores that run them. sim.h lists the files. */
#ifndef RKNPU_SIM_DRIVER_H
#define RKNPU_SIM_DRIVER_H

#include "sim.h"

#include <pthread.h>
#include <sys/types.h>

#include "abi.h"

/* --- memory.c ------------------------------------------------------------------------------ */
struct space; /* address space of one IOMMU domain */
struct bo {
    struct space *space;
    uint32_t handle, flags;
    int refs;       /* one for the handle, one for each job that lists it */
    int writers;    /* unfinished jobs that list it as an output */
    bool listed;    /* temporary mark of rocket.c: in this job's lists */
    uint64_t size;  /* requested bytes */
    uint64_t limit; /* bytes a DMA may touch */
    uint64_t iova, offset, cookie;
    int file;        /* descriptor of the pages, or -1 */
    uint8_t *cpu;    /* the pages that the program maps */
    uint8_t *device; /* the NPU's view: the same bytes, or a copy that maintenance updates */
};
static const uint64_t IOVA_END = 0x100000000 - PAGE; /* registers hold 32-bit addresses */
struct space {
    pthread_rwlock_t lock; /* read: a core runs a task; write: the buffers change */
    struct bo **bos;       /* sorted by iova */
    size_t count, capacity;
    uint64_t low, high;
    uint64_t bytes; /* bytes of its buffers, in whole pages */
    bool top_down;
};
void space_init(struct space *space, uint64_t low, uint64_t high, bool top_down);
void space_forked(struct space *space); /* initialises the lock in a child made by fork */
void space_destroy(struct space *space);
/* Creates a buffer that the caller maps at `offset`; returns 0 or -errno. */
int bo_create(struct space *space, uint64_t offset, uint64_t size, bool cacheable, bool zero,
              struct bo **made);
/* Maps the first `size` bytes of a buffer again, for the program's mmap. */
void *bo_map(const struct bo *bo, void *at, size_t size, int access, bool fixed);
void bo_put(struct bo *bo);
void bo_sync(struct bo *bo, uint64_t offset, uint64_t size, bool to_device);
/* Returns the buffer that holds an address, or NULL; call with the space locked. */
struct bo *space_find(const struct space *space, uint64_t iova);

/* --- user.c -------------------------------------------------------------------------------- */
/* Reads a caller's memory as the kernel does; returns 0, or -EFAULT if no memory is mapped there.
 * */
int user_read(void *to, uint64_t from, size_t size);
/* Reads the first `size` bytes of each of `count` structs that are `stride` bytes apart. */
int user_read_array(void *to, uint64_t from, uint32_t count, uint32_t stride, size_t size);
int user_write(uint64_t to, const void *from, size_t size);
void close_descriptor(int fd); /* not through this library's own close() */

/* --- device.c ------------------------------------------------------------------------------ */
struct file {
    struct file *next;
    dev_t dev; /* device and inode of the descriptor's memfd */
    ino_t ino;
    struct fault fault; /* fault of the current call */
    int busy;           /* running calls */
    enum driver driver;
    struct space own; /* rocket only; rknpu's files share one space per IOMMU domain */
    struct bo **bos;  /* index: handle - 1; NULL: the handle was closed */
    uint32_t bo_count, bo_capacity;
    uint64_t first_offset, next_offset; /* mmap offsets of buffers */
    int home;                           /* rocket: core of its jobs; -1 before the first job */
    int jobs;                           /* unfinished */
    uint64_t id;
    char path[64];
};
enum { NOT_OURS = -1000000 };                 /* not a simulated file; no errno has this value */
int device_open(const char *path, int flags); /* a descriptor, -errno or NOT_OURS */
int device_ioctl(int fd, uint32_t request, uint64_t argument); /* or NOT_OURS */
/* Serves mmap; returns 0, -errno or NOT_OURS. */
int device_mmap(int fd, void *at, size_t size, int access, int flags, uint64_t offset, void **made);
const char *device_path(int fd); /* path of a simulated file, or NULL */
uint64_t device_id(int fd);      /* number of a simulated open file, or 0 */
void device_closed(uint64_t id); /* call after one of its descriptors was closed */
void device_reload(void);        /* as rmmod and insmod: resets everything but files and buffers */
int device_at_work(void);        /* rocket files that have run a job */
int device_quietest_core(void);  /* the core with the fewest of these files */
int device_jobs(enum driver driver); /* unfinished jobs */

struct bo *file_bo(const struct file *file, uint32_t handle);
int file_add_bo(struct file *file, struct space *space, uint64_t size, bool cacheable, bool zero,
                struct bo **made);
void file_drop_bo(struct file *file, struct bo *bo);

struct driver_ioctl {
    uint32_t request; /* 0: end of the table */
    enum call call;
    int (*run)(struct file *file, void *argument);
};
extern const struct driver_ioctl rocket_ioctls[], rknpu_ioctls[];

/* --- rknpu.c ------------------------------------------------------------------------------- */
void domains_forked(void); /* space_forked() for every IOMMU domain */

/* --- nodes.c ------------------------------------------------------------------------------- */
int nodes_open(const char *path, int flags); /* a descriptor of a simulated file, or NOT_OURS */

/* --- core.c -------------------------------------------------------------------------------- */
struct job {
    struct file *file;
    struct space *space; /* address space of the job */
    enum driver driver;
    struct fault fault;
    uint32_t task_count;
    struct rocket_task *rocket_tasks; /* one of the two, by driver */
    struct rknpu_task *rknpu_tasks;
    struct bo **bos; /* inputs, then outputs */
    uint32_t in_count, bo_count;
    int cores;           /* number of cores at work */
    int pending;         /* unfinished segments */
    int refs;            /* one for the submitter while it waits, one for the cores */
    int error;           /* errno of a failed job; 0: success */
    uint32_t tasks_done; /* completed tasks of the core that failed */
    int event;           /* eventfd of the caller's fence, or -1 */
    double ns;           /* estimated time of the slowest core */
};
struct segment { /* a job's work for one core */
    struct segment *next;
    struct job *job;
    int core;
    uint32_t first, count; /* tasks */
    uint32_t done;
    double ns; /* estimated time */
};
enum { JOB_TIMEOUT_MS = 500 }; /* rocket_job.c: for a job with all its tasks */
bool cores_start(enum driver driver);
void core_submit(struct segment *segment);
/* Cancels waiting jobs of a file, or one job. */
void cores_drop(enum driver driver, const struct file *file, const struct job *job);
int core_least_busy(enum driver driver);
bool cores_hang(enum driver driver, uint32_t mask); /* whether any core of `mask` hangs */
void cores_wedge(enum driver driver, bool wedged);  /* true: every job hangs */
void cores_reset(enum driver driver);
void cores_forked(void); /* resets the cores in a child, which has no threads or jobs */
void job_put(struct job *job);
void sim_changed(void); /* wakes all waiting threads */
/* Waits for a change; returns false after the deadline.  A deadline of 0 means no deadline. */
bool sim_wait(uint64_t deadline);
void sim_sleep(double ms); /* releases sim_lock meanwhile */
uint64_t now_ns(void);     /* CLOCK_MONOTONIC */

#endif
