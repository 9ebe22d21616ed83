/*
 * Computes the part of a token of a head that does not depend on the state: gains after their
 * decay, q and k as integers, and the factors of lanes.
 *
 *   k, q    integers of at most 2^14 times a power of two.  |k| of 32 rows adds up to less than
 *           2^17, so that sums of products with |h| <= 2^14 fit (delta_passes.h).  Elements below
 *           2^-24 of the greatest become 0.
 *   gates   k and q are multiplied by gain before they are rounded; the k of the update is divided
 *           by gain.  A row is shifted when its gain leaves its range.
 */
#ifndef NPURT_DELTA_PREPARE_H
#define NPURT_DELTA_PREPARE_H

#include "delta_passes.h"

enum {
    MOST_PARTS = 2,    /* pairs of vectors along k */
    LEAST_TOP = 40,    /* biased exponent: q and k below 2^-87 are 0 */
    OPERAND_BITS = 17, /* bits of sums of a segment */
    ELEMENT_BITS = 14, /* bits of an element */
    MANTISSA_BITS = 24,
    HALF_ROWS = 16,   /* log2: h is S / 2^16 */
    QUARTER_SUMS = 2, /* log2: totals are quarters */
};

/* A token of a head, without its state.  Exponents are added to those of lanes. */
typedef struct {
    vec kq[2 * MOST_PARTS];    /* for each pair of rows of the state: a word of k, one of q */
    vec k[MOST_PARTS];         /* words of k, for the update */
    vec shift[2 * MOST_PARTS]; /* gates: shifts of rows in addition to `step` */
    vec step;                  /* shift of all rows, because of their gains */
    vec u_gain, u_exponent;    /* factor of u */
    vec w_gain, w_exponent;    /* factor of w, includes `scale` */
    vec beta, divided;         /* factors of the error that give d, and d / gain */
    vec products_exponent;     /* of products of d / gain with integers of k */
    vec dot, dot_exponent;     /* factor of d: scale k.q; includes beta's exponent */
    vec *state, *out;
    const vec *v;
    const vec *k_before; /* the k of the previous token, in its item or in the state */
} item;

/* --- e^decay
 * ------------------------------------------------------------------------------------ */

/* 2^(g / 2) = 1 + g (c0 + g (c1 + ...)) in Q30 for g in Q31, with an error below 4e-9; fitted by
 * least squares, with weights that equalise the error. */
INLINE vec power_of_two(vec g)
{
    static const int32_t c[] = {372130563, 64485313, 7449563, 645455, 44932, 2595};
    vec sum = splat((uint32_t) c[5]);
    UNROLL
    for (int i = 4; i >= 0; i--) {
        sum = add(mul(sum, g), splat((uint32_t) c[i]));
    }
    return add(mul(sum, g), splat(1 << 30));
}

/* Set *gain and *step so that old gain * e^decay = *gain / 2^*step, with *gain in its range. */
INLINE void decay_by(vec decay, vec *gain, vec *step)
{
    number x = number_of(decay);
    vec y = mul(x.mantissa, splat(1549082005));              /* log2(e) / 2 */
    vec bits = less(sub(x.exponent, splat(125)), splat(11)); /* of y before the point */
    vec whole = shifted(y, sub(splat(30), bits));
    whole = Q6_Vw_vavg_VwVw_rnd(whole, Q6_V_vzero());
    vec part = Q6_Vw_vasl_VwVw(y, more(add(bits, splat(1)), splat((uint32_t) -31)));
    vec wide = mul(*gain, power_of_two(part));
    vec normal = Q6_Vw_vnormamt_Vw(wide);
    *gain = Q6_Vw_vasl_VwVw(wide, normal);
    *step = sub(normal, add(whole, splat(1)));
}

/* Return 2^61 / gain in Q30, with an error below 2e-5: a line whose error is at most 1/17, then two
 * Newton steps y += y (1 - gain y). */
INLINE vec inverse_of(vec gain)
{
    vec y = sub(splat(3031741621u), mul(gain, splat(2021161080)));
    UNROLL
    for (int i = 0; i < 2; i++) {
        vec error = sub(splat(1 << 30), mul(gain, y));
        y = Q6_Vw_vadd_VwVw_sat(y, mul(y, Q6_Vw_vasl_VwR(error, 1)));
    }
    return y;
}

/* --- q and k
 * ------------------------------------------------------------------------------------ */

INLINE vec rotated(vec a, int bytes)
{
    return Q6_V_vror_VR(a, bytes);
}

/* Interleave the words of a and b; the low vector has the words of their first halves. */
INLINE vec_pair interleaved(vec a, vec b)
{
    return Q6_W_vshuff_VVR(b, a, -4);
}

