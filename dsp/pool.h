/* A pool of threads that work on one task together. */
#ifndef NPURT_POOL_H
#define NPURT_POOL_H

#include "qurt.h"
#include <stddef.h>

enum {
    POOL_MAX = 8,          /* threads: the most HVX contexts of any DSP so far (v81) */
    POOL_STACK = 32 << 10, /* bytes; kernels may use 16 KiB of them */
};

typedef struct pool pool;

/* The function that every thread calls; *thread* counts from 0. */
typedef void (*pool_work)(void *context, uint32_t thread);

typedef struct {
    pool *pool;
    uint32_t index;
    qurt_thread_t id;
    qurt_sem_t start; /* up: there is work */
} pool_member;

struct pool {
    uint32_t threads; /* that run */
    uint32_t part;    /* of 2^31 that each has, rounded up */
    pool_work work;   /* NULL: end */
    void *context;
    qurt_sem_t end;   /* up, by each thread: the work is done */
    uint32_t waiting; /* threads that have not reached the barrier yet */
    uint32_t round;   /* of the barrier */
    uint32_t gate[2]; /* futexes: one changes when a round of its parity ends */
    void *stacks;
    pool_member member[POOL_MAX];
};

/* Start up to *threads* threads; pool->threads is then their number, perhaps 0. */
void pool_start(pool *pool, uint32_t threads);

/* Run the work on all threads, and return when the last has finished.  One caller at a time. */
void pool_run(pool *pool, pool_work work, void *context);

/* Within work: return when all threads have called it. */
void pool_barrier(pool *pool);

/* End the threads.  A second call does nothing. */
void pool_stop(pool *pool);

#endif
