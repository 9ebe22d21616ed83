/*
 * The table of formats, and products: the results of dsp/kernels/multiply.c and of the functions
 * that it calls, computed one number at a time.
 *
 * A tile is 32 rows of w, one row per lane.  After its heads, a tile has for each step of 64
 * columns vectors of codes, then of scales, then of offsets.  In each vector, a lane is a word of
 * 32 bits.  Here the codes of w and x are signed numbers, and a block is the 32 columns (q8_g16:
 * 16) that share a scale:
 *
 *   h  = sum of code * code / unit       rounded to nearest; halves are rounded up in the first 32
 *                                        columns of a step and down in the last 32
 *   g  = h * (scale of w * scale of x / 2^15)       product of scales rounded, halves up
 *      + offset of w * T                            if w has offsets
 *   y  = sum over steps of (g of a step / 2^shift, rounded down) * 2^(exponents + 15 + shift)
 *
 * With one scale per row (per_channel), y = sum of code * code * scale of w * scale of x.
 */
#include "reference.h"

typedef enum {
    q4,
    q4_offset,
    lut,
    q8,
    q8_offset,
    q8_g16,
    q8_g16_offset,
    q16,
    per_channel,
} kernel;

struct npurt_format {
    uint32_t number;
    kernel kernel;
    uint16_t codes, scales, offsets, heads; /* vectors */
    uint16_t arch;
};

#define NPURT_FORMAT(name, number, kernel, codes, scales, offsets, heads, arch, gain, centre)      \
    {number, kernel, codes, scales, offsets, heads, arch},

static const npurt_format formats[] = {
#include "../formats.inc"
};

const npurt_format *npurt_find_format(uint32_t number)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++) {
        if (formats[i].number == number) {
            return &formats[i];
        }
    }
    return NULL;
}

uint32_t npurt_format_arch(const npurt_format *format)
{
    return format->arch;
}

static size_t step_bytes(const npurt_format *f)
{
    return (size_t) (f->codes + f->scales + f->offsets) * NPURT_VECTOR;
}

size_t npurt_tile_bytes(const npurt_format *format, uint32_t k)
{
    return format->heads * NPURT_VECTOR + steps_of(k) * step_bytes(format);
}

int npurt_takes_group(const npurt_format *format, uint32_t group)
{
    return format->kernel == per_channel ? group == 0 : group == 32 || group == 128;
}

/* --- a row of weights ------------------------------------------------------------------------- */

typedef struct {
    const npurt_format *format;
    const uint8_t *tile;
    uint32_t lane;
} weights;

enum { EXPONENT, RANGE, OTHER }; /* heads */

static int32_t head(const weights *w, uint32_t which)
{
    return ((const int32_t *) w->tile)[which * NPURT_TILE + w->lane];
}

/* Return the bytes of the lane's word in one vector of a step. */
static const uint8_t *word(const weights *w, uint32_t step, uint32_t vector)
{
    size_t at = w->format->heads * NPURT_VECTOR + step * step_bytes(w->format);
    return w->tile + at + vector * NPURT_VECTOR + 4 * w->lane;
}

/* Return a 4-bit code.  With 4-bit codes, a step has half as many vectors of codes as with 8. */
static int32_t nibble_of(const weights *w, uint32_t column)
{
    uint32_t step = column / NPURT_STEP, in_step = column % NPURT_STEP;
    return word(w, step, in_step / 8)[column % 4] >> (column & 4) & 15;
}

static int32_t byte_of(const weights *w, uint32_t column, uint32_t vector)
{
    uint32_t step = column / NPURT_STEP, in_step = column % NPURT_STEP;
    return word(w, step, vector + in_step / 4)[column % 4];
}

static int32_t code_of(const weights *w, uint32_t column)
{
    switch (w->format->kernel) {
    case q4:
    case q4_offset:
        return nibble_of(w, column) - 8;
    case lut:
        return w->tile[OTHER * NPURT_VECTOR + 2 * nibble_of(w, column)] - 128;
    case q16:
        return byte_of(w, column, 0) * 256 + byte_of(w, column, NPURT_STEP / 4) - 32768;
    default:
        return byte_of(w, column, 0) - 128;
    }
}

/* Return a scale or an offset of a block of 32 columns.  `vector` counts the vectors after the
 * codes: first those of scales, then those of offsets. */
static int32_t scale_of(const weights *w, uint32_t block, uint32_t vector)
{
    const uint8_t *pair = word(w, block / 2, w->format->codes + vector);
    return ((const int16_t *) pair)[block % 2];
}

/* --- sums ------------------------------------------------------------------------------------- */

