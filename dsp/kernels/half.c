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

static void rows(const call *call, vec out[])
{
    gemm(HALF, 0, call, out);
}

static void tiles(const call *call, vec out[])
{
    gemv(HALF, 0, TILES, call, out);
}

static void tile(const call *call, vec out[])
{
    gemv(HALF, 0, 1, call, out);
}

const kernels npurt_kernels_half = {rows, tiles, tile};

static void rowsm(const call *call, vec out[])
{
    gemm(HALF, 1, call, out);
}

static void tilesm(const call *call, vec out[])
{
    gemv(HALF, 1, TILES, call, out);
}

static void tilem(const call *call, vec out[])
{
    gemv(HALF, 1, 1, call, out);
}

const kernels npurt_kernels_halfm = {rowsm, tilesm, tilem};
