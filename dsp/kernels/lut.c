/*
 * Multiply x by weights that are 4-bit indices of a table of 16 bytes, with a scale per 32 columns:
 * IQ4_NL, IQ4_XS, MXFP4.
 *
 * w       A step has the layout of q4.c.  The third head of a tile is the table, with 128 added to
 *         each byte.  Entry i is in bytes 2 i and 2 i + 32, because vlut32 uses an index of five
 *         bits and a nibble gives four of them.
 * h       The sum of byte * x / 16, rounded.
 * product.h describes everything else.
 */
#include "gemm.h"
#include "gemv.h"
#include "kinds.h"

static void rows(const job *job)
{
    gemm(LUT, 0, job);
}

static void row(const job *job)
{
    gemv(LUT, 0, NULL, job);
}

const kernels npurt_kernels_lut = {rows, row};
