/*
 * The two passes over a state: all that grows with its size.
 *
 * read    h = round(S / 2^16), two rows to a lane; U += h . k, W += h . q; greatest and least h.
 *         |h| <= 2^14 + 1, k and q so small that 32 rows fit (delta_prepare.h); then U / 4 goes
 *         to a total.
 * update  S = S / 2^shift + d k, shift by lane.
 *
 * GATES: rows are divided by 2^shift of their own before anything else.
 */
#ifndef NPURT_DELTA_PASSES_H
#define NPURT_DELTA_PASSES_H

#include "delta_lanes.h"

enum {
    MOST_BLOCKS = 4,    /* along v */
    PAIRS = 32,         /* of rows, in a pair of vectors along k */
    SEGMENT_PAIRS = 16, /* that are added up in 32 bits */
};

/* What reading finds, by block. */
typedef struct {
    vec u[MOST_BLOCKS], w[MOST_BLOCKS]; /* totals, quarters of sums of halves */
    vec greatest[MOST_BLOCKS], least[MOST_BLOCKS];
} found;

INLINE void clear(found *to, unsigned blocks)
{
    UNROLL
    for (unsigned b = 0; b < blocks; b++) {
        to->u[b] = to->w[b] = to->greatest[b] = to->least[b] = Q6_V_vzero();
    }
}

/* A row, divided by its own power of two where there are some. */
INLINE vec row_of(const vec *row, const uint32_t *shift)
{
    return shift ? Q6_Vw_vasr_VwR(*row, (int32_t) *shift) : *row;
}

/* Read block b of `blocks`, which is what `s` points to in the first pair. */
INLINE void read_pairs(const vec *s, unsigned blocks, unsigned b, unsigned parts,
                       const uint64_t *kq, const uint32_t *shift, found *to)
{
    vec greatest = Q6_V_vzero(), least = greatest, total_u = greatest, total_w = greatest;
    for (unsigned segment = 0; segment < parts * PAIRS / SEGMENT_PAIRS; segment++) {
        vec u = Q6_V_vzero(), w = u;
        PIPELINE
        for (unsigned pair = 0; pair < SEGMENT_PAIRS; pair++) {
            vec h = Q6_Vh_vround_VwVw_sat(row_of(s + 1, shift ? shift + PAIRS : NULL),
                                          row_of(s, shift));
            u = Q6_Vw_vdmpyacc_VwVhRh_sat(u, h, (int32_t) low_word(*kq));
            w = Q6_Vw_vdmpyacc_VwVhRh_sat(w, h, (int32_t) high_word(*kq));
            greatest = Q6_Vh_vmax_VhVh(greatest, h);
            least = Q6_Vh_vmin_VhVh(least, h);
            s += 2 * blocks;
            kq++;
            shift += shift ? 1 : 0;
        }
        total_u = Q6_Vw_vasracc_VwVwR(total_u, u, 2);
        total_w = Q6_Vw_vasracc_VwVwR(total_w, w, 2);
        shift += shift && segment % 2 ? PAIRS : 0;
    }
    to->u[b] = total_u;
    to->w[b] = total_w;
    to->greatest[b] = greatest;
    to->least[b] = least;
}

INLINE void update_pairs(vec *s, unsigned blocks, unsigned parts, const uint32_t *k,
                         const uint32_t *row_shift, vec shift, vec d)
{
    for (unsigned part = 0; part < parts; part++) {
        PIPELINE
        for (unsigned pair = 0; pair < PAIRS; pair++) {
            vec low = Q6_Vw_vasr_VwVw(row_of(s, row_shift), shift);
            vec high = Q6_Vw_vasr_VwVw(row_of(s + 1, row_shift ? row_shift + PAIRS : NULL), shift);
            vec_pair both = Q6_Ww_vmpyacc_WwVhRh(Q6_W_vcombine_VV(high, low), d, (int32_t) *k++);
            s[0] = Q6_V_lo_W(both);
            s[1] = Q6_V_hi_W(both);
            s += 2 * blocks;
            row_shift += row_shift ? 1 : 0;
        }
        row_shift += row_shift ? PAIRS : 0;
    }
}

static void read_block(const vec *s, unsigned blocks, unsigned b, unsigned parts,
                       const uint64_t *kq, const uint32_t *shift, found *to)
{
    shift ? read_pairs(s, blocks, b, parts, kq, shift, to)
          : read_pairs(s, blocks, b, parts, kq, NULL, to);
}

static void update_rows(vec *s, unsigned blocks, unsigned parts, const uint32_t *k,
                        const uint32_t *row_shift, vec shift, vec d)
{
    row_shift ? update_pairs(s, blocks, parts, k, row_shift, shift, d)
              : update_pairs(s, blocks, parts, k, NULL, shift, d);
}

#endif
