/*
 * Exact dot products of int8 codes of four rows, four columns per vector, with one row of x.
 *
 * If the including file is compiled with sdot, one instruction computes sixteen products.
 * Otherwise `room` vectors of products are summed in 16 bits, which x >= -127 makes possible: 8
 * vectors of 5-bit codes (31 * 127 * 8 < 2^15), 4 vectors of 6-bit codes, or 2 vectors of 8-bit
 * codes (128 * 127 * 2 < 2^15).
 */
#ifndef NPURT_NEON_H
#define NPURT_NEON_H

#include "kernels.h"
#include <arm_neon.h>

#if defined(__ARM_FEATURE_DOTPROD)

enum { AT_ONCE = 4 }; /* rows of x per step, as many as fit the registers */

/* Up to 32 columns of x, sixteen per vector. */
typedef struct {
    int8x16_t v[2];
} npurt_splat;

INLINE npurt_splat splat(const int8_t *x, int quads)
{
    return (npurt_splat) {{vld1q_s8(x), vld1q_s8(x + (quads == 8 ? 16 : 0))}};
}

/* Returns sum + the dot products of `quads` vectors of codes with x; quads is 4 or 8. */
INLINE int32x4_t dot(int room, int quads, const int8x16_t *q, npurt_splat x, int32x4_t sum)
{
    (void) room;
#pragma clang loop unroll(full)
    for (int i = 0; i < quads; i += 4) {
        sum = vdotq_laneq_s32(sum, q[i], x.v[i / 4], 0);
        sum = vdotq_laneq_s32(sum, q[i + 1], x.v[i / 4], 1);
        sum = vdotq_laneq_s32(sum, q[i + 2], x.v[i / 4], 2);
        sum = vdotq_laneq_s32(sum, q[i + 3], x.v[i / 4], 3);
    }
    return sum;
}

#else

enum { AT_ONCE = 2 };

/* Up to 32 columns of x, four per vector, each four times. */
typedef struct {
    int8x16_t v[8];
} npurt_splat;

INLINE npurt_splat splat(const int8_t *x, int quads)
{
    npurt_splat s;
#pragma clang loop unroll(full)
    for (int i = 0; i < quads; i++) {
        int32_t four;
        memcpy(&four, x + 4 * i, 4);
        s.v[i] = vreinterpretq_s8_s32(vdupq_n_s32(four));
        __asm__("" : "+w"(s.v[i])); /* hides the equal halves, or clang would split q */
    }
    return s;
}

/* Returns sum + the dot products of `quads` vectors of codes with x. */
INLINE int32x4_t dot(int room, int quads, const int8x16_t *q, npurt_splat x, int32x4_t sum)
{
    int32x4_t low = vdupq_n_s32(0), high = low; /* two sums for each row */
#pragma clang loop unroll(full)
    for (int i = 0; i < quads; i += room) {
        int16x8_t a = vmull_s8(vget_low_s8(q[i]), vget_low_s8(x.v[i]));
        int16x8_t b = vmull_high_s8(q[i], x.v[i]);
#pragma clang loop unroll(full)
        for (int j = i + 1; j < i + room; j++) {
            a = vmlal_s8(a, vget_low_s8(q[j]), vget_low_s8(x.v[j]));
            b = vmlal_high_s8(b, q[j], x.v[j]);
        }
        low = vpadalq_s16(low, a);
        high = vpadalq_s16(high, b);
    }
    return vaddq_s32(sum, vpaddq_s32(low, high));
}

#endif

#endif
