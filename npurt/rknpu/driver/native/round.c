/* Rotate and round rows to int8: see npurt_rk.h.  Clang vectorises the loops; results do not
 * depend on the order of their iterations. */
#include "npurt_rk.h"
#include <math.h>
#include <string.h>

typedef float quad __attribute__((vector_size(16)));

/* Apply the butterflies at distance 1 and, for blocks above 2, at distance 2, to four floats at a
 * time.  kp is a multiple of 4. */
static void transform_quads(float *z, int kp, int block)
{
    const quad near = {1, -1, 1, -1}, far = {1, 1, -1, -1};
    for (int i = 0; i < kp; i += 4) {
        quad v;
        memcpy(&v, z + i, sizeof v);
        v = __builtin_shufflevector(v, v, 0, 0, 2, 2) +
            near * __builtin_shufflevector(v, v, 1, 1, 3, 3);
        if (block > 2) {
            v = __builtin_shufflevector(v, v, 0, 1, 0, 1) +
                far * __builtin_shufflevector(v, v, 2, 3, 2, 3);
        }
        memcpy(z + i, &v, sizeof v);
    }
}

/* Apply the Walsh-Hadamard transform, level by level.  The order of floating-point additions is
 * fixed, so every machine computes the same bits. */
static void transform(float *z, int kp, int block)
{
    if (block > 1) {
        transform_quads(z, kp, block);
    }
    for (int half = 4; half < block; half *= 2) {
        for (int base = 0; base < kp; base += 2 * half) {
            float *restrict a = z + base, *restrict b = z + base + half;
            for (int i = 0; i < half; i++) {
                float sum = a[i] + b[i], difference = a[i] - b[i];
                a[i] = sum;
                b[i] = difference;
            }
        }
    }
}

/* Return the largest magnitude, or NaN or infinity if z contains one.  The loop compares the bits
 * of magnitudes as integers: their order is the same, and clang vectorises an integer maximum. */
static float largest(const float *z, int kp)
{
    uint32_t most = 0;
    for (int i = 0; i < kp; i++) {
        uint32_t bits;
        memcpy(&bits, z + i, sizeof bits);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    float size;
    memcpy(&size, &most, sizeof size);
    return size;
}

/* Round like rintf, for magnitudes up to 2^22: the sum with shift is above 2^23, where a float has
 * no fraction.  The vectorised form uses only instructions of every x86-64. */
static float nearest(float x)
{
    const float shift = 3 << 22;
    return (x + shift) - shift;
}

static void round_row(const float *restrict z, int kp, float inverse, int8_t *restrict high,
                      int8_t *restrict low)
{
    if (!low) {
        for (int i = 0; i < kp; i++) {
            high[i] = (int8_t) nearest(z[i] * inverse);
        }
        return;
    }
    for (int i = 0; i < kp; i++) {
        float scaled = z[i] * inverse, code = nearest(scaled);
        high[i] = (int8_t) code;
        low[i] = (int8_t) nearest((scaled - code) * NPURT_RK_REMAINDER_STEPS);
    }
}

NPURT_API int npurt_rk_round(const float *x, int64_t pitch, int m, int k, int kp,
                             const int8_t *signs, int block, int passes, int8_t *codes,
                             float *scales, float *scratch)
{
    for (int i = 0; i < m; i++) {
        const float *row = x + i * pitch;
        for (int j = 0; j < k; j++) {
            scratch[j] = signs ? row[j] * signs[j] : row[j];
        }
        memset(scratch + k, 0, (size_t) (kp - k) * sizeof *scratch);
        transform(scratch, kp, block);
        float most = largest(scratch, kp), inverse = 127 / most;
        if (!isfinite(most)) {
            return i + 1;
        }
        int zero = !isfinite(inverse);
        scales[i] = zero ? 0 : most / 127;
        int8_t *low = passes == 2 ? codes + (int64_t) (m + i) * kp : NULL;
        round_row(scratch, kp, zero ? 0 : inverse, codes + (int64_t) i * kp, low);
    }
    return 0;
}
