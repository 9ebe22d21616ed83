/*
 * A gemv on vectors of four rows by four columns.  The file that includes this chooses the
 * instructions.
 *
 * Codes of 4 to 6 bits stay unsigned, because they fit int8, and sums start at -sum(x) << shift.
 * 8-bit codes and codes of a codebook are converted to signed.
 * Why     a unit of work is eight rows by one block.  Its codes stay in 16 registers for all rows
 *         of x, without spills.  Two independent sums hide the latency of multiplications on
 *         in-order cores.  Instructions of clang 22 for these 256 products (vector instructions in
 *         brackets), for the first row of x, then for each further row:
 *                      Q4_0            Q8_0            Q4_K            Q6_K
 *           dotprod    67 (42), 44     68 (42), 41     90 (62), 40     124 (92), 48
 *           neon      104 (65), 81    114 (74), 87    124 (82), 74     168 (123), 93
 */
#ifndef NPURT_GEMV_NEON_H
#define NPURT_GEMV_NEON_H

#include "neon.h"

/* One value for each of eight rows. */
typedef struct {
    float32x4_t v[2];
} npurt_eight;

INLINE int is_signed(npurt_format f)
{
    return f.bits == 8 || f.book;
}

/* Returns how many vectors of products dot() may sum in 16 bits. */
INLINE int room(npurt_format f)
{
    return f.bits == 8 || f.book == 1 ? 2 : f.group / 4;
}

/* Returns `low` with the bits of `mask` from `high`; clang needs two instructions for the C
 * code. */
INLINE uint8x16_t insert(uint8x16_t low, uint8x16_t high, int mask)
{
    const uint8x16_t m = vdupq_n_u8((uint8_t) mask);
    __asm__("bit %0.16b, %1.16b, %2.16b" : "+w"(low) : "w"(high), "w"(m));
    return low;
}

/* Each byte of v times 2^by. */
INLINE uint8x16_t shift(uint8x16_t v, int by)
{
    return by < 0 ? v >> vdupq_n_u8((uint8_t) -by) : v << vdupq_n_u8((uint8_t) by);
}

/* Unpacks the codes of four rows of one block, with columns 4i..4i+3 in q[i]. */
INLINE void codes_of(npurt_format f, const uint8_t *c, int8x16_t book, int8x16_t q[8])
{
#pragma clang loop unroll(full)
    for (int i = 0; i < 8; i++) {
        uint8x16_t v = vld1q_u8(c + 64 * (f.bits == 8 ? i : i % 4));
        if (f.bits == 8) {
            v = veorq_u8(v, vdupq_n_u8(0x80));
        } else {
            v = i < 4 ? vandq_u8(v, vdupq_n_u8(15)) : vshrq_n_u8(v, 4);
        }
        if (f.bits == 5) {
            v = insert(v, shift(vld1q_u8(c + 256), 4 - i), 0x10);
        }
        if (f.bits == 6) {
            v = insert(v, shift(vld1q_u8(c + 256 + 64 * (i / 4)), 4 - 2 * (i % 4)), 0x30);
        }
        q[i] = f.book ? vqtbl1q_s8(book, v) : vreinterpretq_s8_u8(v);
    }
}

INLINE npurt_eight halves(const uint8_t *p)
{
    const float16x8_t h = vreinterpretq_f16_u8(vld1q_u8(p));
    return (npurt_eight) {{vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)}};
}

INLINE npurt_eight small(const uint8_t *p)
{
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
    return (npurt_eight) {
        {vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide))}};
}

INLINE npurt_eight product(npurt_eight a, npurt_eight b)
{
    return (npurt_eight) {{vmulq_f32(a.v[0], b.v[0]), vmulq_f32(a.v[1], b.v[1])}};
}

/* 2^(e - 128), subnormal for e < 2. */
INLINE float32x4_t power(uint32x4_t e)
{
    const uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
    const uint32x4_t low = vshlq_u32(vdupq_n_u32(0x200000), vreinterpretq_s32_u32(e));
    return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), low, normal));
}

INLINE npurt_eight powers(const uint8_t *p)
{
    const uint16x8_t wide = vmovl_u8(vld1_u8(p));
    return (npurt_eight) {{power(vmovl_u16(vget_low_u16(wide))), power(vmovl_high_u16(wide))}};
}

/* Returns the scales of group g of a record for eight rows (half 0 or 1). */
INLINE npurt_eight scale_of(npurt_format f, const uint8_t *record, int g, int half)
{
    if (f.scale == EXP) {
        return powers(record + ROWS * g + 8 * half);
    }
    if (f.scale == FLAT) {
        return halves(record + 2 * (ROWS * g + 8 * half));
    }
    const uint8_t *subs = record + (f.offset ? 64 : 32);
    return product(halves(record + 16 * half), small(subs + ROWS * g + 8 * half));
}

