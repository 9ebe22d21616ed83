/*
 * A gated delta net whose state is integers; results are equal to those of a Hexagon bit for bit.
 *
 * So a host that takes over from a lost Hexagon continues each sequence with the same tokens.
 *
 * The arithmetic is that of dsp/kernels/delta.h, which gives the reasons.  The order of the work
 * differs: this code processes one row of v at a time, with its integers along k, and updates the
 * row immediately, while a Hexagon updates it when it processes the next token.  A `number` is a
 * mantissa (31 bits and a sign) and the exponent of its unit, both int64_t, so no sum overflows.
 */
#include "npurt_cpu.h"
#include <math.h>
#include <string.h>

enum {
    WIDEST = NPURT_MOST_DELTA,
    HALF = 1 << 15,        /* half of 2^16, the unit of the upper 16 bits of an integer */
    PRODUCT_SHIFT = 16 + 2 /* log2 of the unit of u and w: integers / 2^16, sums / 4 */
};

typedef struct {
    int64_t mantissa, exponent;
} number;

/* The factors of one token of a head that do not depend on the integers of the state. */
typedef struct {
    int16_t k[WIDEST], q[WIDEST]; /* factors of products with rows */
    int16_t update[WIDEST];       /* k; with one gain per column, k / gain */
    int8_t shift[WIDEST];         /* shift of each column, in addition to `step` */
    int64_t k_exponent, q_exponent, update_exponent, step;
    int64_t gain, divided; /* with one gain per head: the gain, and beta / gain */
    int64_t dot;           /* scale * (update . q) */
    number beta, scale;
} factors;

/* --- Numbers ---------------------------------------------------------------------------------- */

static int64_t mul(int64_t a, int64_t b) /* a b / 2^31 to nearest, halves up */
{
    return (a * b + (1 << 30)) >> 31;
}

static int64_t shifted(int64_t a, int64_t by) /* a / 2^by, rounded down; by >= -63 */
{
    return by >= 0 ? a >> (by < 31 ? by : 31) : (int64_t) ((uint64_t) a << -by);
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int bits_of(int64_t a) /* number of bits of a > 0 */
{
    return 64 - __builtin_clzll((uint64_t) a);
}

static int64_t headroom(int64_t a) /* left shift of a > 0 to 31 bits; 0 if a is 0 */
{
    return a ? 31 - bits_of(a) : 0;
}

/* Returns the magnitude of x in units of 2^*exponent; 0 below 2^-126. */
static int64_t magnitude(float x, int64_t *exponent)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int64_t biased = bits >> 23 & 255;
    *exponent = biased - 150;
    return biased ? (bits & 0x7fffff) | 0x800000 : 0;
}

static number number_of(float x)
{
    number of;
    of.mantissa = magnitude(x, &of.exponent) * (signbit(x) ? -128 : 128);
    of.exponent -= 7;
    return of;
}

/* Returns a + sign * b, in twice the coarser of their units. */
static number half_sum(number a, number b, int64_t sign)
{
    const int64_t unit = larger(a.exponent, b.exponent);
    const int64_t x = shifted(a.mantissa, unit - a.exponent);
    const int64_t y = shifted(b.mantissa, unit - b.exponent);
    return (number){(x + sign * y) >> 1, unit + 1};
}

