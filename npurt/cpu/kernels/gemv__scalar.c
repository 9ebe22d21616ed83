/*
 * y[0..16*panels) = x[0..k) . W^T            portable C: the reference for all other gemv kernels
 *
 * Decodes one weight at a time from the image, as layout.h describes it.
 * Exact   as stated in gemv__avx512vnni.c.
 */
#include "kernels.h"
#include <math.h>

/* Returns the unsigned code of column e of row r, from the codes of one block. */
static int code(npurt_format f, const uint8_t *c, int r, int e)
{
    const int quad = e / 4, i = e % 4;
    if (f.bits == 8) {
        return c[(quad * ROWS + r) * 4 + i];
    }
    int v = c[((quad % 4) * ROWS + r) * 4 + i];
    v = quad < 4 ? v & 15 : v >> 4;
    if (f.book) {
        return npurt_books[f.book][v] + 128;
    }
    const int high = r * 4 + i;
    if (f.bits == 5) {
        v |= (c[256 + high] >> quad & 1) << 4;
    }
    if (f.bits == 6) {
        v |= (c[256 + 64 * (quad / 4) + high] >> 2 * (quad % 4) & 3) << 4;
    }
    return v;
}

static float half_at(const uint8_t *p)
{
    _Float16 h;
    memcpy(&h, p, 2);
    return (float) h;
}

static float scale_of(npurt_format f, const uint8_t *record, int g, int r)
{
    if (f.scale == FLAT) {
        return half_at(record + (g * ROWS + r) * 2);
    }
    if (f.scale == EXP) {
        return ldexpf(1.0f, record[g * ROWS + r] - 128);
    }
    const int8_t *subs = (const int8_t *) record + (f.offset ? 64 : 32);
    return half_at(record + 2 * r) * (float) subs[g * ROWS + r];
}

static float offset_of(npurt_format f, const uint8_t *record, int groups, int g, int r)
{
    if (f.scale == FLAT) {
        return half_at(record + ((groups + g) * ROWS + r) * 2);
    }
    const int8_t *mins = (const int8_t *) record + 64 + groups * ROWS;
    return -(half_at(record + 32 + 2 * r) * (float) mins[g * ROWS + r]);
}

static float one_record(npurt_format f, const uint8_t *record, int blocks, int r,
                        const npurt_row *x, int64_t first, float y)
{
    const int groups = blocks * BLOCK / f.group;
    const uint8_t *codes = record + scale_bytes(f.scale, f.group, f.offset, blocks);
    for (int g = 0; g < groups; g++) {
        const npurt_block *b = x->blocks + first + g * f.group / BLOCK;
        const int bias = f.shift < 0 ? 0 : 1 << f.shift;
        int32_t dot = 0;
        for (int e = g * f.group; e < (g + 1) * f.group; e++) {
            const uint8_t *block = codes + code_bytes(f.bits) * (size_t) (e / BLOCK);
            dot += (code(f, block, r, e % BLOCK) - bias) * npurt_number(x, first * BLOCK + e);
        }
        y = fmaf((float) dot, scale_of(f, record, g, r) * b->scale, y);
        if (f.offset) {
            const float sum = f.group == 32 ? b->sum : b->sums[g % 2];
            y = fmaf(offset_of(f, record, groups, g, r), sum, y);
        }
    }
    return y;
}

static float one(npurt_format f, const uint8_t *panel, int n, const npurt_row *x)
{
    const int64_t blocks = x->k / BLOCK;
    float y = 0;
    for (int64_t first = 0; first < blocks; first += RECORD_BLOCKS) {
        const int left = blocks - first < RECORD_BLOCKS ? (int) (blocks - first) : RECORD_BLOCKS;
        y = one_record(f, panel, left, n, x, first, y);
        panel += record_bytes(&f, left);
    }
    return y;
}

static void gemv(npurt_format f, const uint8_t *image, int panels, const npurt_row *x, int rows,
                 float *y)
{
    for (int p = 0; p < panels; p++, image += panel_bytes(&f, x->k)) {
        for (int i = 0; i < rows * ROWS; i++) {
            *y++ = one(f, image, i % ROWS, x + i / ROWS);
        }
    }
}

#define NPURT_FORMAT(name, number, bits, book, shift, group, scale, offset)                        \
    npurt_gemv_fn npurt_gemv_##name##__scalar;                                                     \
    void npurt_gemv_##name##__scalar(const uint8_t *image, int panels, const npurt_row *x,         \
                                     int rows, float *y)                                           \
    {                                                                                              \
        gemv((npurt_format){number, bits, book, shift, group, scale, offset}, image, panels, x,    \
             rows, y);                                                                             \
    }
#include "formats.inc"
