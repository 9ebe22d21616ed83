/*
 * Converts sums to float32, times a power of two for each lane and row.
 *
 * The conversion builds the bits from integers: it normalises the magnitude to 31 bits, rounds it
 * to 24 bits (halves up), and lets the leading one carry into the exponent.  Zero becomes zero.  If
 * the scales of a tile or row are so large or small that a result might leave float32's normal
 * range, lanes are converted one by one: values that are too large become infinite, too small
 * values 0.
 */
#ifndef NPURT_EPILOGUE_H
#define NPURT_EPILOGUE_H

#include "product.h"

enum { BIAS = 156 }; /* of exponents; one less than 157, because the leading one adds 1 */

/*
 * Return the float32 bits of sum * 2^e; `exponent` is (e + BIAS) << 23.  A packet holds only one
 * shift (hvx_base.h), so a multiplication by 2^8 / 2^15 replaces the shift that rounds.
 */
INLINE vec to_float(vec sum, vec exponent)
{
    vec magnitude = Q6_Vw_vabs_Vw(sum);
    vec shift = Q6_Vw_vnormamt_Vw(magnitude);
    vec normal = Q6_Vw_vasl_VwVw(magnitude, shift);
    vec bits = Q6_Vw_vmpyo_VwVh_s1_rnd_sat(normal, splat(1 << 24));
    exponent = Q6_Vw_vsub_VwVw(exponent, Q6_Vw_vasl_VwR(shift, 23));
    HVX_VectorPred is_zero = Q6_Q_vcmp_eq_VwVw(sum, Q6_V_vzero());
    bits = Q6_Vw_condacc_QnVwVw(is_zero, bits, exponent);
    return Q6_V_vor_VV(bits, Q6_V_vand_VV(sum, splat(0x80000000u)));
}

/*
 * For PER_CHANNEL, multiply the sum by the mantissas of w's and x's scales, both Q15.  The sum is
 * normalised first, and the shift is subtracted from the exponents.
 */
INLINE void scale_row(vec *sum, vec *exponent, vec w_scale, uint32_t x_scale)
{
    vec shift = Q6_Vw_vnormamt_Vw(*sum);
    vec product = Q6_Vw_vmpyo_VwVh_s1_rnd_sat(Q6_Vw_vasl_VwVw(*sum, shift), w_scale);
    *sum = Q6_Vw_vmpyo_VwVh_s1_rnd_sat(product, splat(x_scale));
    *exponent = Q6_Vw_vsub_VwVw(*exponent, Q6_Vw_vasl_VwR(shift, 23));
}

/* Write up to 32 results of any range; `exponent` is added to the exponents in `lanes`. */
void npurt_write_slowly(float *y, uint32_t count, vec sum, vec lanes, int32_t exponent);

/* Return whether all results of these tiles are normal: no exponent is beyond a limit. */
INLINE int normal(const job *job, const char *tile, unsigned tiles)
{
    int32_t least = INT32_MAX, greatest = INT32_MIN;
    UNROLL
    for (unsigned t = 0; t < tiles; t++, tile += job->tile_bytes) {
        const int32_t *range = (const int32_t *) (tile + HEAD_RANGE * NPURT_VECTOR);
        least = range[0] < least ? range[0] : least;
        greatest = range[1] > greatest ? range[1] : greatest;
    }
    uint32_t below = (uint32_t) least - (uint32_t) job->least;
    uint32_t above = (uint32_t) job->greatest - (uint32_t) greatest;
    return (int32_t) (below | above) >= 0;
}

/*
 * Convert `count` sums and write them to y.  If `rows` is not 0, they are the sums of the next tile
 * and rows 0..count-1; otherwise of the next `count` tiles and row 0.  If there are several tiles,
 * all must have 32 columns.  A last tile with fewer columns is written to `spare` first.  So the
 * function has one branch, and the compiler interleaves the code before the branch.
 */
INLINE void finish(kind kind, int rows, unsigned count, const job *job, const place *at,
                   const vec sums[])
{
    enum { MOST = 4 };
    vec sum[MOST], exponent[MOST], bits[MOST], spare[MOST];
    UNROLL
    for (unsigned i = 0; i < count; i++) {
        const vec *heads = (const vec *) (at->tile + (rows ? 0 : i) * job->tile_bytes);
        sum[i] = sums[i];
        exponent[i] = heads[HEAD_EXPONENT];
        if (kind == PER_CHANNEL) {
            uint32_t scale = job->x.record[(rows ? i : 0) * RECORD + SCALE];
            scale_row(&sum[i], &exponent[i], heads[HEAD_OTHER], scale);
        }
        vec of_row = job->shifted_exponent[rows ? i : 0];
        bits[i] = to_float(sum[i], Q6_Vw_vadd_VwVw(exponent[i], of_row));
    }
    const unsigned tiles = rows ? 1 : count;
    const int fit = tiles > 1 || at->n >= NPURT_TILE;
    const int done = fit & normal(job, at->tile, tiles);
    char *y = (char *) at->y, *to = fit ? y : (char *) spare;
    size_t next = rows ? job->y_stride : NPURT_VECTOR;
    UNROLL
    for (unsigned i = 0; i < count; i++) {
        *(unaligned_vec *) (to + i * (fit ? next : NPURT_VECTOR)) = bits[i];
    }
    if (done) {
        return;
    }
    for (unsigned i = 0; i < count; i++) {
        uint32_t left = at->n - (rows ? 0 : i) * NPURT_TILE;
        npurt_write_slowly((float *) (y + i * next), left, sum[i], exponent[i],
                           job->exponent + job->x.exponent[rows ? i : 0]);
    }
}

/* Advance by `count` tiles. */
INLINE void pass(place *at, unsigned count, uint32_t tile_bytes)
{
    at->tile += count * tile_bytes;
    at->tiles -= count;
    at->y += count * NPURT_TILE;
    at->n -= count * NPURT_TILE;
}

#endif
