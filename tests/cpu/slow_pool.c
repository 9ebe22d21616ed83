/*
 * pool.c with delayed workers: each worker sleeps before it computes a chunk that may be computed
 * twice, until long after the run has returned.  A library links this file in place of pool.c.
 */
#define _GNU_SOURCE
#include "work.h"
#include <sys/syscall.h>
#include <unistd.h>

static void compute_late(const npurt_op *copy, npurt_division d, const npurt_job *job, int chunk,
                         void *scratch)
{
    if (syscall(SYS_gettid) != getpid()) {
        usleep(200000);
    }
    npurt_compute_copy(copy, d, job, chunk, scratch);
}

#define npurt_compute_copy compute_late
#include "../../npurt/cpu/pool/pool.c"
