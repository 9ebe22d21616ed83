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

NPURT_API int npurt_rk_write(const npurt_rk_part *parts, int count, const float *x, int64_t pitch,
                             int m, int passes, float *scratch)
{
    for (int i = 0; i < count; i++) {
        const npurt_rk_part *p = parts + i;
        int bad = npurt_rk_round(x + p->first, pitch, m, p->k, p->kp, p->signs, p->block, passes,
                                 p->codes, p->scales, scratch);
        if (bad) {
            return bad;
        }
    }
    return 0;
}

static void put(const npurt_rk_block *b, float *restrict y, int j, double value)
{
    float result = (float) value;
    y[j] = b->add ? y[j] + result : result;
}

static void read_integers(const npurt_rk_block *b, int i, int m, int passes, float *restrict y)
{
    const int32_t *high = (const int32_t *) b->sums + (int64_t) i * b->columns;
    const int32_t *low = high + (int64_t) m * b->columns;
    const double scale = b->scales[i];
    if (b->slices == 1 && passes == 1) {
        for (int j = 0; j < b->n; j++) {
            put(b, y, j, high[j] * scale * b->w[j]);
        }
        return;
    }
    for (int j = 0; j < b->n; j++) {
        int64_t first = 0, second = 0;
        for (int s = 0; s < b->slices; s++) {
            first += high[s * b->slice + j];
            second += passes == 2 ? low[s * b->slice + j] : 0;
        }
        put(b, y, j, ((double) first + (double) second / 254.0) * scale * b->w[j]);
    }
}

static void read_floats(const npurt_rk_block *b, int i, float *restrict y)
{
    const float *sums = (const float *) b->sums + (int64_t) i * b->columns;
    for (int j = 0; j < b->n; j++) {
        double sum = 0;
        for (int s = 0; s < b->slices; s++) {
            sum += sums[s * b->slice + j];
        }
        put(b, y, j, sum * b->scales[i] * b->w[j]);
    }
}

NPURT_API void npurt_rk_read(const npurt_rk_block *blocks, int count, int m, int passes, int floats,
                             float *const *y, const int64_t *pitch)
{
    for (const npurt_rk_block *b = blocks; b < blocks + count; b++) {
        for (int i = 0; i < m; i++) {
            float *out = y[b->y] + i * pitch[b->y] + b->first;
            if (floats) {
                read_floats(b, i, out);
            } else {
                read_integers(b, i, m, passes, out);
            }
        }
    }
}
