/*
 * Advances a head by one token: the pass over the state, then operations on lanes.
 *
 *   u, w    gain S k and gain S q;  d = beta (v - u);  out = scale (w + (k.q) d)
 *   update  the pass of the next token adds d k.  d is rounded to 16 bits, so that products d k
 *           have the unit of the state's integers.  The unit of a lane depends on its greatest |S|
 *           and |d|, so that |S| + |d k| < 2^30.
 */
#ifndef NPURT_DELTA_ADVANCE_H
#define NPURT_DELTA_ADVANCE_H

#include "delta_loops.h"
#include "delta_prepare.h"

/* Inputs and outputs of the lanes of a block. */
typedef struct {
    found found;       /* input */
    vec v, exponent;   /* inputs; `exponent` becomes the new exponent */
    vec d, shift, out; /* outputs */
} block;

/* Return an upper bound of |S|: upper half the greatest |h|, lower half ones. */
INLINE vec most_of(vec greatest, vec least)
{
    vec most = Q6_Vh_vmax_VhVh(greatest, Q6_V_vnot_V(least));
    most = Q6_Vh_vmax_VhVh(most, Q6_Vh_vshuffe_VhVh(most, most));
    return Q6_V_vor_VV(most, splat((1 << HALF_ROWS) - 1));
}

/*
 * Set the block's exponent to the least with |S| + |d k| < 2^30 and |d| < 2^15, which preserves the
 * most bits of S and d; set its d and shift.  The exponent of `d` is that of the products d k.
 */
INLINE void update_block(block *of, number d, vec exponent)
{
    number rows = {most_of(of->found.greatest, of->found.least), exponent};
    number most = {Q6_V_vor_VV(Q6_Vw_vabs_Vw(d.mantissa), splat(1)),
                   add(d.exponent, splat(ELEMENT_BITS))};
    number both = half_sum(rows, most);
    vec room = Q6_Vw_vnormamt_Vw(add(both.mantissa, splat(2))); /* + 2 rounds up */
    vec coming = sub(both.exponent, room);
    coming = more(coming, sub(most.exponent, Q6_Vw_vnormamt_Vw(most.mantissa)));
    of->exponent = add(coming, splat(2));
    of->shift = less(sub(of->exponent, exponent), splat(31));
    vec twice = shifted(d.mantissa, sub(sub(of->exponent, d.exponent), splat(1)));
    twice = Q6_Vw_vavg_VwVw_rnd(twice, Q6_V_vzero());
    of->d = Q6_Vh_vsat_VwVw(twice, twice);
}

INLINE void advance_block(block *of, int gates, const item *by)
{
    vec exponent = sub(of->exponent, by->step);
    number u = {gates ? of->found.u : mul(of->found.u, by->u_gain), add(exponent, by->u_exponent)};
    number error = half_difference(number_of(of->v), u);
    vec d = mul(error.mantissa, by->beta);
    vec divided = gates ? d : mul(error.mantissa, by->divided);
    update_block(of, (number) {divided, add(error.exponent, by->products_exponent)}, exponent);
    number w = {mul(of->found.w, by->w_gain), add(exponent, by->w_exponent)};
    number more_of_d = {mul(d, by->dot), add(error.exponent, by->dot_exponent)};
    of->out = float_of_twice(half_sum(w, more_of_d));
}

/* Advance `count` blocks from b on.  All reads precede all writes, so the compiler interleaves
 * blocks. */
INLINE void advance_blocks(const state *of, unsigned b, unsigned count, int gates, const item *by,
                           const found *found, vec *worst)
{
    block block[2];
    UNROLL
    for (unsigned i = 0; i < count; i++) {
        block[i].found = found[i];
        block[i].v = by->v[b + i];
        block[i].exponent = of->exponent[b + i];
    }
    vec most = *worst;
    UNROLL
    for (unsigned i = 0; i < count; i++) {
        most = more(most, magnitude_of(block[i].v));
        advance_block(&block[i], gates, by);
    }
    *worst = most;
    UNROLL
    for (unsigned i = 0; i < count; i++) {
        of->d[b + i] = block[i].d;
        of->shift[b + i] = block[i].shift;
        of->exponent[b + i] = block[i].exponent;
        by->out[b + i] = block[i].out;
    }
}

/* Run the pass over blocks b and b + 1 of a head with one gain, and advance them. */
NOINLINE void advance_two(const item *by, unsigned blocks, unsigned b, unsigned parts, vec *worst)
{
    state of = state_at(by->state, blocks, parts);
    found found[2];
    pass_two_blocks(&of, by->k_before, blocks, b, parts, (const uint64_t *) by->kq, found);
    advance_blocks(&of, b, 2, 0, by, found, worst);
}

NOINLINE void advance_one(const item *by, unsigned blocks, unsigned b, unsigned parts, int gates,
                          vec *worst)
{
    state of = state_at(by->state, blocks, parts);
    const uint64_t *kq = (const uint64_t *) by->kq;
    const uint32_t *shift = (const uint32_t *) by->shift;
    found found;
    pass_block(&of, by->k_before, blocks, b, parts, kq, gates ? shift : NULL, &found);
    gates ? advance_blocks(&of, b, 1, 1, by, &found, worst)
          : advance_blocks(&of, b, 1, 0, by, &found, worst);
}

/* Advance the state of a head by one token. */
static void advance(const item *by, unsigned blocks, unsigned parts, int gates, vec *worst)
{
    unsigned b = 0;
    for (; !gates && b + 2 <= blocks; b += 2) {
        advance_two(by, blocks, b, parts, worst);
    }
    for (; b < blocks; b++) {
        advance_one(by, blocks, b, parts, gates, worst);
    }
    vec *k = state_at(by->state, blocks, parts).k;
    k[0] = by->k[0];
    k[parts - 1] = by->k[parts - 1];
}

#endif
