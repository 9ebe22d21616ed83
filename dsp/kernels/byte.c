/*
 * y = x . w of 8-bit weights with a scale per 32 columns (bytem: and an offset): Q8_0, Q5_0; Q5_1, Q5_K
 *
 * w       a step: 16 vectors of codes + 128, vector v in lane c: columns 4 v + 0..3 of row c; a vector
 *         of scales, pairs of int16 (columns 0..31, 32..63), 15 bits (bytem: 14); bytem: a vector of
 *         offsets likewise.
 * h       sum of code * x / 16, rounded.
 * Rest    product.h.
 */
#include "gemm.h"
#include "gemv.h"
#include "kinds.h"
#include "row_loops.h"

static void rows(const job *job)
{
    gemm(BYTE, 0, job);
}

static void row(const job *job)
{
    gemv(BYTE, 0, byte_loop, job);
}

const kernels npurt_kernels_byte = {rows, row};

static void rowsm(const job *job)
{
    gemm(BYTE, 1, job);
}

static void rowm(const job *job)
{
    gemv(BYTE, 1, bytem_loop, job);
}

const kernels npurt_kernels_bytem = {rowsm, rowm};
