/*
 * Multiply x by 4-bit weights with a scale per 32 columns: Q4_0.  The kernel q4_offset also has an
 * offset per 32 columns: Q4_1, Q4_K.
 *
 * w       A step has 8 vectors of codes 0..15.  Lane c of vector v holds codes of row c: the low
 *         nibbles are columns 8 v + 0..3, the high nibbles columns 8 v + 4..7.  One vector of
 *         scales follows: pairs of int16 for columns 0..31 and 32..63, of 15 bits (q4_offset: 14
 *         bits).  For q4_offset, a vector of offsets in the same layout follows.  Stored offsets
 *         are divided by 8 (`sums` in dsp/formats.inc).
 * h       The sum of (code - 8) * x, exact.
 * product.h describes everything else.
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
