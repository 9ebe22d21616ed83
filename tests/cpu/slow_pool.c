/*
 * pool.c with workers that are late: each sleeps before it computes a chunk that may be computed twice,
 * until the run has long returned.  Takes the place of pool.c in a library.
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
