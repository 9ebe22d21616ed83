/*
 * y = x . w of 8-bit weights with one scale a row, x with one scale a row too: i8
 *
 * w       a step: 16 vectors of codes + 128, vector v in lane c: columns 4 v + 0..3 of row c.  No
 *         scales: the tile's third head has those of the rows (multiply.c).
 * out     int32 sums of code * x, exact: k * 127 * 128 < 2^31 for k up to NPURT_MAX_K.
 * Packets 8 R of multiplications for R rows and a step: 256 MAC/packet at most; one row 128, as 16
 *         loads take 16 packets.
 */
#include "gemm.h"
#include "gemv.h"
#include "kinds.h"

static void rows(const call *call, vec out[])
{
    const vec *w = (const vec *) call->tile + HEADS(CHAN);
    const uint64_t *x = call->x.codes;
    constants none = constants_of(CHAN, w);
    vec sum[ROWS];
    UNROLL for (unsigned r = 0; r < ROWS; r++)
    {
        sum[r] = splat((uint32_t) call->x.total[r]);
    }
    for (uint32_t step = 0; step < call->steps; step++) {
        add_quads(CHAN, 0, w, x, &none, 0, QUADS, sum);
        w += STEP_VECTORS(CHAN, 0);
        x += QUADS * ROWS;
    }
    UNROLL for (unsigned r = 0; r < ROWS; r++)
    {
        out[r] = sum[r];
    }
}

INLINE void gemv_chan(unsigned tiles, const call *call, vec out[])
{
    const vec *w[TILES];
    const uint64_t *x = call->x.codes;
    constants none = constants_of(CHAN, (const vec *) call->tile);
    vec sum[TILES];
    UNROLL for (unsigned t = 0; t < tiles; t++)
    {
        w[t] = (const vec *) (call->tile + t * call->tile_bytes) + HEADS(CHAN);
        OPAQUE(w[t]);
        sum[t] = splat((uint32_t) *call->x.total);
    }
    for (uint32_t step = 0; step < call->steps; step++) {
        UNROLL for (unsigned t = 0; t < tiles; t++)
        {
            sum[t] = add_quads_of_tile(CHAN, 0, w[t], x, &none, 0, QUADS, sum[t]);
            w[t] += STEP_VECTORS(CHAN, 0);
        }
        x += QUADS;
    }
    UNROLL for (unsigned t = 0; t < tiles; t++)
    {
        out[t] = sum[t];
    }
}

static void tiles(const call *call, vec out[])
{
    gemv_chan(TILES, call, out);
}

static void tile(const call *call, vec out[])
{
    gemv_chan(1, call, out);
}

const kernels npurt_kernels_chan = {rows, tiles, tile};
