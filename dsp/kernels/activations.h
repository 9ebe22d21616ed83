/*
 * Quantised activations: x[row][column] = code * scale(row, column / 32) * 2^exponent(row).
 *
 * Rows are in panels of R = NPURT_PANEL rows, and the remaining rows in panels of R = 1 row.  A
 * panel has S = ceil(k / 64) steps of 64 columns and these parts, each padded to 128 bytes:
 *
 *   int32     exponent[R], total[R]         total: -128 times the sum of the row's codes
 *                                           if the row has one scale, else 0
 *   int8      codes[8 S][R][8]    -127..127; zeros beyond k
 *   uint32    record[S][R][4]     scale, 8 T, zero point of the first 16 columns, of the last 16;
 *                                 each a pair of int16: for the first and the second 32 columns
 *   vector    zero[S][R]          zero points of 32 columns: one pair of int16 in all lanes
 *
 * scale is 1..32767; the rounding error of a code is at most about half a scale. Zero points:
 * weights are multiplied as unsigned numbers, which are too large by 8 (in units of h, see
 * product.h).  The zero point corrects this: -8 times the sum of 32 codes, or -16 times the sum of
 * 16 codes for kernels with a scale for each 16.  T = sum of 32 codes * scale / 2^15 multiplies the
 * weights' offsets.
 */
#ifndef NPURT_ACTIVATIONS_H
#define NPURT_ACTIVATIONS_H

#include "hvx_base.h"

enum { SCALE, SUMS, ZERO_FIRST, ZERO_LAST, RECORD }; /* words of a record, and their number */

typedef struct {
    int32_t *exponent;
    int32_t *total;
    uint64_t *codes;  /* [8 S][R] */
    uint32_t *record; /* [S][R][RECORD] */
    vec *zero;        /* [S][R] */
} panel;

INLINE uint32_t steps_of(uint32_t k)
{
    return (k + NPURT_STEP - 1) / NPURT_STEP;
}

INLINE size_t panel_bytes(uint32_t rows, uint32_t k)
{
    size_t count = (size_t) rows * steps_of(k);
    return NPURT_VECTOR + padded(count * NPURT_STEP) + padded(count * RECORD * sizeof(uint32_t)) +
           count * NPURT_VECTOR;
}

/* Return the panel of `rows` rows at this address. */
INLINE panel panel_there(const char *there, uint32_t rows, uint32_t k)
{
    size_t count = (size_t) rows * steps_of(k);
    char *at = (char *) there;
    panel p = {.exponent = (int32_t *) at, .total = (int32_t *) at + rows};
    at += NPURT_VECTOR;
    p.codes = (uint64_t *) at;
    at += padded(count * NPURT_STEP);
    p.record = (uint32_t *) at;
    at += padded(count * RECORD * sizeof(uint32_t));
    p.zero = (vec *) at;
    return p;
}

/* Return the panel that begins with `row`: a multiple of NPURT_PANEL, or a remaining row. */
INLINE panel panel_at(const void *activations, uint32_t row, uint32_t rows, uint32_t k)
{
    const char *at = activations;
    at += row / NPURT_PANEL * panel_bytes(NPURT_PANEL, k);
    return panel_there(at + row % NPURT_PANEL * panel_bytes(1, k), rows, k);
}

#endif
