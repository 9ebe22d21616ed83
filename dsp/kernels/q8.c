/*
 * y = x . w of 8-bit weights with a scale per 32 columns (q8_offset: and an offset): Q8_0, Q5_0;
 * Q5_1, Q5_K
 *
 * w       a step: 16 vectors of codes + 128, vector v in lane c: columns 4 v + 0..3 of row c; a vector
 *         of scales, pairs of int16 (columns 0..31, 32..63), 15 bits (q8_offset: 14); q8_offset: a vector of
 *         offsets likewise.
 * h       sum of code * x / 16, rounded.
 * Rest    product.h.
 */
#include "gemm.h"
#include "gemv.h"
#include "kinds.h"
#include "row_loops.h"

static void rows(const job *job)
{
    gemm(Q8, 0, job);
}

static void row(const job *job)
{
    gemv(Q8, 0, q8_loop, job);
}

const kernels npurt_kernels_q8 = {rows, row};

static void rowsm(const job *job)
{
    gemm(Q8, 1, job);
}

static void rowm(const job *job)
{
    gemv(Q8, 1, q8_offset_loop, job);
}

const kernels npurt_kernels_q8_offset = {rowsm, rowm};
