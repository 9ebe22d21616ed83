/*
 * y = x . w of 8-bit weights with a scale per 16 columns (halfm: and an offset): Q6_K, Q3_K; Q2_K
 *
 * w       a step: codes as byte; two vectors of scales, pairs of int16 of 14 bits (halfm: 13): of
 *         columns 0..15 and 32..47, then of 16..31 and 48..63; halfm: two vectors of offsets likewise.
 * h       sum of 16 code * x / 8, rounded.
 * Rest    product.h.
 */
#include "gemm.h"
#include "gemv.h"
#include "kinds.h"

static void rows(const job *job)
{
    gemm(HALF, 0, job);
}

static void row(const job *job)
{
    gemv(HALF, 0, NULL, job);
}

const kernels npurt_kernels_half = {rows, row};

static void rowsm(const job *job)
{
    gemm(HALF, 1, job);
}

static void rowm(const job *job)
{
    gemv(HALF, 1, NULL, job);
}

const kernels npurt_kernels_halfm = {rowsm, rowm};
