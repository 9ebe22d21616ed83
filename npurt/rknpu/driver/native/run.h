/* What the files of the host's library know of each other; the first header of each. */
#ifndef NPURT_RK_RUN_H
#define NPURT_RK_RUN_H

#define _GNU_SOURCE

#include "npurt_rk.h"
#include <time.h>

static inline int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Gives sums their scales. */
void read_results(const npurt_rk_job *job);

typedef void pool_task(void *context, int i);

/* Calls task(context, i) for i below tasks, 0 from here and each other from a thread of the pool,
 * and returns when all have.  tasks is at most one more than the pool has threads. */
void pool_run(npurt_rk_pool *pool, pool_task *task, void *context, int tasks);

#endif