/* Rounds to float32, halves away from zero; infinite if too large, 0 below 2^-126. */
static float float_of(number a)
{
    const int64_t size = a.mantissa < 0 ? -a.mantissa : a.mantissa, up = headroom(size);
    int64_t rounded = ((size << up) + 64) >> 7, exponent = a.exponent - up + 7 + 150;
    if (rounded == 1 << 24) {
        rounded >>= 1;
        exponent++;
    }
    uint32_t bits = 0;
    if (size && exponent > 0) {
        bits = exponent < 255 ? (uint32_t) exponent << 23 | ((uint32_t) rounded & 0x7fffff)
                              : 0x7f800000u;
    }
    bits |= a.mantissa < 0 ? 0x80000000u : 0;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* --- The factors of a token ------------------------------------------------------------------- */

/* Sets *gain, and returns the step, such that old gain * e^decay = *gain / 2^step. */
static int64_t decay_by(float decay, int64_t *gain)
{
    static const int64_t c[] = {372130563, 64485313, 7449563,
                                645455,    44932,    2595}; /* delta_prepare.h */
    const number x = number_of(decay);
    const int64_t y = mul(x.mantissa, 1549082005);       /* log2(e) / 2 */
    const int64_t before = smaller(x.exponent + 32, 11); /* bits of y before the binary point */
    const int64_t whole = (shifted(y, 30 - before) + 1) >> 1;
    const int64_t part = (int32_t) shifted(y, -larger(before + 1, -31));
    int64_t power = c[5];
    for (int i = 4; i >= 0; i--) {
        power = mul(power, part) + c[i];
    }
    const int64_t wide = mul(*gain, mul(power, part) + (1 << 30)), up = headroom(wide);
    *gain = wide << up;
    return up - whole - 1;
}

static int64_t inverse(int64_t gain) /* 2^61 / gain, with a relative error of 2e-5 */
{
    int64_t y = 3031741621 - mul(gain, 2021161080);
    for (int i = 0; i < 2; i++) {
        const int64_t error = (1 << 30) - mul(gain, y);
        y = smaller(y + mul(y, 2 * error), INT32_MAX);
    }
    return y;
}

/*
 * Writes x * factor / 2^31 (x if `factor` is NULL) as integers; returns the exponent of their unit.
 * The magnitudes of 32 integers whose products are added up sum to less than 2^17.
 */
static int64_t integers_of(const float *x, const int64_t *factor, int64_t width, int16_t *out)
{
    int64_t size[WIDEST] = {0}, exponent[WIDEST], top = 40 - 150;
    for (int64_t i = 0; i < width; i++) {
        size[i] = magnitude(x[i], &exponent[i]);
        size[i] = factor ? mul(size[i], factor[i]) : size[i];
        top = larger(top, exponent[i]);
    }
    for (int64_t i = 0; i < width; i++) {
        size[i] >>= smaller(top - exponent[i], 31);
    }
    int64_t sums[2] = {0, 0};
    for (int j = 0; j < 32; j++) {
        sums[j / 16] += larger(size[j] + size[j + 32], size[j + 64] + size[j + 96]);
    }
    const int64_t most = larger(sums[0], sums[1]);
    const int64_t shift = larger(bits_of(most + (most >> 12) + 1) - 17, 10);
    for (int64_t i = 0; i < width; i++) {
        const int64_t rounded = (size[i] + ((int64_t) 1 << (shift - 1))) >> shift;
        out[i] = (int16_t) (signbit(x[i]) ? -rounded : rounded);
    }
    return top + shift;
}

/* Returns a . b / 4; products of columns that are 32 apart are added before the division. */
static int64_t quarter_dot(const int16_t *a, const int16_t *b)
{
    int64_t sum = 0;
    for (int j = 0; j < 32; j++) {
        sum +=
            (a[j] * b[j] + a[j + 32] * b[j + 32] + a[j + 64] * b[j + 64] + a[j + 96] * b[j + 96]) >>
            2;
    }
    return sum;
}

/* Writes the factors of a token to `to`, and the gains after the decay to the state. */
static void prepare(const npurt_integer_delta *net, int64_t token, int64_t head, int32_t *state,
                    factors *to)
{
    const int64_t w = net->width, at = token * net->heads + head;
    const int64_t share = net->heads / net->k_heads;
    const int64_t k_head = net->grouped ? head / share : head % net->k_heads;
    const float *q = net->q + (token * net->k_heads + k_head) * w;
    const float *k = net->k + (token * net->k_heads + k_head) * w;
    const float *decay = net->decay + at * net->decays;
    int64_t gain[WIDEST], inverses[WIDEST], steps[WIDEST];
    *to = (factors){0};
    to->step = INT64_MAX;
    for (int64_t i = 0; i < net->decays; i++) {
        gain[i] = state[i * (w + 2) + w + 1];
        steps[i] = decay_by(decay[i], &gain[i]);
        to->step = smaller(to->step, steps[i]);
    }
    for (int64_t i = 0; i < w; i++) {
        const int64_t own = net->decays > 1 ? i : 0;
        state[i * (w + 2) + w + 1] = (int32_t) gain[own];
        inverses[i] = inverse(gain[own]);
        to->shift[i] = (int8_t) smaller(steps[own] - to->step, 31);
    }
    const int64_t *factor = net->decays > 1 ? gain : NULL;
    to->k_exponent = integers_of(k, factor, w, to->k);
    to->q_exponent = integers_of(q, factor, w, to->q);
    to->beta = number_of(net->beta[at]);
    to->scale = number_of(net->scale);
    to->gain = gain[0];
    if (factor) {
        to->update_exponent = integers_of(k, inverses, w, to->update) + 1;
        to->divided = to->beta.mantissa;
    } else {
        memcpy(to->update, to->k, sizeof to->k);
        to->update_exponent = to->k_exponent;
        to->divided = mul(to->beta.mantissa, inverses[0]);
    }
    to->dot = mul(quarter_dot(to->update, to->q), to->scale.mantissa);
}

/* --- A row of v ------------------------------------------------------------------------------- */

/* The results of a pass over a row: dot products with k and q, and an upper bound of |integers|. */
typedef struct {
    int64_t u, w, most;
} found;

static found read_row(const factors *by, const int32_t *row, int64_t width)
{
    int16_t h[WIDEST] = {0};
    int16_t greatest = 0, least = 0;
    for (int64_t i = 0; i < width; i++) {
        h[i] = (int16_t) ((row[i] + HALF) >> 16);
        greatest = h[i] > greatest ? h[i] : greatest;
        least = h[i] < least ? h[i] : least;
    }
    found of = {0, 0, (larger(greatest, ~least) << 16) | 0xffff};
    for (int part = 0; part < WIDEST; part += 64) {
        for (int half = part; half < part + 32; half += 16) {
            int32_t u = 0, w = 0;
            for (int i = half; i < half + 16; i++) {
                u += h[i] * by->k[i] + h[i + 32] * by->k[i + 32];
                w += h[i] * by->q[i] + h[i + 32] * by->q[i + 32];
            }
            of.u += u >> 2;
            of.w += w >> 2;
        }
    }
    return of;
}

/* Returns the exponent with which integers of at most `most`, updated by `change`, fit. */
static int64_t exponent_after(int64_t most, int64_t exponent, number change)
{
    const int64_t size = (change.mantissa < 0 ? -change.mantissa : change.mantissa) | 1;
    const int64_t unit = change.exponent + 14;
    const number both = half_sum((number){most, exponent}, (number){size, unit}, 1);
    return larger(both.exponent - 1 - headroom(both.mantissa + 2), unit - headroom(size)) + 2;
}

/* Advances a row [width + 2] of the state by a token, with its element of v; returns out. */
static float advance_row(const factors *by, int64_t width, int one_gain, float v, int32_t *row)
{
    const int64_t exponent = row[width] - by->step;
    if (!one_gain) {
        for (int64_t i = 0; i < width; i++) {
            row[i] >>= by->shift[i];
        }
    }
    found of = read_row(by, row, width);
    if (one_gain) {
        of.u = mul(of.u, by->gain);
    }
    const int64_t w_gain = one_gain ? mul(by->gain, by->scale.mantissa) : by->scale.mantissa;
    const number u = {of.u, exponent + by->k_exponent + PRODUCT_SHIFT};
    const number error = half_sum(number_of(v), u, -1);
    const int64_t unit = error.exponent + by->beta.exponent + 31;
    const number change = {mul(error.mantissa, by->divided), unit + by->update_exponent + one_gain};
    const int64_t after = exponent_after(of.most, exponent, change);
    int64_t d = (shifted(change.mantissa, after - change.exponent - 1) + 1) >> 1;
    d = smaller(larger(d, INT16_MIN), INT16_MAX);
    const int64_t shift = after - exponent;
    for (int64_t i = 0; i < width; i++) {
        row[i] = (int32_t) shifted(row[i], shift) + by->update[i] * (int16_t) d;
    }
    row[width] = (int32_t) after;
    const int64_t of_q = by->q_exponent + by->scale.exponent;
    const number old = {mul(of.w, w_gain), exponent + of_q + 31 + PRODUCT_SHIFT};
    const number new = {mul(mul(error.mantissa, by->beta.mantissa), by->dot),
                        unit + by->update_exponent + of_q + 2 + 62};
    return float_of(half_sum(old, new, 1));
}

void npurt_delta_integers(const npurt_integer_delta *net)
{
    const int64_t w = net->width, one_gain = net->decays == 1;
    for (int64_t head = 0; head < net->heads; head++) {
        int32_t *state = net->state + head * w * (w + 2);
        for (int64_t token = 0; token < net->tokens; token++) {
            const int64_t at = (token * net->heads + head) * w;
            factors by;
            prepare(net, token, head, state, &by);
            for (int64_t i = 0; i < w; i++) {
                net->out[at + i] =
                    advance_row(&by, w, (int) one_gain, net->v[at + i], state + i * (w + 2));
            }
        }
    }
}
