/*
 * What pool.c asks of work.c and matmul.c, and the one of the other.
 */
#ifndef NPURT_WORK_H
#define NPURT_WORK_H

#include "kernels.h"

enum { MAX_CHUNKS = 256, MAX_ROWS = 512, SCRATCH_BYTES = 4 << 20 };

/* What one run of a program works on. */
typedef struct {
    npurt_op *ops;
    int count;
    int64_t rows, position, head;
} npurt_job;

/* Work items of an op in one run, `grain` of them a chunk. */
typedef struct {
    int64_t items, grain;
    int chunks;
} npurt_division;

npurt_division npurt_divide(const npurt_op *op, const npurt_job *job, int threads);

/* Computes one chunk: a matmul into scratch, any other op where its results belong. */
void npurt_compute(npurt_op *op, npurt_division d, const npurt_job *job, int chunk, void *scratch);

/* Moves a computed matmul chunk to where it belongs. */
void npurt_commit(const npurt_op *op, npurt_division d, const npurt_job *job, int chunk,
                  const void *scratch);

/* Rows that an op works on in a run. */
int64_t npurt_rows(const npurt_op *op, const npurt_job *job);

/* How often a finished matmul read a whole weight: once, or once for each of its groups. */
int64_t npurt_matrices(const npurt_op *op, const npurt_job *job);

/* As above, for a matmul and its items [from, to). */
npurt_division npurt_divide_matmul(const npurt_op *op, const npurt_job *job, int threads);
void npurt_compute_matmul(const npurt_op *op, const npurt_job *job, int64_t from, int64_t to,
                          float *scratch);
void npurt_commit_matmul(const npurt_op *op, const npurt_job *job, int64_t from, int64_t to,
                         const float *scratch);

/* Freivalds: whether a finished matmul's result agrees with its input. */
int npurt_is_right(const npurt_op *op, const npurt_job *job);

#endif