/* Returns the offsets of group g for eight rows; SUPER offsets are negated. */
INLINE npurt_eight offset_of(npurt_format f, const uint8_t *record, int groups, int g, int half)
{
    if (f.scale == FLAT) {
        return halves(record + 2 * (ROWS * (groups + g) + 8 * half));
    }
    const uint8_t *mins = record + 64 + ROWS * groups;
    return product(halves(record + 32 + 16 * half), small(mins + ROWS * g + 8 * half));
}

/* Adds the products of group g of a block with one row of x to `sum`. */
INLINE void one_group(npurt_format f, int int16, int g, int8x16_t q[2][8], npurt_eight scale,
                      npurt_eight offset, const npurt_row *row, int64_t block, float32x4_t sum[2])
{
    const int quads = f.group / 4;
    const int64_t at = block * BLOCK + g * f.group;
    const npurt_block *x = row->blocks + block;
    const npurt_splat xs = splat(row->codes + at, quads);
    const npurt_splat remainder_xs = int16 ? splat(row->remainders + at, quads) : xs;
    int32_t start = 0;
    if (!is_signed(f) && f.shift >= 0) {
        start = (f.group == 32 ? x->minus : x->minuses[g]) << f.shift;
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < 2; i++) {
        const int8x16_t *codes = q[i] + g * quads;
        int32x4_t d = vdupq_n_s32(start);
        if (int16) {
            const int32x4_t code_dot = dot(room(f), quads, codes, xs, vdupq_n_s32(0));
            d = vmlaq_n_s32(d, code_dot, REMAINDER_STEPS);
        }
        d = dot(room(f), quads, codes, remainder_xs, d);
        const float32x4_t both = vmulq_n_f32(scale.v[i], x->scale);
        sum[i] = vfmaq_f32(sum[i], vcvtq_f32_s32(d), both);
        if (f.offset) {
            const float sum_x = f.group == 32 ? x->sum : x->sums[g];
            sum[i] = f.scale == SUPER ? vfmsq_n_f32(sum[i], offset.v[i], sum_x)
                                      : vfmaq_n_f32(sum[i], offset.v[i], sum_x);
        }
    }
}

/* y[rows][..8] += x . W^T, for block b of a record and eight rows of W. */
INLINE void one_block(npurt_format f, const uint8_t *record, int blocks, int b, int half,
                      const npurt_row *x, int rows, int int16, int64_t block, float *y)
{
    const int per_block = BLOCK / f.group;
    const uint8_t *codes = record + scale_bytes(f.scale, f.group, f.offset, blocks) +
                           code_bytes(f.bits) * (size_t) b + 32 * half;
    const int8x16_t book = vld1q_s8(npurt_books[f.book]);
    npurt_eight scale[2], offset[2];
    int8x16_t q[2][8];
    codes_of(f, codes, book, q[0]);
    codes_of(f, codes + 16, book, q[1]);
#pragma clang loop unroll(full)
    for (int g = 0; g < per_block; g++) {
        const int at = b * per_block + g;
        scale[g] = scale_of(f, record, at, half);
        offset[g] = f.offset ? offset_of(f, record, blocks * per_block, at, half) : scale[g];
    }
#pragma clang loop unroll(disable)
    for (int r = 0; r < rows; r++, y += ROWS) {
        float32x4_t sum[2] = {vld1q_f32(y), vld1q_f32(y + 4)};
#pragma clang loop unroll(full)
        for (int g = 0; g < per_block; g++) {
            one_group(f, int16, g, q, scale[g], offset[g], x + r, block, sum);
        }
        vst1q_f32(y, sum[0]);
        vst1q_f32(y + 4, sum[1]);
    }
}

/* y[rows][16] = `rows` rows of x times one panel. */
INLINE void one_panel(npurt_format f, const uint8_t *at, const npurt_row *x, int rows, int int16,
                      float *y)
{
    const int64_t blocks = x->k / BLOCK;
    memset(y, 0, (size_t) (rows * ROWS) * sizeof *y);
    for (int64_t first = 0; first < blocks; first += RECORD_BLOCKS) {
        const int n = blocks - first < RECORD_BLOCKS ? (int) (blocks - first) : RECORD_BLOCKS;
        for (int b = 0; b < n; b++) {
#pragma clang loop unroll(disable)
            for (int half = 0; half < 2; half++) {
                one_block(f, at, n, b, half, x, rows, int16, first + b, y + 8 * half);
            }
        }
        at += record_bytes(&f, n);
    }
}

INLINE void gemv(npurt_format f, const uint8_t *image, int panels, const npurt_row *x, int rows,
                 float *y)
{
    for (int p = 0; p < panels; p++, image += panel_bytes(&f, x->k), y += rows * ROWS) {
        if (x->remainders) {
            one_panel(f, image, x, rows, 1, y);
        } else if (rows == 1) {
            one_panel(f, image, x, 1, 0, y);
        } else {
            one_panel(f, image, x, rows, 0, y);
        }
    }
}

#endif
