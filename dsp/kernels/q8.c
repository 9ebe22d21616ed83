/*
 * Multiply x by 8-bit weights with a scale per 32 columns: Q8_0, Q5_0.  The kernel q8_offset also
 * has an offset per 32 columns: Q5_1, Q5_K.
 *
 * w       A step has 16 vectors of codes + 128.  Lane c of vector v holds columns 4 v + 0..3 of row
 *         c.  One vector of scales follows: pairs of int16 for columns 0..31 and 32..63, of 15 bits
 *         (q8_offset: 14 bits).  For q8_offset, a vector of offsets in the same layout follows.
 * h       The sum of code * x / 16, rounded.
 * product.h describes everything else.
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
