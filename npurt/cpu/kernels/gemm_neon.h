/*
 * A gemm on vectors of four rows by four columns.  The file that includes this chooses the
 * instructions.
 *
 * Why     each vector of weights is loaded once for AT_ONCE rows of x.  A pass has eight rows of
 *         weights, whose sums stay in registers for a whole record.  With sdot, four rows by eight
 *         rows by 32 columns are 1024 products; they take 133 to 139 instructions, of which 96 to
 *         112 are vector instructions, without spills.  Without sdot, half as many products take
 *         173 to 223 instructions.
 */
#ifndef NPURT_GEMM_NEON_H
#define NPURT_GEMM_NEON_H

#include "neon.h"

/*
 * The codes of a tile (in formats.inc, a format has either an offset or a shift).  PLAIN: codes,
 * and the format has offsets; SHIFTED: code + 2^shift, at most 6 bits; WIDE: code + 128.
 */
enum { PLAIN, SHIFTED, WIDE };

/* Multiplies `count` rows of x by eight rows of the tile, from row 8 * half on. */
INLINE void some_rows(int count, int kind, int group, int int16, const npurt_tile *w, npurt_row x,
                      int half, float *out)
{
    const int per_block = BLOCK / group, quads = group / 4;
    float32x4_t y[AT_ONCE][2];
#pragma clang loop unroll(full)
    for (int r = 0; r < count; r++) {
        y[r][0] = vld1q_f32(out + r * ROWS + 8 * half);
        y[r][1] = vld1q_f32(out + r * ROWS + 8 * half + 4);
    }
    for (int at = 0; at < w->blocks * per_block; at++) {
        const uint8_t *codes = w->codes[at / per_block][at % per_block * quads] + 32 * half;
#pragma clang loop unroll(full)
        for (int i = 0; i < 2; i++) {
            const float32x4_t scale = vld1q_f32(w->scales[at] + 8 * half + 4 * i);
            const float32x4_t offset = vld1q_f32(w->offsets[at] + 8 * half + 4 * i);
            int8x16_t q[8];
#pragma clang loop unroll(full)
            for (int j = 0; j < quads; j++) {
                const uint8x16_t v = vld1q_u8(codes + 64 * j + 16 * i);
                q[j] = vreinterpretq_s8_u8(kind == WIDE ? veorq_u8(v, vdupq_n_u8(0x80)) : v);
            }
#pragma clang loop unroll(full)
            for (int r = 0; r < count; r++) {
                const int64_t from = r * x.k + at * group;
                const npurt_block *b = x.blocks + r * (x.k / BLOCK) + at / per_block;
                const int room = kind == WIDE ? 2 : quads;
                int32_t start = 0;
                if (kind == SHIFTED) {
                    start = (group == 32 ? b->minus : b->minuses[at % 2]) << w->shift;
                }
                int32x4_t d = vdupq_n_s32(start);
                if (int16) {
                    const npurt_splat codes = splat(x.codes + from, quads);
                    const int32x4_t code_dot = dot(room, quads, q, codes, vdupq_n_s32(0));
                    d = vmlaq_n_s32(d, code_dot, REMAINDER_STEPS);
                }
                d = dot(room, quads, q, splat((int16 ? x.remainders : x.codes) + from, quads), d);
                y[r][i] = vfmaq_f32(y[r][i], vcvtq_f32_s32(d), vmulq_n_f32(scale, b->scale));
                if (kind == PLAIN) {
                    const float sum = group == 32 ? b->sum : b->sums[at % 2];
                    y[r][i] = vfmaq_n_f32(y[r][i], offset, sum);
                }
            }
        }
    }
#pragma clang loop unroll(full)
    for (int r = 0; r < count; r++) {
        vst1q_f32(out + r * ROWS + 8 * half, y[r][0]);
        vst1q_f32(out + r * ROWS + 8 * half + 4, y[r][1]);
    }
}

INLINE void both_halves(int kind, int group, int int16, const npurt_tile *w, const npurt_input *x,
                        int64_t row, int rows, int64_t block, float *y)
{
    for (int half = 0; half < 2; half++) {
        int r = 0;
        for (; r + AT_ONCE <= rows; r += AT_ONCE) {
            const npurt_row some = npurt_row_of(x, row + r, block);
            some_rows(AT_ONCE, kind, group, int16, w, some, half, y + r * ROWS);
        }
        for (; r < rows; r++) {
            const npurt_row one = npurt_row_of(x, row + r, block);
            some_rows(1, kind, group, int16, w, one, half, y + r * ROWS);
        }
    }
}

INLINE void all_rows(int kind, int group, const npurt_tile *w, const npurt_input *x, int64_t row,
                     int rows, int64_t block, float *y)
{
    if (x->remainders) {
        both_halves(kind, group, 1, w, x, row, rows, block, y);
    } else {
        both_halves(kind, group, 0, w, x, row, rows, block, y);
    }
}

INLINE void gemm(const npurt_tile *w, const npurt_input *x, int64_t row, int rows, int64_t block,
                 float *y)
{
    if (w->shift == 7) {
        all_rows(WIDE, 32, w, x, row, rows, block, y);
    } else if (w->group == 32 && w->offset) {
        all_rows(PLAIN, 32, w, x, row, rows, block, y);
    } else if (w->group == 32) {
        all_rows(SHIFTED, 32, w, x, row, rows, block, y);
    } else if (w->offset) {
        all_rows(PLAIN, 16, w, x, row, rows, block, y);
    } else {
        all_rows(SHIFTED, 16, w, x, row, rows, block, y);
    }
}

#endif
