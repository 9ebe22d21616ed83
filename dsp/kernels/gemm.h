/* Multiplies four rows of x by one tile of w; see product.h. */
#ifndef NPURT_GEMM_H
#define NPURT_GEMM_H

#include "../fetch.h"
#include "epilogue.h"
#include "panel_loop.h"

enum { ROWS = NPURT_PANEL };

/* A load can address 8 vectors before and 7 after its pointer, so pointers into the middle of a
 * step save additions.  The offset changes the compiled loop.  These offsets, chosen from
 * 0, 4, 6 and 8, give the fewest packets on v68 and v73. */
#define REACH(kind, offsets) ((kind) == Q4 ? ((offsets) ? 4 : 0) : (kind) == Q8_G16 ? 6 : 8)

/* Multiply each row r by `count` quads from `first`.  Add the result to sum[r]; if `fresh`, replace
 * sum[r]. */
INLINE void add_quads(kind kind, int fresh, const vec *w, const uint64_t *x, const constants *c,
                      unsigned first, unsigned count, vec sum[ROWS])
{
    UNROLL
    for (unsigned quad = first; quad < first + count; quad++) {
        columns part = unpack(kind, w, quad, c);
        UNROLL
        for (unsigned r = 0; r < ROWS; r++) {
            uint64_t codes = x[quad * ROWS + r];
            sum[r] = fresh && quad == first ? dot_first(part, codes) : dot(sum[r], part, codes);
        }
    }
}

/* Compute the sums of add_quads, with a start value that makes the narrowing round.  For 16-bit
 * codes, combine the sums of both bytes. */
INLINE void block_sums(kind kind, const vec *w, const uint64_t *x, const constants *c,
                       unsigned first, unsigned count, vec sum[ROWS])
{
    UNROLL
    for (unsigned r = 0; r < ROWS; r++) {
        sum[r] = c->start[first >= QUADS / 2];
    }
    add_quads(kind, kind == Q4, w + (kind == Q16 ? CODE_VECTORS(Q8) : 0), x, c, first, count, sum);
    if (kind == Q16) {
        vec high[ROWS];
        add_quads(kind, 1, w, x, c, first, count, high);
        UNROLL
        for (unsigned r = 0; r < ROWS; r++) {
            sum[r] = Q6_Vw_vaslacc_VwVwR(sum[r], high[r], 8);
        }
    }
}

/* Add the products of one step (64 columns) to acc. */
INLINE void gemm_step(kind kind, int offsets, const vec *w, const uint64_t *x,
                      const uint32_t *record, const vec *zero, const constants *c, uint32_t shift,
                      vec acc[ROWS])
{
    enum { PARTS = 2 };
    vec a[PARTS][ROWS], b[PARTS][ROWS];
    unsigned parts = kind == Q8_G16 ? 2 : 1, count = QUADS / 2 / parts;
    UNROLL
    for (unsigned i = 0; i < parts; i++) {
        block_sums(kind, w, x, c, i * count, count, a[i]);
        block_sums(kind, w, x, c, QUADS / 2 + i * count, count, b[i]);
    }
    UNROLL
    for (unsigned r = 0; r < ROWS; r++) {
        vec first[PARTS] = {a[0][r], a[parts - 1][r]}, last[PARTS] = {b[0][r], b[parts - 1][r]};
        vec g = step_product(kind, offsets, first, last, w + CODE_VECTORS(kind),
                             record + r * RECORD, zero[r]);
        acc[r] = Q6_Vw_vasracc_VwVwR(acc[r], g, (int32_t) shift);
    }
}

INLINE void gemm(kind kind, int offsets, const job *job)
{
    constants c = constants_of(kind, (const vec *) job->first.tile);
    const uint32_t tile_bytes = job->tile_bytes; /* local: stores to y cannot alias it */
    vec start[ROWS];
    UNROLL
    for (unsigned r = 0; r < ROWS; r++) {
        start[r] = kind == PER_CHANNEL ? splat((uint32_t) job->x.total[r]) : Q6_V_vzero();
    }
    for (place at = job->first; at.tiles; pass(&at, 1, tile_bytes)) {
        const vec *middle = (const vec *) at.tile + HEADS(kind) + REACH(kind, offsets);
        const uint64_t *x = job->x.codes;
        const uint32_t *record = job->x.record;
        const vec *zero = job->x.zero;
        vec acc[ROWS];
        if (at.tiles > 1) {
            fetch(at.tile + tile_bytes, tile_bytes);
        }
        UNROLL
        for (unsigned r = 0; r < ROWS; r++) {
            acc[r] = start[r];
        }
        if (kind == PER_CHANNEL) {
            per_channel_loop(middle - REACH(kind, offsets), job, acc);
        }
        for (uint32_t step = 0; step < job->steps && kind != PER_CHANNEL; step++) {
            const vec *w = middle - REACH(kind, offsets);
            gemm_step(kind, offsets, w, x, record, zero, &c, job->shift, acc);
            middle += STEP_VECTORS(kind, offsets);
            x += QUADS * ROWS;
            record += ROWS * RECORD;
            zero += ROWS;
        }
        finish(kind, 1, ROWS, job, &at, acc);
    }
}

#endif
