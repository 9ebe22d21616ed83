/*
 * Numbers in lanes, for the delta net.  A number has a signed mantissa of 31 bits, which need not
 * be normalised, and an exponent with the bias of a float:
 *
 *   value = mantissa * 2^(exponent - 157)
 *
 * In a sum of exponents, only one term has the bias.
 */
#ifndef NPURT_DELTA_LANES_H
#define NPURT_DELTA_LANES_H

#include "hvx_base.h"

/* For long functions with many constants.  If such a function is inlined in a loop, the compiler
 * computes the constants before the loop and stores them on the stack: a third more packets. */
#define NOINLINE static __attribute__((noinline))

typedef struct {
    vec mantissa, exponent;
} number;

INLINE vec add(vec a, vec b)
{
    return Q6_Vw_vadd_VwVw(a, b);
}

INLINE vec sub(vec a, vec b)
{
    return Q6_Vw_vsub_VwVw(a, b);
}

INLINE vec less(vec a, vec b)
{
    return Q6_Vw_vmin_VwVw(a, b);
}

INLINE vec more(vec a, vec b)
{
    return Q6_Vw_vmax_VwVw(a, b);
}

/* Return a b / 2^31, rounded to nearest, halves up. */
INLINE vec mul(vec a, vec b)
{
    return Q6_Vw_vmpyoacc_VwVwVh_s1_rnd_sat_shift(Q6_Vw_vmpye_VwVuh(a, b), a, b);
}

/* Return a / 2^shift, rounded down; a negative shift, at least -32, shifts left. */
INLINE vec shifted(vec a, vec shift)
{
    return Q6_Vw_vasr_VwVw(a, less(shift, splat(31)));
}

INLINE vec magnitude_of(vec bits)
{
    return Q6_V_vand_VV(bits, splat(0x7fffffff));
}

/* Return the biased exponents of float32 magnitudes. */
INLINE vec exponent_of(vec magnitude)
{
    return Q6_Vuw_vlsr_VuwR(magnitude, 23);
}

INLINE vec mantissa_of(vec magnitude)
{
    return Q6_V_vor_VV(Q6_V_vand_VV(magnitude, splat(0x7fffff)), splat(0x800000));
}

INLINE vec with_sign_of(vec magnitude, vec bits)
{
    vec sign = Q6_Vw_vasr_VwR(bits, 31);
    return sub(Q6_V_vxor_VV(magnitude, sign), sign);
}

/* Return the value of float32 bits as a number; magnitudes below 2^-126 become 0. */
INLINE number number_of(vec bits)
{
    vec magnitude = magnitude_of(bits);
    vec exponent = exponent_of(magnitude);
    HVX_VectorPred normal = Q6_Q_vcmp_gt_VwVw(exponent, Q6_V_vzero());
    vec mantissa = with_sign_of(Q6_Vw_vasl_VwR(mantissa_of(magnitude), 7), bits);
    return (number) {Q6_V_vand_QV(normal, mantissa), exponent};
}

/* Return both mantissas in the larger of their two units; set *exponent to the exponent of this
 * unit. */
INLINE vec_pair aligned(number a, number b, vec *exponent)
{
    *exponent = more(a.exponent, b.exponent);
    vec x = shifted(a.mantissa, sub(*exponent, a.exponent));
    vec y = shifted(b.mantissa, sub(*exponent, b.exponent));
    return Q6_W_vcombine_VV(y, x);
}

/* Return (a + b) / 2. */
INLINE number half_sum(number a, number b)
{
    number sum;
    vec_pair both = aligned(a, b, &sum.exponent);
    sum.mantissa = Q6_Vw_vavg_VwVw(Q6_V_lo_W(both), Q6_V_hi_W(both));
    return sum;
}

/* Return (a - b) / 2. */
INLINE number half_difference(number a, number b)
{
    number difference;
    vec_pair both = aligned(a, b, &difference.exponent);
    difference.mantissa = Q6_Vw_vnavg_VwVw(Q6_V_lo_W(both), Q6_V_hi_W(both));
    return difference;
}

/* Return the float32 bits of 2 a, rounded to 24 bits, halves up; infinite or 0 beyond float32's
 * range. */
INLINE vec float_of_twice(number a)
{
    vec magnitude = Q6_Vw_vabs_Vw(a.mantissa);
    vec shift = Q6_Vw_vnormamt_Vw(magnitude);
    vec normal = add(Q6_Vw_vasl_VwVw(magnitude, shift), splat(64));
    vec bits = Q6_Vuw_vlsr_VuwR(normal, 7); /* 2^23..2^24; its leading one adds 1 to the exponent */
    vec below = less(more(sub(a.exponent, shift), splat((uint32_t) -2)), splat(254));
    bits = Q6_Vw_vadd_VwVw_sat(bits, Q6_Vw_vasl_VwR(below, 23));
    HVX_VectorPred tiny = Q6_Q_vcmp_eq_VwVw(magnitude, Q6_V_vzero());
    tiny = Q6_Q_vcmp_gtor_QVwVw(tiny, splat(1 << 23), bits);
    bits = Q6_V_vmux_QVV(tiny, Q6_V_vzero(), less(bits, splat(0x7f800000)));
    return Q6_V_vor_VV(bits, Q6_V_vand_VV(a.mantissa, splat(0x80000000u)));
}

#endif
