/*
 * y = x . w of 4-bit weights with a scale per 32 columns (q4_offset: and an offset): Q4_0; Q4_1, Q4_K
 *
 * w       a step: 8 vectors of codes 0..15, quad v in lane c: low nibbles columns 8 v + 0..3 of row c,
 *         high ones 8 v + 4..7; a vector of scales, pairs of int16 (columns 0..31, 32..63), 15 bits
 *         (q4_offset: 14); q4_offset: a vector of offsets likewise, in eighths of their share in h.
 * h       sum of (code - 8) * x, exact.
 * Rest    product.h.
 */
#include "gemm.h"
#include "gemv.h"
#include "kinds.h"
#include "row_loops.h"

static void rows(const job *job)
{
    gemm(Q4, 0, job);
}

static void row(const job *job)
{
    gemv(Q4, 0, q4_loop, job);
}

const kernels npurt_kernels_q4 = {rows, row};

static void rowsm(const job *job)
{
    gemm(Q4, 1, job);
}

static void rowm(const job *job)
{
    gemv(Q4, 1, q4_offset_loop, job);
}

const kernels npurt_kernels_q4_offset = {rowsm, rowm};
