/*
 * y = x . w of 4-bit indices of a table of 16 bytes, a scale per 32 columns: IQ4_NL, IQ4_XS, MXFP4
 *
 * w       as q4; the table, bytes + 128, is the tile's third head: entry i in bytes 2 i and 2 i + 32
 *         (vlut32 indexes with five bits, of which the nibble is four).
 * h       sum of byte * x / 16, rounded.
 * Rest    product.h.
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
