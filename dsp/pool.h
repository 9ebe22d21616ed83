/* A pool of threads that work on one task together. */
#ifndef NPURT_POOL_H
#define NPURT_POOL_H

#include "qurt.h"
#include <stddef.h>

enum {
    POOL_MAX = 8,          /* threads; no DSP up to v81 has more HVX contexts */
    POOL_STACK = 32 << 10, /* bytes; kernels may use 16 KiB */
};

typedef struct pool pool;

/* The function that every thread calls; *thread* counts from 0. */
typedef void (*pool_work)(void *context, uint32_t thread);

typedef struct {
    pool *pool;
    uint32_t index;
    qurt_thread_t id;
    qurt_sem_t start; /* increased when there is work */
} pool_member;

struct pool {
    uint32_t threads; /* number of running threads */
    uint32_t part;    /* 2^31 / threads, rounded up */
    pool_work work;   /* NULL: the threads end */
    void *context;
    qurt_sem_t end;   /* increased by each thread that has finished the work */
    uint32_t waiting; /* threads that have not reached the barrier yet */
    uint32_t round;   /* number of completed barriers */
    uint32_t gate[2]; /* futexes; gate[r % 2] changes when barrier r is completed */
    void *stacks;
    pool_member member[POOL_MAX];
};

/* Start at most `threads` threads; pool->threads becomes the number of started threads, which is 0
 * if QuRT refuses all of them. */
void pool_start(pool *pool, uint32_t threads);

/* Run the work on all threads; return when all have finished.  One caller at a time. */
void pool_run(pool *pool, pool_work work, void *context);

/* Wait until all threads have called this function; only the work may call it. */
void pool_barrier(pool *pool);

/* End the threads.  A second call does nothing. */
void pool_stop(pool *pool);

#endif
