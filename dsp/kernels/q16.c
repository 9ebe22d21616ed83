/*
 * Multiply x by 16-bit weights with a scale per 32 columns: float tensors.
 *
 * w       A step has 16 vectors of high bytes + 128 in the layout of q8.c, 16 vectors of low bytes
 *         in the same layout, and a vector of scales.
 * h       The sum of code * x / 4096, rounded.
 * product.h describes everything else.
 */
#include "gemm.h"
#include "gemv.h"
#include "kinds.h"

static void rows(const job *job)
{
    gemm(Q16, 0, job);
}

static void row(const job *job)
{
    gemv(Q16, 0, NULL, job);
}

const kernels npurt_kernels_q16 = {rows, row};
