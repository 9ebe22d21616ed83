/* See npurt_rk.h.  Loops are written so that clang vectorises them; nothing depends on the order. */
#include "npurt_rk.h"
#include <math.h>
#include <string.h>

/* One level of butterflies after another; floating-point adds in a fixed order, so results are the
 * same bits on every machine. */
static void transform(float *z, int kp, int block)
{
    for (int half = 1; half < block; half *= 2) {
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

/* The largest magnitude, or NaN or infinity when there is one. */
static float largest(const float *z, int kp)
{
    float most = 0, poison = 0;
    for (int i = 0; i < kp; i++) {
        float size = fabsf(z[i]);
        most = size > most ? size : most;
        poison += z[i] - z[i]; /* 0, or NaN */
    }
    return most + poison;
}

static void round_row(const float *restrict z, int kp, float inverse, int8_t *restrict high,
                      int8_t *restrict low)
{
    if (!low) {
        for (int i = 0; i < kp; i++) {
            high[i] = (int8_t) rintf(z[i] * inverse);
        }
        return;
    }
    for (int i = 0; i < kp; i++) {
        float scaled = z[i] * inverse, code = rintf(scaled);
        high[i] = (int8_t) code;
        low[i] = (int8_t) rintf((scaled - code) * 254);
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

NPURT_API void npurt_rk_rescale(const int32_t *sums, int m, int n, int columns, int passes,
                                const float *scales, const float *w, float *y, int64_t pitch,
                                int add)
{
    for (int i = 0; i < m; i++) {
        const int32_t *restrict high = sums + (int64_t) i * columns;
        const int32_t *restrict low = passes == 2 ? sums + (int64_t) (m + i) * columns : NULL;
        float *restrict out = y + i * pitch;
        double scale = scales[i];
        for (int j = 0; j < n; j++) {
            double sum = low ? high[j] + low[j] / 254.0 : high[j];
            float result = (float) (sum * scale * w[j]);
            out[j] = add ? out[j] + result : result;
        }
    }
}
