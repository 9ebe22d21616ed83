/*
 * What pool.c asks of work.c and matmul.c, and the one of the other.
 */
#ifndef NPURT_WORK_H
#define NPURT_WORK_H

#include "kernels.h"

enum { MAX_CHUNKS = 256 };

/* What one run of a program works on. */
typedef struct {
    npurt_op *ops;
    int count;
    npurt_table table; /* a late thread may read its numbers, but no more what it points to */
} npurt_job;

/* Work items of an op in one run, `grain` of them a chunk. */
typedef struct {
    int64_t items, grain;
    int chunks;
    int repeatable; /* a matmul whose input fits COPY_BYTES and whose chunks fit RESULT_BYTES */
} npurt_division;

enum { WHY_BYTES = 128 };

/* Whether the kernels can run this; where not, `why` says why not. */
int npurt_job_fits(const npurt_job *job, char *why);

/* How an op that fits divides among threads. */
npurt_division npurt_divide(const npurt_op *op, const npurt_job *job, int threads);

/* Computes one chunk; its results are then where they belong. */
void npurt_compute(npurt_op *op, npurt_division d, const npurt_job *job, int chunk, void *scratch);

/*
 * A chunk of a repeatable op in three steps: copy the op with its input, compute into scratch, move
 * the results to where they belong.  The second reads the copy and weights, and nothing else.
 */
void npurt_snapshot(const npurt_op *op, const npurt_job *job, void *scratch, npurt_op *copy);
void npurt_compute_copy(const npurt_op *copy, npurt_division d, const npurt_job *job, int chunk,
                        void *scratch);
void npurt_commit_copy(const npurt_op *copy, npurt_division d, const npurt_job *job, int chunk,
                       const void *scratch);

/* Rows that an op works on in a run. */
int64_t npurt_rows(const npurt_op *op, const npurt_job *job);

/* How often a finished matmul read a whole weight: once, or once for each of its groups. */
int64_t npurt_matrices(const npurt_op *op, const npurt_job *job);

/* As npurt_divide and npurt_compute, for a matmul and its items [from, to). */
npurt_division npurt_divide_matmul(const npurt_op *op, const npurt_job *job, int threads);
void npurt_compute_matmul(const npurt_op *op, const npurt_job *job, int64_t from, int64_t to,
                          float *scratch);

/* Freivalds: whether a finished matmul's result agrees with its input. */
int npurt_is_right(const npurt_op *op, const npurt_job *job);

#endif
