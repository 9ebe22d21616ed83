/*
 * The products of the DSP's kernels (dsp/kernels/product.h), computed by the host's CPU with the
 * same bits.  cffi reads this header.
 *
 * For a step of 64 columns, h is a sum of products of codes, and g is h times both scales:
 *
 *   h  = (sum + 2^(dropped - 1) - half) >> dropped       half: 0 in the first 32 columns, else 1
 *   g  = h * round(scale of w * scale of x / 2^15) + offsets
 *   y  = sum over steps of (sum of g >> shift) * 2^(exponents + 15 + shift)
 *
 * shift is ceil(log2(number of steps)).  With one scale for a whole row of w, y is the sum of
 * products times both scales.
 */
#ifndef NPURT_HEXAGON_HOST_H
#define NPURT_HEXAGON_HOST_H

#include <stdint.h>

#ifdef __GNUC__
#define NPURT_API __attribute__((visibility("default")))
#else
#define NPURT_API
#endif

/* A weight.  groups is the number of scales for 32 columns: 1 or 2; 0: one scale for a row. */
typedef struct {
    const void *codes;        /* [n][columns]: int16 if wide, else int8 */
    const int16_t *scales;    /* [n][columns / 32 * groups], or [n] */
    const int16_t *offsets;   /* like scales, or NULL */
    const int32_t *exponents; /* [n] */
    int32_t n, columns;       /* columns is a multiple of 64; zeros pad rows */
    int32_t wide, groups, dropped;
} npurt_host_weight;

/* Rows of activations, rounded to codes of 8 bits. */
typedef struct {
    const int16_t *codes;     /* [m][columns] */
    const int16_t *scales;    /* [m][columns / 32] */
    const int16_t *sums;      /* [m][columns / 32 * groups], the factors of offsets:
                               * groups = 1: sum of codes * scale / 2^12, rounded;
                               * groups = 2: -16 * sum of codes */
    const int32_t *exponents; /* [m] */
    int32_t m;
} npurt_host_rows;

/* Write the columns first..end-1 of y = x @ w.T; a row of y has stride elements. */
NPURT_API void npurt_host_multiply(const npurt_host_weight *w, const npurt_host_rows *x, float *y,
                                   int64_t stride, int32_t first, int32_t end);

#endif
