/*
 * Sums to float32, times a power of two for each lane.
 *
 * The bits are put together by hand: normalise the magnitude to 31 bits, round it to 24 (halves
 * up), and let the leading one carry into the exponent.  Zero stays zero.  Where a tile's scales or
 * a row's are so large or small that a result might leave float32's normal range, lanes go one by
 * one: what is too large becomes infinite, what is too small 0.
 */
#ifndef NPURT_EPILOGUE_H
#define NPURT_EPILOGUE_H

#include "product.h"

enum {
    BIAS = 156,             /* exponent of float32, less one for the leading one that is added */
    LEAST_EXPONENT = -123,  /* results are normal when every lane's exponent is */
    GREATEST_EXPONENT = 96, /* within these */
};

/* 32 results to be: sum[i] * 2^(exponent of lane i + exponent). */
typedef struct {
    vec sum;
    vec lanes;        /* as HEAD_EXPONENT */
    int32_t exponent; /* of the row */
    float *y;
} result;

/* Without its sign, to float32's 24 bits: the leading one at bit 23. */
INLINE vec mantissa(vec normal)
{
    return Q6_Vuw_vlsr_VuwR(Q6_Vw_vadd_VwVw(normal, splat(64)), 7);
}

INLINE vec to_float(const result *of)
{
    vec magnitude = Q6_Vw_vabs_Vw(of->sum);
    vec shift = Q6_Vw_vnormamt_Vw(magnitude);
    vec bits = mantissa(Q6_Vw_vasl_VwVw(magnitude, shift));
    vec exponent = Q6_Vw_vadd_VwVw(of->lanes, splat((uint32_t) of->exponent << 23));
    exponent = Q6_Vw_vsub_VwVw(exponent, Q6_Vw_vasl_VwR(shift, 23));
    HVX_VectorPred is_zero = Q6_Q_vcmp_eq_VwVw(of->sum, Q6_V_vzero());
    bits = Q6_Vw_condacc_QnVwVw(is_zero, bits, exponent);
    return Q6_V_vor_VV(bits, Q6_V_vand_VV(of->sum, splat(0x80000000u)));
}

/* One lane, of any range. */
static uint32_t float_bits(int32_t sum, int32_t exponent)
{
    if (sum == 0) {
        return 0;
    }
    uint32_t sign = sum < 0 ? 0x80000000u : 0;
    uint32_t magnitude = sum < 0 ? 0u - (uint32_t) sum : (uint32_t) sum;
    int32_t shift = __builtin_clz(magnitude) - 1;
    uint32_t bits = ((magnitude << shift) + 64) >> 7;
    int32_t biased = exponent + BIAS - shift + (int32_t) (bits >> 23);
    if (biased > 254) {
        return sign | 0x7f800000u;
    }
    return biased < 1 ? sign : sign | (uint32_t) biased << 23 | (bits & 0x7fffffu);
}

static __attribute__((noinline)) vec to_float_slowly(const result *of)
{
    lanes sum = {.all = of->sum}, exponent = {.all = of->lanes}, bits;
    for (unsigned i = 0; i < NPURT_TILE; i++) {
        int32_t lane = (exponent.lane[i] >> 23) - BIAS;
        bits.lane[i] = (int32_t) float_bits(sum.lane[i], lane + of->exponent);
    }
    return bits.all;
}

INLINE int all_normal(const result *of, const int32_t range[2])
{
    return of->exponent + range[0] >= LEAST_EXPONENT &&
           of->exponent + range[1] <= GREATEST_EXPONENT;
}

#endif