/* Separate words of a and b that alternate: the low vector has those of a, the high one of b. */
INLINE vec_pair apart(vec ab)
{
    return Q6_W_vdeal_VVR(ab, ab, -4);
}

/* Return a vector with the greatest lane of a in every lane, and such a vector for b. */
INLINE vec_pair greatest_of(vec a, vec b)
{
    vec_pair both = interleaved(a, b);
    vec most = more(Q6_V_lo_W(both), Q6_V_hi_W(both));
    UNROLL
    for (int bytes = 8; bytes < (int) NPURT_VECTOR; bytes *= 2) {
        most = more(most, rotated(most, bytes));
    }
    return apart(most);
}

/* Return the greater of the sums of lanes 0..15 and 16..31 of a, in every lane; likewise for b. */
INLINE vec_pair greater_half(vec a, vec b)
{
    vec_pair both = interleaved(a, b);
    both = Q6_W_vshuff_VVR(Q6_V_hi_W(both), Q6_V_lo_W(both), -8);
    vec sum = add(Q6_V_lo_W(both), Q6_V_hi_W(both));
    UNROLL
    for (int bytes = 16; bytes < (int) NPURT_VECTOR; bytes *= 2) {
        sum = add(sum, rotated(sum, bytes));
    }
    return apart(more(sum, rotated(sum, 8)));
}

/* A vector of numbers that is converted to integers with a common unit. */
typedef struct {
    vec bits[2 * MOST_PARTS]; /* float32 */
    vec size[2 *
             MOST_PARTS];   /* magnitudes: mantissas of 24 bits, then in the unit of the greatest */
    vec top;                /* biased exponent of the greatest, in every lane */
    vec narrow[MOST_PARTS]; /* integers, two to a word */
    vec exponent;           /* of the unit of the integers */
} operand;

INLINE void load(operand *x, const vec *from, unsigned parts)
{
    UNROLL
    for (unsigned i = 0; i < 2 * parts; i++) {
        x->bits[i] = from[i];
        x->size[i] = mantissa_of(from[i]);
    }
}

INLINE vec greatest_magnitude(const operand *x, unsigned parts)
{
    vec most = magnitude_of(x->bits[0]);
    UNROLL
    for (unsigned i = 1; i < 2 * parts; i++) {
        most = more(most, magnitude_of(x->bits[i]));
    }
    return most;
}

/* Shift all magnitudes to the unit of the greatest; return sums of two, the maximum of the
 * parts. */
INLINE vec aligned_sums(operand *x, unsigned parts)
{
    vec sums[MOST_PARTS];
    UNROLL
    for (unsigned i = 0; i < 2 * parts; i++) {
        vec below = sub(x->top, exponent_of(magnitude_of(x->bits[i])));
        x->size[i] = Q6_Vw_vlsr_VwVw(x->size[i], less(below, splat(31)));
    }
    UNROLL
    for (unsigned p = 0; p < parts; p++) {
        sums[p] = add(x->size[2 * p], x->size[2 * p + 1]);
    }
    return parts == 1 ? sums[0] : more(sums[0], sums[1]);
}

/* Round the magnitudes to units so large that all sums fit; `sum` is the greatest sum. */
INLINE void narrow(operand *x, vec sum, unsigned parts)
{
    sum = add(add(sum, Q6_Vuw_vlsr_VuwR(sum, 12)), splat(1)); /* rounding adds up to 16 */
    vec shift = sub(splat(31 - OPERAND_BITS), Q6_Vw_vnormamt_Vw(sum));
    shift = more(shift, splat(MANTISSA_BITS - ELEMENT_BITS));
    vec half = Q6_Vw_vasl_VwVw(splat(1), sub(shift, splat(1)));
    vec size[2 * MOST_PARTS];
    UNROLL
    for (unsigned i = 0; i < 2 * parts; i++) {
        size[i] = Q6_Vw_vlsr_VwVw(add(x->size[i], half), shift);
    }
    UNROLL
    for (unsigned p = 0; p < parts; p++) {
        vec sign = Q6_Vh_vshuffo_VhVh(x->bits[2 * p + 1], x->bits[2 * p]);
        sign = Q6_Vh_vasr_VhR(sign, 15);
        vec both = Q6_Vh_vshuffe_VhVh(size[2 * p + 1], size[2 * p]);
        x->narrow[p] = Q6_Vh_vsub_VhVh(Q6_V_vxor_VV(both, sign), sign);
    }
    x->exponent = add(x->top, sub(shift, splat(150)));
}