static int32_t sum_of(const weights *w, const row *x, uint32_t first, uint32_t count)
{
    int32_t sum = 0;
    for (uint32_t column = first; column < first + count; column++) {
        sum += code_of(w, column) * *code_at(x, column);
    }
    return sum;
}

/* Return the sum in the unit of h, in which the largest code of w is 8 (q8_g16: 16). */
static int32_t narrowed(kernel kernel, int32_t sum, uint32_t block)
{
    uint32_t bits = kernel == q4 || kernel == q4_offset           ? 0
                    : kernel == q8_g16 || kernel == q8_g16_offset ? 3
                    : kernel == q16                               ? 12
                                                                  : 4;
    return bits ? (sum + (1 << bits >> 1) - (int32_t) (block % 2)) >> bits : sum;
}

/* Return g of a block of 32 columns. */
static int32_t block_product(const weights *w, const row *x, uint32_t block)
{
    const npurt_format *f = w->format;
    const int16_t *record = record_at(x, block);
    uint32_t parts = f->scales, count = BLOCK / parts;
    int32_t g = 0;
    for (uint32_t part = 0; part < parts; part++) {
        int32_t sum = sum_of(w, x, block * BLOCK + part * count, count);
        int32_t h = narrowed(f->kernel, sum, block);
        g += h * q15(scale_of(w, block, part), record[2 * SCALE]);
        if (f->kernel == q8_g16_offset) {
            int32_t offset = q15(scale_of(w, block, parts + part), record[2 * SCALE]);
            g += offset * record[2 * (ZERO_FIRST + part)];
        } else if (f->offsets) {
            g += scale_of(w, block, parts) * record[2 * SUMS];
        }
    }
    return g;
}

/* --- results ---------------------------------------------------------------------------------- */

/* Return sum * 2^exponent, rounded to 24 bits, halves away from 0.  A result above the normal
 * numbers of float32 becomes infinite; a result below them becomes 0. */
static float to_float(int32_t sum, int32_t exponent)
{
    union {
        uint32_t bits;
        float value;
    } y = {sum < 0 ? 1u << 31 : 0};
    uint32_t magnitude = sum < 0 ? 0u - (uint32_t) sum : (uint32_t) sum;
    if (sum == 0) {
        return 0;
    }
    for (; magnitude < 1u << 30; exponent--) {
        magnitude *= 2;
    }
    magnitude = (magnitude + 64) >> 7; /* 2^23..2^24; 2^24 also has a mantissa of 0 */
    exponent += 30 + 127 + (magnitude == 1u << 24);
    if (exponent > 254) {
        y.bits |= 0x7f800000;
    } else if (exponent > 0) {
        y.bits |= (uint32_t) exponent << 23 | (magnitude & 0x7fffff);
    }
    return y.value;
}

/* Return sum * scale of x * scale of w; both scales are Q15.  Normalise the sum first, so that the
 * products lose few bits. */
static float scaled(int32_t sum, int32_t w_scale, int32_t x_scale, int32_t exponent)
{
    for (; sum && sum >= -(1 << 30) && sum < 1 << 30; exponent--) {
        sum *= 2;
    }
    return to_float(q15(q15(sum, w_scale), x_scale), exponent + 30);
}

static float product(const weights *w, const row *x, uint32_t k)
{
    int32_t exponent = (head(w, EXPONENT) >> 23) - 156 + *x->exponent;
    uint32_t steps = steps_of(k), shift = 0;
    int32_t y = 0;
    if (w->format->kernel == per_channel) {
        int32_t sum = sum_of(w, x, 0, steps * NPURT_STEP);
        return scaled(sum, head(w, OTHER) >> 16, record_at(x, 0)[2 * SCALE], exponent);
    }
    while (1u << shift < steps) {
        shift++;
    }
    for (uint32_t step = 0; step < steps; step++) {
        y += (block_product(w, x, 2 * step) + block_product(w, x, 2 * step + 1)) >> shift;
    }
    return to_float(y, exponent + 15 + (int32_t) shift);
}

void npurt_multiply(const npurt_product *p, const void *tiles, uint32_t first, uint32_t last)
{
    for (uint32_t n = first * NPURT_TILE; n < last * NPURT_TILE && n < p->n; n++) {
        const uint8_t *tile = tiles;
        tile += (n / NPURT_TILE - first) * npurt_tile_bytes(p->format, p->k);
        weights w = {p->format, tile, n % NPURT_TILE};
        for (uint32_t m = 0; m < p->m; m++) {
            row x = row_of(p->activations, m, p->m, p->k);
            float *y = (float *) ((char *) p->y + m * p->y_stride);
            y[n] = product(&w, &x, p->k);
        }
    }
}
