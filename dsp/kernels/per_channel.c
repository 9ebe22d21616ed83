/*
 * y = x . w of 8-bit weights with one scale a row, x with one scale a row too: i8
 *
 * w       a step: 16 vectors of codes + 128, vector v in lane c: columns 4 v + 0..3 of row c.  No
 *         scales: the tile's third head has those of the rows (epilogue.h).
 * out     int32 sums of code * x, exact: k * 127 * 128 < 2^31 for k up to NPURT_MAX_K.
 * Packets 8 R of multiplications for R rows and a step: 256 MAC/packet at most; one row 128, as 16
 *         loads take 16 packets.
 */
#include "gemm.h"
#include "gemv.h"
#include "kinds.h"

static void rows(const job *job)
{
    gemm(PER_CHANNEL, 0, job);
}

static void row(const job *job)
{
    gemv(PER_CHANNEL, 0, NULL, job);
}

const kernels npurt_kernels_per_channel = {rows, row};
