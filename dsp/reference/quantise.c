/*
 * Quantises float32 rows to int8 codes: the results of dsp/kernels/quantise_row.h, computed one
 * number at a time.
 *
 * E is the biased exponent of the greatest magnitude of a row; it is one higher if the mantissa of
 * this magnitude is within 1/32 of the next power of two.
 *
 *   V     greatest magnitude of a group / 2^(E - 150), rounded down
 *   scale (V + V / 2^7 + V / 2^14) / 2^9 + 1, rounded down
 *   code  x / (scale * 2^(E - 148)), rounded, halves away from 0: the product of 15 bits of x's
 *         mantissa and 15 bits of the reciprocal of the scale
 *
 * If the greatest magnitude of a row is below 2^-87 (E < 40), the row is first multiplied by 2^64,
 * and its exponent is reduced by 64.  A row of zeros has E = 40 and exponent 0.  Columns beyond k
 * are zeros.
 */
#include "reference.h"

enum {
    NOT_FINITE = 0x7f800000,
    ROUND_UP = 1 << 18, /* 1/32 of a mantissa */
    LEAST_E = 40,       /* 2^-87 */
    LIFT = 64,          /* log2 of the factor of smaller rows */
};

/* E of a row, and log2 of the power of two by which the row is multiplied first. */
typedef struct {
    uint32_t e, lift;
} range;

static uint32_t bits_of(float x)
{
    union {
        float value;
        uint32_t bits;
    } both = {x};
    return both.bits;
}

/* Return the float32 bits of the magnitude of x times 2^lift. */
static uint32_t magnitude_of(float x, uint32_t lift)
{
    uint32_t magnitude = bits_of(x) & 0x7fffffff;
    if (magnitude == 0) {
        return 0;
    }
    while (lift > 0 && magnitude < 1 << 23) { /* subnormal: a power of two doubles it */
        magnitude *= 2;
        lift--;
    }
    return magnitude + (lift << 23);
}

/* Return the greatest magnitude of columns first..last-1 below k, as float32 bits. */
static uint32_t greatest_of(const npurt_quantisation *q, const float *x, uint32_t first,
                            uint32_t last, uint32_t lift)
{
    uint32_t greatest = 0;
    for (uint32_t i = first; i < last && i < q->k; i++) {
        uint32_t magnitude = magnitude_of(x[i], lift);
        greatest = magnitude > greatest ? magnitude : greatest;
    }
    return greatest;
}

static int32_t scale_from(uint32_t greatest, uint32_t e)
{
    uint32_t below = e - (greatest >> 23);
    uint32_t v = below < 32 ? ((greatest & 0x7fffff) | 0x800000) >> below : 0;
    return (int32_t) ((v + (v >> 7) + (v >> 14)) >> 9) + 1;
}

/* Return 2^29 / d for d = 2^14..2^15 - 1, rounded down, or one less.  Start with a linear
 * approximation whose error is at most 1/17.  Then compute y += y (1 - d y) twice in Q29, with 16
 * bits for each error 1 - d y. */
static uint32_t reciprocal(int32_t d)
{
    const int32_t one = 1 << 29;
    int32_t y = 1515870810 - q15(1010580540, d); /* 48/17 - 32/17 d */
    y += q15(y, (one - q15(y, d)) >> 14);
    y += q15(y, (one - q15(y, d)) >> 7) >> 7;
    return (uint32_t) y >> 15;
}

static int32_t code_from(float x, int32_t scale, range of_row)
{
    uint32_t bits = magnitude_of(x, of_row.lift), normal = (uint32_t) scale, spare = 0;
    while (normal < 1 << 14) {
        normal *= 2;
        spare++;
    }
    uint32_t mantissa = (bits >> 9 & 0x3fff) | 0x4000;
    uint32_t product = (mantissa * reciprocal((int32_t) normal) + (1 << 14)) >> 15;
    uint32_t shift = of_row.e + 6 - spare - (bits >> 23);
    int32_t code = (int32_t) ((product >> (shift < 15 ? shift : 15)) + 1) / 2;
    return bits_of(x) >> 31 ? -code : code;
}

/* Quantise a block of 32 columns; return the sum of its codes. */
static int32_t quantise_block(const npurt_quantisation *q, const float *x, uint32_t block,
                              int32_t scale, range of_row, const row *to)
{
    int32_t first = 0, last = 0; /* sums of 16 codes */
    for (uint32_t i = 0; i < BLOCK; i++) {
        uint32_t column = block * BLOCK + i;
        int32_t code = column < q->k ? code_from(x[column], scale, of_row) : 0;
        *code_at(to, column) = (int8_t) code;
        *(i < BLOCK / 2 ? &first : &last) += code;
    }
    int32_t sum = first + last;
    int16_t *record = record_at(to, block), *zero = zero_at(to, block);
    record[2 * SCALE] = (int16_t) scale;
    record[2 * SUMS] = (int16_t) ((sum * scale + (1 << 11)) >> 12);
    record[2 * ZERO_FIRST] = (int16_t) (-16 * first);
    record[2 * ZERO_LAST] = (int16_t) (-16 * last);
    for (uint32_t lane = 0; lane < NPURT_TILE; lane++) {
        zero[2 * lane] = (int16_t) (-8 * sum);
    }
    return sum;
}

/* Quantise a row; return 1 if it is not finite. */
static int quantise_row(const npurt_quantisation *q, const float *x, const row *to)
{
    uint32_t greatest = greatest_of(q, x, 0, q->k, 0);
    range of_row = {.e = (greatest + ROUND_UP) >> 23};
    int32_t total = 0;
    if (of_row.e < LEAST_E && greatest > 0) {
        of_row.lift = LIFT;
        of_row.e = (greatest_of(q, x, 0, q->k, LIFT) + ROUND_UP) >> 23;
    } else if (greatest == 0) {
        of_row.e = LEAST_E;
    }
    for (uint32_t block = 0; block < 2 * steps_of(q->k); block++) {
        uint32_t group = q->group ? q->group : q->k;
        uint32_t first = q->group ? block * BLOCK / group * group : 0;
        int32_t scale = scale_from(greatest_of(q, x, first, first + group, of_row.lift), of_row.e);
        total += quantise_block(q, x, block, scale, of_row, to);
    }
    *to->exponent = greatest ? (int32_t) of_row.e - 148 - (int32_t) of_row.lift : 0;
    *to->total = q->group ? 0 : -128 * total;
    return greatest >= NOT_FINITE;
}

size_t npurt_activation_bytes(uint32_t m, uint32_t k)
{
    size_t nbytes = 0;
    for (uint32_t left = m, rows; left > 0; left -= rows) {
        rows = left < NPURT_PANEL ? 1 : NPURT_PANEL;
        size_t count = (size_t) rows * steps_of(k);
        nbytes += NPURT_VECTOR + padded(count * NPURT_STEP) + padded(count * RECORD_WORDS * 4) +
                  count * NPURT_VECTOR;
    }
    return nbytes;
}

size_t npurt_quantise_scratch(uint32_t k)
{
    (void) k;
    return 0;
}

int npurt_quantise(const npurt_quantisation *q, uint32_t first, uint32_t last, void *scratch)
{
    int failed = 0;
    (void) scratch;
    for (uint32_t i = first; i < last; i++) {
        row to = row_of(q->activations, i, q->m, q->k);
        failed |= quantise_row(q, (const float *) ((const char *) q->x + i * q->x_stride), &to);
    }
    return failed;
}
