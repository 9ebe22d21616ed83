/*
 * out[rows][32] = a[rows][32 * tiles] . w[tiles][32][32]^T         int8 x int8 -> int32
 *
 * Needs   ARMv8.2 dot products.
 * Exact   32 bits hold any sum: |a . w| <= 128 * 128 * K, and K is at most 65535.
 */
#include "kernels.h"

#include <arm_neon.h>

enum { PART = 8 }; /* channels whose sums stay in registers */

static void part(const int8_t *a, const int8_t *w, size_t tiles, int32_t *out)
{
    int32x4_t sums[PART];
    for (int n = 0; n < PART; n++) {
        sums[n] = vdupq_n_s32(0);
    }
    for (size_t t = 0; t < tiles; t++, a += 32, w += 1024) {
        const int8x16_t low = vld1q_s8(a), high = vld1q_s8(a + 16);
        for (int n = 0; n < PART; n++) {
            sums[n] = vdotq_s32(sums[n], low, vld1q_s8(w + 32 * n));
            sums[n] = vdotq_s32(sums[n], high, vld1q_s8(w + 32 * n + 16));
        }
    }
    for (int n = 0; n < PART; n++) {
        out[n] = vaddvq_s32(sums[n]);
    }
}

void dot__dotprod(const int8_t *a, size_t rows, size_t stride, const int8_t *w, size_t tiles,
                  int32_t *out)
{
    for (size_t r = 0; r < rows; r++) {
        for (int n = 0; n < 32; n += PART) {
            part(a + r * stride, w + 32 * n, tiles, out + r * 32 + n);
        }
    }
}
