/* Internal declarations of this library.  Include this header first: it defines _GNU_SOURCE. */
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

/* Scale the sums of a job and write them to its results y. */
void read_results(const npurt_rk_job *job);

typedef void pool_task(void *context, int i);

/* Call task(context, i) for each i below tasks, and return after all calls.  The caller's thread
 * makes the call for 0, a thread of the pool each other call.  tasks is at most the number of
 * threads plus 1. */
void pool_run(npurt_rk_pool *pool, pool_task *task, void *context, int tasks);

#endif
