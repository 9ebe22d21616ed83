/* Products with the bits of the DSP's kernels: see npurt_hexagon_host.h.  Clang vectorises the sums
 * of products. */
#include "npurt_hexagon_host.h"
#include <math.h>
#include <stddef.h>

enum { BLOCK = 32, STEP = 64 };

/* Return a * b / 2^15, rounded to nearest, halves up. */
static inline int32_t multiply_q15(int64_t a, int64_t b)
{
    return (int32_t) ((a * b + (1 << 14)) >> 15);
}

static inline int32_t sum_bytes(const int8_t *w, const int16_t *x, int count)
{
    int32_t sum = 0;
    for (int i = 0; i < count; i++) {
        sum += w[i] * x[i];
    }
    return sum;
}

static inline int32_t sum_words(const int16_t *w, const int16_t *x, int count)
{
    int32_t sum = 0;
    for (int i = 0; i < count; i++) {
        sum += w[i] * x[i];
    }
    return sum;
}

/* Return sum * 2^exponent, rounded to 24 bits, halves away from 0.  A result below the normal
 * numbers becomes 0. */
static float to_float(int32_t sum, int exponent)
{
    uint32_t magnitude = sum < 0 ? -(uint32_t) sum : (uint32_t) sum;
    int spare = magnitude >> 24 ? 8 - __builtin_clz(magnitude) : 0; /* bits beyond 24 */
    if (spare) {
        magnitude = (magnitude + (1u << (spare - 1))) >> spare;
    }
    const double value = ldexp(magnitude, exponent + spare);
    return (float) copysign(value < 0x1p-126 ? 0 : value, sum);
}

/* A row of w, and a row of x. */
typedef struct {
    const int8_t *bytes; /* codes of w, or NULL */
    const int16_t *words;
    const int16_t *scales, *offsets, *x, *x_scales, *x_sums;
} operands;

/* Return g of a block of 32 columns.  wide and groups are constants of the caller, so that the
 * compiler makes a loop for each kind of weights. */
static inline int32_t block(const operands *o, int b, int wide, int groups, int dropped)
{
    const int count = BLOCK / groups;
    int32_t g = 0;
    for (int i = 0; i < groups; i++) {
        const int part = b * groups + i, at = part * count;
        int32_t h = wide ? sum_words(o->words + at, o->x + at, count)
                         : sum_bytes(o->bytes + at, o->x + at, count);
        if (dropped) {
            h = (h + (1 << (dropped - 1)) - b % 2) >> dropped;
        }
        g += h * multiply_q15(o->scales[part], o->x_scales[b]);
        if (o->offsets && groups == 2) {
            g += multiply_q15(o->offsets[part], o->x_scales[b]) * o->x_sums[part];
        } else if (o->offsets) {
            g += o->offsets[part] * o->x_sums[part];
        }
    }
    return g;
}

static inline float row(const operands *o, int steps, int exponent, int wide, int groups,
                        int dropped)
{
    int shift = 0;
    int32_t y = 0;
    while (1 << shift < steps) {
        shift++;
    }
    for (int s = 0; s < steps; s++) {
        const int32_t first = block(o, 2 * s, wide, groups, dropped);
        y += (first + block(o, 2 * s + 1, wide, groups, dropped)) >> shift;
    }
    return to_float(y, exponent + 15 + shift);
}

/* Return the sum of products times both scales.  The sum is shifted left first, so that the
 * roundings lose few bits. */
static float row_of_one_scale(const operands *o, int columns, int exponent)
{
    int32_t sum = sum_bytes(o->bytes, o->x, columns);
    for (; sum && sum >= -(1 << 30) && sum < 1 << 30; exponent--) {
        sum *= 2;
    }
    const int32_t scaled = multiply_q15(multiply_q15(sum, *o->scales), *o->x_scales);
    return to_float(scaled, exponent + 30);
}

static float product(const npurt_host_weight *w, const npurt_host_rows *x, int n, int m)
{
    const int64_t columns = w->columns, scales = w->groups ? columns / BLOCK * w->groups : 1;
    const operands o = {
        .bytes = (const int8_t *) w->codes + n * columns,
        .words = (const int16_t *) w->codes + n * columns,
        .scales = w->scales + n * scales,
        .offsets = w->offsets ? w->offsets + n * scales : NULL,
        .x = x->codes + m * columns,
        .x_scales = x->scales + m * (columns / BLOCK),
        .x_sums = x->sums + m * scales,
    };
    const int steps = w->columns / STEP, exponent = w->exponents[n] + x->exponents[m];
    if (w->wide) {
        return row(&o, steps, exponent, 1, 1, w->dropped);
    }
    switch (w->groups) {
    case 0:
        return row_of_one_scale(&o, w->columns, exponent);
    case 1:
        return w->dropped ? row(&o, steps, exponent, 0, 1, w->dropped)
                          : row(&o, steps, exponent, 0, 1, 0);
    default:
        return row(&o, steps, exponent, 0, 2, w->dropped);
    }
}

NPURT_API void npurt_host_multiply(const npurt_host_weight *w, const npurt_host_rows *x, float *y,
                                   int64_t stride, int32_t first, int32_t end)
{
    for (int32_t n = first; n < end; n++) {
        for (int32_t m = 0; m < x->m; m++) {
            y[m * stride + n] = product(w, x, n, m);
        }
    }
}
