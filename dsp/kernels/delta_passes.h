/*
 * The pass over a state, the only work whose time depends on the size of the state.  A pass makes
 * the update of one token and the products of the next token, so it loads and stores the state
 * once.
 *
 *   S = S / 2^shift + d k     d, k and shift of the previous token; a shift for each lane
 *   h = round(S / 2^16), two rows to a lane; U += h . k, W += h . q; greatest and least h.
 *
 * |h| <= 2^14 + 1.  k and q are so small that sums over 32 rows fit (delta_prepare.h).  After 32
 * rows, U / 4 and W / 4 are added to totals.  Gates: each row is divided by its own 2^shift before
 * the store.
 */
#ifndef NPURT_DELTA_PASSES_H
#define NPURT_DELTA_PASSES_H

#include "delta_lanes.h"

enum {
    PAIRS = 32,         /* pairs of rows in a pair of vectors along k */
    SEGMENT_PAIRS = 16, /* pairs of rows whose products are added in 32 bits */
};

/* A head's state in memory (delta.h). */
typedef struct {
    vec *integers, *k, *d, *shift, *exponent, *gain;
} state;

INLINE state state_at(vec *at, unsigned blocks, unsigned parts)
{
    state of = {.integers = at};
    of.k = of.integers + 2 * PAIRS * parts * blocks;
    of.d = of.k + parts;
    of.shift = of.d + blocks;
    of.exponent = of.shift + blocks;
    of.gain = of.exponent + blocks;
    return of;
}

/* The results of a pass over a block. */
typedef struct {
    vec u, w; /* totals, quarters of sums of halves */
    vec greatest, least;
} found;

/* Run the pass over block b of `blocks`; `k_before` is the k of the previous token. */
INLINE void pass_pairs(const state *of, const vec *k_before, unsigned blocks, unsigned b,
                       unsigned parts, const uint64_t *kq, const uint32_t *row_shift, found *to)
{
    const uint32_t *k = (const uint32_t *) k_before;
    vec *s = of->integers + 2 * b, d = of->d[b], shift = of->shift[b];
    vec greatest = Q6_V_vzero(), least = greatest, total_u = greatest, total_w = greatest;
    for (unsigned segment = 0; segment < parts * PAIRS / SEGMENT_PAIRS; segment++) {
        vec u = Q6_V_vzero(), w = u;
        PIPELINE
        for (unsigned pair = 0; pair < SEGMENT_PAIRS; pair++) {
            vec first = Q6_Vw_vasr_VwVw(s[0], shift), second = Q6_Vw_vasr_VwVw(s[1], shift);
            vec_pair rows = Q6_W_vcombine_VV(second, first);
            rows = Q6_Ww_vmpyacc_WwVhRh(rows, d, (int32_t) *k++);
            first = Q6_V_lo_W(rows);
            second = Q6_V_hi_W(rows);
            if (row_shift) {
                first = Q6_Vw_vasr_VwR(first, (int32_t) row_shift[0]);
                second = Q6_Vw_vasr_VwR(second, (int32_t) row_shift[PAIRS]);
                row_shift++;
            }
            s[0] = first;
            s[1] = second;
            vec h = Q6_Vh_vround_VwVw_sat(second, first);
            u = Q6_Vw_vdmpyacc_VwVhRh_sat(u, h, (int32_t) low_word(*kq));
            w = Q6_Vw_vdmpyacc_VwVhRh_sat(w, h, (int32_t) high_word(*kq));
            greatest = Q6_Vh_vmax_VhVh(greatest, h);
            least = Q6_Vh_vmin_VhVh(least, h);
            s += 2 * blocks;
            kq++;
        }
        total_u = Q6_Vw_vasracc_VwVwR(total_u, u, 2);
        total_w = Q6_Vw_vasracc_VwVwR(total_w, w, 2);
        row_shift += row_shift && segment % 2 ? PAIRS : 0;
    }
    *to = (found) {total_u, total_w, greatest, least};
}

static void pass_block(const state *of, const vec *k, unsigned blocks, unsigned b, unsigned parts,
                       const uint64_t *kq, const uint32_t *row_shift, found *to)
{
    row_shift ? pass_pairs(of, k, blocks, b, parts, kq, row_shift, to)
              : pass_pairs(of, k, blocks, b, parts, kq, NULL, to);
}

#endif
