/*
 * Exact integer products on vectors of four rows by four columns.  The file that includes this
 * chooses the instructions.
 *
 * Weights are converted back to signed, so `minus` is not needed.
 */
#ifndef NPURT_I8_NEON_H
#define NPURT_I8_NEON_H

#include "neon.h"

enum { PARTS = ROWS / 4, STEP = 4 }; /* vectors per panel; quads per step */

/* Adds four quads to the sums of `count` rows of x, `stride` bytes apart. */
INLINE void step(int count, const uint8_t *w, const int8_t *x, int64_t stride,
                 int32x4_t sum[][PARTS])
{
    npurt_splat xs[AT_ONCE];
#pragma clang loop unroll(full)
    for (int r = 0; r < count; r++) {
        xs[r] = splat(x + r * stride, STEP);
    }
#pragma clang loop unroll(full)
    for (int p = 0; p < PARTS; p++) {
        int8x16_t q[STEP];
#pragma clang loop unroll(full)
        for (int i = 0; i < STEP; i++) {
            const uint8x16_t v = vld1q_u8(w + 64 * i + 16 * p);
            q[i] = vreinterpretq_s8_u8(veorq_u8(v, vdupq_n_u8(0x80)));
        }
#pragma clang loop unroll(full)
        for (int r = 0; r < count; r++) {
            sum[r][p] = dot(1, STEP, q, xs[r], sum[r][p]); /* `room` is 1, as x may be -128 */
        }
    }
}

INLINE void some_rows(int count, const uint8_t *w, int64_t quads, const int8_t *x, int32_t *y,
                      int64_t stride)
{
    int32x4_t sum[AT_ONCE][PARTS];
    const int64_t whole = quads / STEP * STEP;
    memset(sum, 0, sizeof sum);
    for (int64_t i = 0; i < whole; i += STEP) {
        step(count, w + 64 * i, x + 4 * i, 4 * quads, sum);
    }
    if (whole < quads) {
        uint8_t last_w[64 * STEP] = {0};
        int8_t last_x[AT_ONCE][4 * STEP] = {{0}};
        memcpy(last_w, w + 64 * whole, (size_t) (64 * (quads - whole)));
        for (int r = 0; r < count; r++) {
            memcpy(last_x[r], x + 4 * (r * quads + whole), (size_t) (4 * (quads - whole)));
        }
        step(count, last_w, last_x[0], 4 * STEP, sum);
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < count * PARTS; i++) {
        vst1q_s32(y + i / PARTS * stride + i % PARTS * 4, sum[i / PARTS][i % PARTS]);
    }
}

INLINE void multiply(const uint8_t *w, int64_t quads, const int8_t *x, int rows, int32_t *y,
                     int64_t stride)
{
    int r = 0;
    for (; r + AT_ONCE <= rows; r += AT_ONCE) {
        some_rows(AT_ONCE, w, quads, x + r * 4 * quads, y + r * stride, stride);
    }
    for (; r < rows; r++) {
        some_rows(1, w, quads, x + r * 4 * quads, y + r * stride, stride);
    }
}

#endif