/* Return a.b / 4, in every lane. */
INLINE vec dot_of(const operand *a, const operand *b, unsigned parts)
{
    vec sum = Q6_Vw_vdmpy_VhVh_sat(a->narrow[0], b->narrow[0]);
    if (parts > 1) {
        sum = Q6_Vw_vdmpyacc_VwVhVh_sat(sum, a->narrow[1], b->narrow[1]);
    }
    sum = Q6_Vw_vasr_VwR(sum, QUARTER_SUMS);
    UNROLL
    for (int bytes = 4; bytes < (int) NPURT_VECTOR; bytes *= 2) {
        sum = add(sum, rotated(sum, bytes));
    }
    return sum;
}

/* The inputs and the prepared item of one token of a head. */
typedef struct {
    const vec *q, *k;
    const float *beta, *decay;
    vec *gain;
} source;

INLINE void narrow_both(operand *a, operand *b, unsigned parts)
{
    vec_pair sums = greater_half(aligned_sums(a, parts), aligned_sums(b, parts));
    narrow(a, Q6_V_lo_W(sums), parts);
    narrow(b, Q6_V_hi_W(sums), parts);
}

INLINE vec word_of(const float *at)
{
    return splat(*(const uint32_t *) at);
}

/* Prepare the item of one token; *worst becomes the greatest magnitude of all inputs so far. */
INLINE void prepare(const source *from, unsigned parts, int gates, number scale, item *to,
                    vec *worst)
{
    operand k, q, divided;
    vec gain = *from->gain;
    load(&k, from->k, parts);
    load(&q, from->q, parts);
    vec_pair tops = greatest_of(greatest_magnitude(&k, parts), greatest_magnitude(&q, parts));
    vec worst_decay = magnitude_of(word_of(from->decay));
    k.top = more(exponent_of(Q6_V_lo_W(tops)), splat(LEAST_TOP));
    q.top = more(exponent_of(Q6_V_hi_W(tops)), splat(LEAST_TOP));
    if (gates) {
        divided = k;
        vec step[2 * MOST_PARTS], least = splat(INT32_MAX);
        UNROLL
        for (unsigned i = 0; i < 2 * parts; i++) {
            gain = from->gain[i];
            vec decay = ((const vec *) from->decay)[i];
            worst_decay = more(worst_decay, magnitude_of(decay));
            decay_by(decay, &gain, &step[i]);
            from->gain[i] = gain;
            least = less(least, step[i]);
            k.size[i] = mul(k.size[i], gain);
            q.size[i] = mul(q.size[i], gain);
            divided.size[i] = mul(divided.size[i], inverse_of(gain));
        }
        UNROLL
        for (int bytes = 4; bytes < (int) NPURT_VECTOR; bytes *= 2) {
            least = less(least, rotated(least, bytes));
        }
        to->step = least;
        UNROLL
        for (unsigned i = 0; i < 2 * parts; i++) {
            to->shift[i] = less(sub(step[i], least), splat(31));
        }
        narrow_both(&divided, &q, parts);
        vec sums = aligned_sums(&k, parts);
        narrow(&k, Q6_V_lo_W(greater_half(sums, sums)), parts);
        divided.exponent = add(divided.exponent, splat(1));
    } else {
        decay_by(word_of(from->decay), &gain, &to->step);
        *from->gain = gain;
        narrow_both(&k, &q, parts);
        divided = k;
    }
    vec others = more(worst_decay, magnitude_of(word_of(from->beta)));
    *worst = more(more(*worst, others), more(Q6_V_lo_W(tops), Q6_V_hi_W(tops)));
    UNROLL
    for (unsigned p = 0; p < parts; p++) {
        vec_pair words = interleaved(k.narrow[p], q.narrow[p]);
        to->kq[2 * p] = Q6_V_lo_W(words);
        to->kq[2 * p + 1] = Q6_V_hi_W(words);
        to->k[p] = divided.narrow[p];
    }
    number beta = number_of(word_of(from->beta));
    vec of_beta =
        sub(beta.exponent, splat(157 - 31 - 1)); /* exponent of beta times half an error */
    to->beta = beta.mantissa;
    to->divided = gates ? beta.mantissa : mul(beta.mantissa, inverse_of(gain));
    to->products_exponent = add(add(of_beta, divided.exponent), splat(gates ? 0 : 1));
    to->u_gain = gain;
    to->u_exponent = add(k.exponent, splat(HALF_ROWS + QUARTER_SUMS));
    to->w_gain = gates ? scale.mantissa : mul(gain, scale.mantissa);
    vec of_q = add(q.exponent, sub(scale.exponent, splat(157 - 31 - QUARTER_SUMS)));
    to->w_exponent = add(of_q, splat(HALF_ROWS));
    to->dot = mul(dot_of(&divided, &q, parts), scale.mantissa);
    to->dot_exponent = add(add(of_beta, splat(31)), add(of_q, divided.exponent));
}

#endif
