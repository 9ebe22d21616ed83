/*
 * The pass over a state: all that grows with its size.  One token's update and the next one's
 * products are made in it together, so that a state is loaded and stored once.
 *
 *   S = S / 2^shift + d k     of the token before; shift by lane
 *   h = round(S / 2^16), two rows to a lane; U += h . k, W += h . q; greatest and least h.
 *
 * |h| <= 2^14 + 1, k and q so small that 32 rows fit (delta_prepare.h); then U / 4 goes to a total.
 * Gates: before they are stored, rows are divided by 2^shift of their own.
 */
#ifndef NPURT_DELTA_PASSES_H
#define NPURT_DELTA_PASSES_H

#include "delta_lanes.h"

enum {
    MOST_BLOCKS = 4,    /* along v */
    PAIRS = 32,         /* of rows, in a pair of vectors along k */
    SEGMENT_PAIRS = 16, /* that are added up in 32 bits */
};

/* What a token leaves for the next one to do; by block, but k. */
typedef struct {
    const vec *k; /* words of two rows */
    const vec *d, *shift;
} pending;

/* What a pass finds, by block. */
typedef struct {
    vec u[MOST_BLOCKS], w[MOST_BLOCKS]; /* totals, quarters of sums of halves */
    vec greatest[MOST_BLOCKS], least[MOST_BLOCKS];
} found;

/* Block b of `blocks`, which is what `s` points to in the first pair. */
INLINE void pass_pairs(const pending *before, vec *s, unsigned blocks, unsigned b, unsigned parts,
                       const uint64_t *kq, const uint32_t *row_shift, found *to)
{
    const uint32_t *k = (const uint32_t *) before->k;
    vec d = before->d[b], shift = before->shift[b];
    vec greatest = Q6_V_vzero(), least = greatest, total_u = greatest, total_w = greatest;
    for (unsigned segment = 0; segment < parts * PAIRS / SEGMENT_PAIRS; segment++) {
        vec u = Q6_V_vzero(), w = u;
        PIPELINE
        for (unsigned pair = 0; pair < SEGMENT_PAIRS; pair++) {
            vec_pair rows =
                Q6_W_vcombine_VV(Q6_Vw_vasr_VwVw(s[1], shift), Q6_Vw_vasr_VwVw(s[0], shift));
            rows = Q6_Ww_vmpyacc_WwVhRh(rows, d, (int32_t) *k++);
            s[0] = Q6_V_lo_W(rows);
            s[1] = Q6_V_hi_W(rows);
            if (row_shift) {
                s[0] = Q6_Vw_vasr_VwR(s[0], (int32_t) row_shift[0]);
                s[1] = Q6_Vw_vasr_VwR(s[1], (int32_t) row_shift[PAIRS]);
                row_shift++;
            }
            vec h = Q6_Vh_vround_VwVw_sat(s[1], s[0]);
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
    to->u[b] = total_u;
    to->w[b] = total_w;
    to->greatest[b] = greatest;
    to->least[b] = least;
}

static void pass_block(const pending *before, vec *s, unsigned blocks, unsigned b, unsigned parts,
                       const uint64_t *kq, const uint32_t *row_shift, found *to)
{
    row_shift ? pass_pairs(before, s, blocks, b, parts, kq, row_shift, to)
              : pass_pairs(before, s, blocks, b, parts, kq, NULL, to);
}

#endif
