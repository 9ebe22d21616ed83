/* Multiplies one row of x by several tiles of w; see product.h. */
#ifndef NPURT_GEMV_H
#define NPURT_GEMV_H

#include "../fetch.h"
#include "epilogue.h"

enum { TILES = 4 }; /* number of tiles that are multiplied together */

INLINE vec add_quads_of_tile(kind kind, int fresh, const vec *w, const uint64_t *x,
                             const constants *c, unsigned first, unsigned count, vec sum)
{
    UNROLL
    for (unsigned quad = first; quad < first + count; quad++) {
        columns part = unpack(kind, w, quad, c);
        sum = fresh && quad == first ? dot_first(part, x[quad]) : dot(sum, part, x[quad]);
    }
    return sum;
}

INLINE vec block_sum(kind kind, const vec *w, const uint64_t *x, const constants *c, unsigned first,
                     unsigned count)
{
    vec start = c->start[first >= QUADS / 2];
    if (kind == Q16) {
        vec high = add_quads_of_tile(kind, 1, w, x, c, first, count, start);
        w += CODE_VECTORS(Q8);
        vec low = add_quads_of_tile(kind, 0, w, x, c, first, count, start);
        return Q6_Vw_vaslacc_VwVwR(low, high, 8);
    }
    return add_quads_of_tile(kind, kind == Q4, w, x, c, first, count, start);
}

/* Return the product of one step of a tile. */
INLINE vec gemv_step(kind kind, int offsets, const vec *w, const uint64_t *x,
                     const uint32_t *record, vec zero, const constants *c)
{
    enum { PARTS = 2 };
    vec a[PARTS], b[PARTS];
    unsigned parts = kind == Q8_G16 ? 2 : 1, count = QUADS / 2 / parts;
    UNROLL
    for (unsigned i = 0; i < parts; i++) {
        a[i] = block_sum(kind, w, x, c, i * count, count);
        b[i] = block_sum(kind, w, x, c, QUADS / 2 + i * count, count);
    }
    return step_product(kind, offsets, a, b, w + CODE_VECTORS(kind), record, zero);
}

/* Multiply all steps of TILES tiles.  w[tile] points to the first step; the sum is stored in
 * acc[tile]. */
typedef void row_loop(const vec *w[], const job *job, const constants *c, vec acc[]);

/* Multiply the next `count` tiles.  If `count` > 1, all of them must have 32 columns of y.  If
 * `loop` is not NULL, use it. */
INLINE void gemv_tiles(kind kind, int offsets, row_loop *loop, unsigned count, const job *job,
                       place *at, const constants *c)
{
    const vec *w[TILES];
    const uint64_t *x = job->x.codes;
    const uint32_t *record = job->x.record;
    const uint32_t *zero = (const uint32_t *) job->x.zero;
    vec acc[TILES];
    UNROLL
    for (unsigned t = 0; t < count; t++) {
        w[t] = (const vec *) (at->tile + t * job->tile_bytes) + HEADS(kind);
        if (!loop) {
            OPAQUE(w[t]);
        }
        acc[t] = kind == PER_CHANNEL ? splat((uint32_t) *job->x.total) : Q6_V_vzero();
    }
    if (loop) {
        loop(w, job, c, acc);
    }
    for (uint32_t step = 0; step < job->steps && !loop; step++) {
        vec z = splat(*zero);
        UNROLL
        for (unsigned t = 0; t < count; t++) {
            if (kind == PER_CHANNEL) {
                acc[t] = add_quads_of_tile(kind, 0, w[t], x, c, 0, QUADS, acc[t]);
            } else {
                vec g = gemv_step(kind, offsets, w[t], x, record, z, c);
                acc[t] = Q6_Vw_vasracc_VwVwR(acc[t], g, (int32_t) job->shift);
            }
            w[t] += STEP_VECTORS(kind, offsets);
        }
        x += QUADS;
        record += RECORD;
        zero += NPURT_VECTOR / sizeof(*zero);
    }
    finish(kind, 0, count, job, at, acc);
    pass(at, count, job->tile_bytes);
}

INLINE void gemv(kind kind, int offsets, row_loop *loop, const job *job)
{
    place at = job->first;
    constants c = constants_of(kind, (const vec *) at.tile);
    const uint32_t together = TILES * job->tile_bytes; /* local: stores to y cannot alias it */
    while (at.tiles >= TILES && at.n >= TILES * NPURT_TILE) {
        if (at.tiles > TILES) {
            fetch(at.tile + together, together);
        }
        gemv_tiles(kind, offsets, loop, TILES, job, &at, &c);
    }
    while (at.tiles) {
        gemv_tiles(kind, offsets, NULL, 1, job, &at, &c);
    }
}

#endif
