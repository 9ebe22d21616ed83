/*
 * Multiply x by 8-bit weights; x and w have one scale per row: i8.
 *
 * w       A step has 16 vectors of codes + 128.  Lane c of vector v holds columns 4 v + 0..3 of row
 *         c.  A step has no scales: the third head of a tile holds the scales of its rows
 *         (epilogue.h).
 * out     int32 sums of code * x, exact: k * 127 * 128 < 2^31 for k up to NPURT_MAX_K.
 * Packets The multiplications of a step of R rows need 8 R packets: at most 256 MAC/packet.  With
 *         one row, the 16 vector loads need 16 packets: at most 128 MAC/packet.
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
