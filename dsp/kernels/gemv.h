/* One row of x times several tiles of w; see product.h. */
#ifndef NPURT_GEMV_H
#define NPURT_GEMV_H

#include "product.h"

INLINE vec add_quads_of_tile(kind kind, int fresh, const vec *w, const uint64_t *x,
                             const constants *c, unsigned first, unsigned count, vec sum)
{
    UNROLL for (unsigned quad = first; quad < first + count; quad++)
    {
        columns part = unpack(kind, w, quad, c);
        sum = fresh && quad == first ? dot_first(part, x[quad]) : dot(sum, part, x[quad]);
    }
    return sum;
}

INLINE vec block_sum(kind kind, const vec *w, const uint64_t *x, const constants *c, unsigned first,
                     unsigned count)
{
    vec start = c->start[first >= QUADS / 2];
    if (kind == WIDE) {
        vec high = add_quads_of_tile(kind, 1, w, x, c, first, count, start);
        w += CODE_VECTORS(BYTE);
        vec low = add_quads_of_tile(kind, 0, w, x, c, first, count, start);
        return Q6_Vw_vaslacc_VwVwR(low, high, 8);
    }
    return add_quads_of_tile(kind, kind == NIB, w, x, c, first, count, start);
}

INLINE void gemv(kind kind, int offsets, unsigned tiles, const call *call, vec out[])
{
    enum { MOST = 4, PARTS = 2 };
    const vec *w[MOST];
    constants c = constants_of(kind, (const vec *) call->tile);
    const uint64_t *x = call->x.codes;
    const uint32_t *record = call->x.record;
    const uint32_t *zero = (const uint32_t *) call->x.zero;
    vec acc[MOST];
    UNROLL for (unsigned t = 0; t < tiles; t++)
    {
        w[t] = (const vec *) (call->tile + t * call->tile_bytes) + HEADS(kind);
        OPAQUE(w[t]);
        acc[t] = Q6_V_vzero();
    }
    for (uint32_t step = 0; step < call->steps; step++) {
        vec z = splat(*zero);
        UNROLL for (unsigned t = 0; t < tiles; t++)
        {
            vec a[PARTS], b[PARTS];
            unsigned parts = kind == HALF ? 2 : 1, count = QUADS / 2 / parts;
            UNROLL for (unsigned i = 0; i < parts; i++)
            {
                a[i] = block_sum(kind, w[t], x, &c, i * count, count);
                b[i] = block_sum(kind, w[t], x, &c, QUADS / 2 + i * count, count);
            }
            vec g = step_product(kind, offsets, a, b, w[t] + CODE_VECTORS(kind), record, z);
            acc[t] = Q6_Vw_vasracc_VwVwR(acc[t], g, (int32_t) call->shift);
            w[t] += STEP_VECTORS(kind, offsets);
        }
        x += QUADS;
        record += RECORD;
        zero += NPURT_VECTOR / sizeof(uint32_t);
    }
    UNROLL for (unsigned t = 0; t < tiles; t++)
    {
        out[t] = acc[t];
    }
}

#endif
