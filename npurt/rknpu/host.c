/* See npurt_rk.h.  Loops are written so that clang vectorises them; nothing depends on the order. */
#include "npurt_rk.h"
#include <errno.h>
#include <math.h>
#include <string.h>

typedef float quad __attribute__((vector_size(16)));

/* Butterflies of neighbours, and of neighbours but one: in a vector, of which block takes what it
 * needs.  kp is a multiple of 4. */
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

/* One level of butterflies after another; floating-point adds in a fixed order, so results are the
 * same bits on every machine. */
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

/* The largest magnitude, or NaN or infinity when there is one: as integers, the bits of magnitudes
 * are in that order, and integers have no order of adding up that would have to be kept. */
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

/* rintf for magnitudes up to 2^22: above 2^23 a float has no fraction.  Vectors of it need no
 * instruction that an x86-64 may lack. */
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
        low[i] = (int8_t) nearest((scaled - code) * 254);
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
    const double scale = passes == 2 ? b->scales[i] / 254.0 : b->scales[i];
    if (b->slices == 1 && passes == 1) {
        for (int j = 0; j < b->n; j++) {
            put(b, y, j, high[j] * scale * b->w[j]);
        }
        return;
    }
    if (b->slices == 1) {
        for (int j = 0; j < b->n; j++) {
            put(b, y, j, (high[j] * 254.0 + low[j]) * scale * b->w[j]);
        }
        return;
    }
    for (int j = 0; j < b->n; j++) {
        int64_t sum = 0;
        for (int s = 0; s < b->slices; s++) {
            const int64_t first = high[s * b->slice + j];
            sum += passes == 2 ? 254 * first + low[s * b->slice + j] : first;
        }
        put(b, y, j, (double) sum * scale * b->w[j]);
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

static int request(npurt_rk_ioctl *ioctl, const npurt_rk_request *r, int tries)
{
    int code = EINTR;
    for (int i = 0; code == EINTR && i < tries; i++) {
        code = ioctl(r->fd, r->number, r->argument) < 0 ? errno : 0;
    }
    return code;
}

NPURT_API int npurt_rk_make(npurt_rk_ioctl *ioctl, npurt_rk_calls *calls)
{
    for (int i = 0; i < calls->mark_count; i++) {
        memcpy(calls->marks[i], calls->mark, (size_t) calls->mark_bytes);
    }
    for (int i = 0; i < calls->count; i++) {
        calls->error = request(ioctl, calls->requests + i, calls->tries);
        if (calls->error) {
            return i + 1;
        }
    }
    for (int i = 0; i < calls->mark_count; i++) {
        if (!memcmp(calls->marks[i], calls->mark, (size_t) calls->mark_bytes)) {
            return -1 - i;
        }
    }
    return 0;
}
