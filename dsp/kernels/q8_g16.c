/*
 * Multiply x by 8-bit weights with a scale per 16 columns: Q6_K, Q3_K.  The kernel q8_g16_offset
 * also has an offset per 16 columns: Q2_K.
 *
 * w       A step has codes in the layout of q8.c and two vectors of scales: pairs of int16 of 14
 *         bits (q8_g16_offset: 13 bits).  The first vector is for columns 0..15 and 32..47, the
 *         second for columns 16..31 and 48..63.  For q8_g16_offset, two vectors of offsets in the
 *         same layout follow.
 * h       The sum of 16 code * x / 8, rounded.
 * product.h describes everything else.
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
