/*
 * y = x . w of 16-bit weights with a scale per 32 columns: float tensors
 *
 * w       a step: 16 vectors of high bytes + 128 as q8, 16 of low bytes likewise; a vector of scales.
 * h       sum of code * x / 4096, rounded.
 * Rest    product.h.
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
