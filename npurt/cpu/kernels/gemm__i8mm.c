/*
 * y[rows][16] += x[rows][blocks * 32] . tile^T          int8 x 8-bit codes
 *
 * tile    one record of one panel, expanded (expand__vec.c).
 * x       quantised rows; results are added to y, so the caller calls this for each record of k.
 * Method  usmmla multiplies eight columns of two rows of weights by eight columns of two rows of x;
 *         its four sums are scaled without rearranging them.
 * Needs   Armv8.6 int8 matrix products (usmmla), and sdot.
 * Exact   equal bit for bit to every other gemm.
 * Why     usmmla computes twice as many products as sdot, but needs eight adjacent columns of a
 *         row, so the tile is rearranged once for all rows, which is faster from eight rows on;
 *         fewer rows use sdot.  Four rows by sixteen rows by 32 columns are 2048 products.  They
 *         take 261 to 291 instructions, of which 150 to 170 are vector instructions; with sdot 266
 *         to 278, of which 192 to 224.  Two thirds of them scale and add.
 */
#include "kernels.h"
#include <arm_neon.h>

npurt_gemm_fn npurt_gemm__dotprod, npurt_gemm__i8mm;

enum { AT_ONCE = 4, LEAST = 8 }; /* rows of x per step; minimum rows for usmmla */
enum { PAIRS = ROWS / 2 };       /* pairs of rows of weights */

/* A tile rearranged by pairs of rows a and b: codes are 8 columns of a, then 8 columns of b; scales
 * and offsets are [a a b b]. */
typedef struct {
    uint8x16_t codes[RECORD / 8][PAIRS];
    float32x4_t scales[2 * RECORD_BLOCKS][PAIRS], offsets[2 * RECORD_BLOCKS][PAIRS];
} npurt_pairs;

/* Interleaves the first or the second two elements of a and b. */
INLINE float32x4_t zip(int second, float32x4_t a, float32x4_t b)
{
    return second ? vzip2q_f32(a, b) : vzip1q_f32(a, b);
}

static void rearrange(const npurt_tile *w, npurt_pairs *out)
{
    for (int i = 0; i < w->blocks * BLOCK / 8; i++) {
        const uint8_t *quads = w->codes[i / 4][i % 4 * 2];
#pragma clang loop unroll(full)
        for (int p = 0; p < PAIRS; p++) {
            const float32x4_t a = vreinterpretq_f32_u8(vld1q_u8(quads + p / 2 * 16));
            const float32x4_t b = vreinterpretq_f32_u8(vld1q_u8(quads + p / 2 * 16 + 64));
            out->codes[i][p] = vreinterpretq_u8_f32(zip(p % 2, a, b));
        }
    }
    for (int at = 0; at < w->blocks * (BLOCK / w->group); at++) {
#pragma clang loop unroll(full)
        for (int p = 0; p < PAIRS; p++) {
            const float32x4_t scale = vld1q_f32(w->scales[at] + p / 2 * 4);
            const float32x4_t offset = vld1q_f32(w->offsets[at] + p / 2 * 4);
            out->scales[at][p] = zip(p % 2, scale, scale);
            out->offsets[at][p] = zip(p % 2, offset, offset);
        }
    }
}

/* The codes, scales and sums of two rows of x for one group; scales and sums are [a b a b]. */
typedef struct {
    int8x16_t codes[BLOCK / 8], remainders[BLOCK / 8];
    float32x4_t scale, sum;
    int32x4_t start;
} npurt_two;

INLINE float32x4_t twice(float a, float b)
{
    const float32x2_t two = {a, b};
    return vcombine_f32(two, two);
}

/* Loads eight columns of two rows, which are k bytes apart. */
INLINE int8x16_t pair(const int8_t *from, int64_t k)
{
    return vcombine_s8(vld1_s8(from), vld1_s8(from + k));
}

INLINE npurt_two two_of(int group, int int16, int block, int g, npurt_row x, int64_t row, int shift)
{
    const npurt_block *a = x.blocks + row * (x.k / BLOCK) + block, *b = a + x.k / BLOCK;
    const int64_t from = row * x.k + block * BLOCK + g * group;
    const int32x2_t minus = {group == 32 ? a->minus : a->minuses[g],
                             group == 32 ? b->minus : b->minuses[g]};
    const int32x2_t start = vshl_s32(minus, vdup_n_s32(shift));
    npurt_two two = {
        .scale = twice(a->scale, b->scale),
        .sum = group == 32 ? twice(a->sum, b->sum) : twice(a->sums[g], b->sums[g]),
        .start = shift < 0 ? vdupq_n_s32(0) : vcombine_s32(start, start),
    };
#pragma clang loop unroll(full)
    for (int i = 0; i < group / 8; i++) {
        two.codes[i] = pair(x.codes + from + 8 * i, x.k);
        two.remainders[i] = int16 ? pair(x.remainders + from + 8 * i, x.k) : two.codes[i];
    }
    return two;
}

