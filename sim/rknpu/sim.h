/*
 * Declarations for all files: the drivers' names, the lock, settings, faults, messages, counters.
 *
 *     preload.c, nodes.c      the functions a program calls: open, ioctl, mmap, close, stat, ...
 *     device.c                open files, the ioctls of every DRM driver, mappings
 *     rocket.c, rknpu.c       the ioctls of the two drivers
 *     memory.c, user.c        buffers, IOVA spaces, cache maintenance; a caller's memory
 *     core.c                  three cores for each driver: queues, fences, hangs, resets
 *     chain.c, program.c      tasks of a core; a list of commands -> registers
 *     dma.c                   memory access of a task
 *     check.c, stages.c       registers -> a product and the stages of the DPU
 *     features.c, weights.c, matmul.c, convert.c, dot*.c, floats*.c    -> arithmetic -> bytes
 *     flying.c, lut.c, pool.c operations without a product
 *     writer.c                the destination of all results
 *     cost.c, report.c        the time model; counters and messages
 *     settings.c, fault.c     settings and faults
 *
 * driver.h declares the drivers with their buffers and jobs, npu.h a core of the NPU.
 */
#ifndef RKNPU_SIM_H
#define RKNPU_SIM_H

#define _GNU_SOURCE /* every file includes this header before those of the C library */

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
    bool strict;         /* refuse unwritten registers and bytes past a buffer */
    bool coherent;       /* device and CPU see the same bytes without maintenance */
    bool guard;          /* rocket: new buffers hold a pattern, with a page between them */
    int cores;           /* 1..3 */
    int log;             /* 0: no messages, 1: the kernel's, with reasons, 2: also every task */
    double hang_ms;      /* duration of a hung job; 0: the driver's timeout */
    uint32_t iova_base;  /* lowest address of rocket's buffers */
    uint32_t version;    /* version of the rknpu driver: 908 is 0.9.8 */
    uint64_t memory;     /* most bytes of all buffers together; 0: no limit */
    uint64_t space;      /* most bytes of buffers in one address space; 0: no limit */
    double mhz[DRIVERS]; /* clock of the NPU */
    double core_gbs, total_gbs; /* memory bandwidth of one core; of all cores; GB/s */
    char nodes[256];            /* names below /dev/accel and /dev/dri, separated by commas */
    char report[256];           /* file for the counters at the end of the process; -: stderr */
};
extern struct settings settings;

/* Applies "key=value key=value ..."; returns 0, or -1 with the reason in `why`. */
int settings_apply(const char *text, char *why, size_t size);
void settings_from_environment(void);
/* The reason why NPURT_SIM_RKNPU is wrong, or "".  If it is wrong, no node opens. */
extern char settings_refused[];
/* Returns the driver of a path such as /dev/accel/accel0, or -1 if the path is not simulated. */
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
struct fault fault_at(enum call call); /* counts the call; returns its fault */

/* --- report.c ------------------------------------------------------------------------------ */
enum { WHY_SIZE = 240 };
struct why {
    char text[WHY_SIZE];
};
/* Stores the reason and returns false: a check ends with `return refuse(...)`. */
bool refuse(struct why *why, const char *format, ...) PRINTF(2, 3);
void sim_log(int level, const char *format, ...) PRINTF(2, 3);

struct cost;
void report_reset(void);
void report_submit(enum driver driver, int jobs);
void report_switch(void); /* counts a switch of rknpu to another IOMMU domain */
void report_task(enum driver driver, int core, uint32_t words, const struct cost *cost);
void report_overhead(enum driver driver, int core, double ns);
void report_refused(enum driver driver, int core, const char *why); /* a task that hangs */
void report_dropped(int error); /* a job that the driver dropped, although SUBMIT returned 0 */
void report_at_exit(void);

#endif
