/*
 * Functions of work.c, matmul.c and limits.c that other files of the pool call.
 */
#ifndef NPURT_WORK_H
#define NPURT_WORK_H

#include "kernels.h"

enum { MAX_CHUNKS = 256 };

/* The ops and the rows of one run. */
typedef struct {
    npurt_op *ops;
    int count;
    npurt_table table; /* a late thread must not dereference its pointers, which may be stale */
} npurt_job;

/* The work items of an op in one run; each chunk has `grain` items. */
typedef struct {
    int64_t items, grain;
    int chunks;
    int repeatable; /* a matmul whose input fits COPY_BYTES and whose chunks fit RESULT_BYTES */
} npurt_division;

enum { WHY_BYTES = 128 };

/* Returns 1 if the kernels can run a job; else 0, with the reason in `why` [WHY_BYTES]. */
int npurt_job_fits(const npurt_job *job, char *why);

/* Divides the work of a checked op into chunks. */
npurt_division npurt_divide(const npurt_op *op, const npurt_job *job, int threads);

/* Computes one chunk and writes its results to the op's output. */
void npurt_compute(npurt_op *op, npurt_division d, const npurt_job *job, int chunk, void *scratch);

/*
 * A chunk of a repeatable op is computed in three steps: copy the op with its input, compute into
 * scratch, copy the results to the output.  The second step reads only the copy and the weights.
 */
void npurt_snapshot(const npurt_op *op, const npurt_job *job, void *scratch, npurt_op *copy);
void npurt_compute_copy(const npurt_op *copy, npurt_division d, const npurt_job *job, int chunk,
                        void *scratch);
void npurt_commit_copy(const npurt_op *copy, npurt_division d, const npurt_job *job, int chunk,
                       const void *scratch);

/* Returns the number of rows that an op computes in a run. */
int64_t npurt_rows(const npurt_op *op, const npurt_job *job);

/* Returns how many matrices of each weight a finished matmul read: 1, or one per group. */
int64_t npurt_matrices(const npurt_op *op, const npurt_job *job);

/* npurt_divide and npurt_compute for a matmul; the latter computes items [from, to). */
npurt_division npurt_divide_matmul(const npurt_op *op, const npurt_job *job, int threads);
void npurt_compute_matmul(const npurt_op *op, const npurt_job *job, int64_t from, int64_t to,
                          float *scratch);

/* Verifies the result of a finished matmul with Freivalds' algorithm; returns 1 if it is right. */
int npurt_is_right(const npurt_op *op, const npurt_job *job);

#endif