/* Returns start + the dot products of two rows of weights with two rows of codes, for one group. */
INLINE int32x4_t dot(int group, const uint8x16_t (*w)[PAIRS], int p, const int8x16_t *x,
                     int32x4_t start)
{
#pragma clang loop unroll(full)
    for (int i = 0; i < group / 8; i++) {
        start = vusmmlaq_s32(start, w[i][p], x[i]);
    }
    return start;
}

/* Adds the products of four rows of x with group g of block b of the tile. */
INLINE void one_group(int group, int offset, int int16, const npurt_tile *w,
                      const npurt_pairs *pairs, int b, int g, npurt_row x, float32x4_t y[2][PAIRS])
{
    const int at = b * (BLOCK / group) + g, shift = offset ? -1 : w->shift;
    const npurt_two two[2] = {two_of(group, int16, b, g, x, 0, shift),
                              two_of(group, int16, b, g, x, 2, shift)};
    const uint8x16_t(*codes)[PAIRS] = pairs->codes + at * group / 8;
#pragma clang loop unroll(full)
    for (int p = 0; p < PAIRS; p++) {
#pragma clang loop unroll(full)
        for (int r = 0; r < 2; r++) {
            const float32x4_t both = vmulq_f32(pairs->scales[at][p], two[r].scale);
            int32x4_t sum = two[r].start;
            if (int16) {
                const int32x4_t code_dot = dot(group, codes, p, two[r].codes, vdupq_n_s32(0));
                sum = vmlaq_n_s32(sum, code_dot, REMAINDER_STEPS);
            }
            sum = dot(group, codes, p, two[r].remainders, sum);
            y[r][p] = vfmaq_f32(y[r][p], vcvtq_f32_s32(sum), both);
            if (offset) {
                y[r][p] = vfmaq_f32(y[r][p], pairs->offsets[at][p], two[r].sum);
            }
        }
    }
}

INLINE void four_rows(int group, int offset, int int16, const npurt_tile *w,
                      const npurt_pairs *pairs, npurt_row x, float *out)
{
    float32x4_t y[2][PAIRS];
    for (int i = 0; i < 2 * PAIRS; i++) {
        const float *from = out + i / PAIRS * 2 * ROWS + i % PAIRS / 2 * 4;
        y[i / PAIRS][i % PAIRS] = zip(i % 2, vld1q_f32(from), vld1q_f32(from + ROWS));
    }
    for (int b = 0; b < w->blocks; b++) {
#pragma clang loop unroll(full)
        for (int g = 0; g < BLOCK / group; g++) {
            one_group(group, offset, int16, w, pairs, b, g, x, y);
        }
    }
    for (int i = 0; i < 2 * PAIRS; i += 2) {
        float *to = out + i / PAIRS * 2 * ROWS + i % PAIRS / 2 * 4;
        const float32x4_t *two = &y[i / PAIRS][i % PAIRS];
        vst1q_f32(to, vuzp1q_f32(two[0], two[1]));
        vst1q_f32(to + ROWS, vuzp2q_f32(two[0], two[1]));
    }
}

INLINE void gemm(int group, int offset, const npurt_tile *w, const npurt_input *x, int64_t row,
                 int rows, int64_t block, float *y)
{
    npurt_pairs pairs;
    rearrange(w, &pairs);
    for (int r = 0; r + AT_ONCE <= rows; r += AT_ONCE) {
        const npurt_row four = npurt_row_of(x, row + r, block);
        if (x->remainders) {
            four_rows(group, offset, 1, w, &pairs, four, y + r * ROWS);
        } else {
            four_rows(group, offset, 0, w, &pairs, four, y + r * ROWS);
        }
    }
}

void npurt_gemm__i8mm(const npurt_tile *w, const npurt_input *x, int64_t row, int rows,
                      int64_t block, float *y)
{
    const int here = rows < LEAST ? 0 : rows / AT_ONCE * AT_ONCE;
    if (here && w->group == 32 && w->offset) {
        gemm(32, 1, w, x, row, here, block, y);
    } else if (here && w->group == 32) {
        gemm(32, 0, w, x, row, here, block, y);
    } else if (here && w->offset) {
        gemm(16, 1, w, x, row, here, block, y);
    } else if (here) {
        gemm(16, 0, w, x, row, here, block, y);
    }
    if (here < rows) {
        npurt_gemm__dotprod(w, x, row + here, rows - here, block, y + here * ROWS);
    }
}
