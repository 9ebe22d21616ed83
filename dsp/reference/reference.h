/*
 * The kernels (kernels/kernels.h) in plain C, which compute one number at a time, for any
 * little-endian machine.  They are a readable definition of the kernels' results, to the bit.  No
 * skel contains this code.  It shares only the interface and the table of formats with the kernels.
 * docs/hexagon.md lists the comparisons.
 *
 * This file defines the same layout of quantised activations as kernels/activations.h.  A panel has
 * four rows; each remaining row is a panel of one row.  A panel has S steps of 64 columns and these
 * parts, each padded to 128 bytes: exponents and totals; codes [8 S][rows][8]; records
 * [S][rows][4], of pairs of int16; zero points [S][rows], each repeated 32 times.
 */
#ifndef NPURT_REFERENCE_H
#define NPURT_REFERENCE_H

#include "kernels/kernels.h"

enum { BLOCK = 32 };                                       /* columns that share a scale */
enum { SCALE, SUMS, ZERO_FIRST, ZERO_LAST, RECORD_WORDS }; /* words of a record */

/* Return a * b / 2^15, rounded to nearest, halves up. */
static inline int32_t q15(int32_t a, int32_t b)
{
    return (int32_t) (((int64_t) a * b + (1 << 14)) >> 15);
}

/* A row in a panel of `rows` rows.  The pointers point to the row's data of the first step. */
typedef struct {
    uint32_t rows;
    int32_t *exponent, *total;
    int8_t *codes;
    int16_t *record, *zero;
} row;

static inline uint32_t steps_of(uint32_t k)
{
    return (k + NPURT_STEP - 1) / NPURT_STEP;
}

static inline size_t padded(size_t nbytes)
{
    return (nbytes + NPURT_VECTOR - 1) / NPURT_VECTOR * NPURT_VECTOR;
}

static inline row row_of(const void *activations, uint32_t i, uint32_t m, uint32_t k)
{
    uint32_t rows = i < m / NPURT_PANEL * NPURT_PANEL ? NPURT_PANEL : 1;
    uint32_t r = i % rows;
    size_t count = (size_t) rows * steps_of(k);
    char *panel = (char *) activations + npurt_activation_bytes(i - r, k);
    char *codes = panel + NPURT_VECTOR;
    char *record = codes + padded(count * NPURT_STEP);
    char *zero = record + padded(count * RECORD_WORDS * 4);
    row at = {.rows = rows};
    at.exponent = (int32_t *) panel + r;
    at.total = (int32_t *) panel + rows + r;
    at.codes = (int8_t *) codes + r * 8;
    at.record = (int16_t *) record + r * RECORD_WORDS * 2;
    at.zero = (int16_t *) zero + r * NPURT_VECTOR / 2;
    return at;
}

static inline int8_t *code_at(const row *of, uint32_t column)
{
    return of->codes + column / 8 * of->rows * 8 + column % 8;
}

/* Return the half of a record for one block of 32 columns: elements [2 * SCALE], [2 * SUMS], ... */
static inline int16_t *record_at(const row *of, uint32_t block)
{
    return of->record + block / 2 * of->rows * RECORD_WORDS * 2 + block % 2;
}

static inline int16_t *zero_at(const row *of, uint32_t block)
{
    return of->zero + block / 2 * of->rows * NPURT_VECTOR / 2 + block % 2;
}

#endif
