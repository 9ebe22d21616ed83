/*
 * y = x . w of 8-bit weights with a scale per 16 columns (q8_g16_offset: and an offset): Q6_K, Q3_K; Q2_K
 *
 * w       a step: codes as q8; two vectors of scales, pairs of int16 of 14 bits (q8_g16_offset: 13):
 *         of columns 0..15 and 32..47, then of 16..31 and 48..63; q8_g16_offset: two vectors of
 *         offsets likewise.
 * h       sum of 16 code * x / 8, rounded.
 * Rest    product.h.
 */
#include "gemm.h"
#include "gemv.h"
#include "kinds.h"

static void rows(const job *job)
{
    gemm(Q8_G16, 0, job);
}

static void row(const job *job)
{
    gemv(Q8_G16, 0, NULL, job);
}

const kernels npurt_kernels_q8_g16 = {rows, row};

static void rowsm(const job *job)
{
    gemm(Q8_G16, 1, job);
}

static void rowm(const job *job)
{
    gemv(Q8_G16, 1, NULL, job);
}

const kernels npurt_kernels_q8_g16_offset = {rowsm, rowm};
