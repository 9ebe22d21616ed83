/*
 * y = x . w of 4-bit weights with a scale per 32 columns (nibm: and an offset): Q4_0; Q4_1, Q4_K
 *
 * w       a step: 8 vectors of codes 0..15, quad v in lane c: low nibbles columns 8 v + 0..3 of row c,
 *         high ones 8 v + 4..7; a vector of scales, pairs of int16 (columns 0..31, 32..63), 15 bits
 *         (nibm: 14); nibm: a vector of offsets likewise, in eighths of their share in h.
 * h       sum of (code - 8) * x, exact.
 * Rest    product.h.
 */
#include "gemm.h"
#include "gemv.h"
#include "kinds.h"
#include "row_loops.h"

static void rows(const job *job)
{
    gemm(NIB, 0, job);
}

static void row(const job *job)
{
    gemv(NIB, 0, nib_loop, job);
}

const kernels npurt_kernels_nib = {rows, row};

static void rowsm(const job *job)
{
    gemm(NIB, 1, job);
}

static void rowm(const job *job)
{
    gemv(NIB, 1, nibm_loop, job);
}

const kernels npurt_kernels_nibm = {rowsm, rowm};
