/*
 * y[rows][16 * panels] = x[rows][k] . W^T            float32 x float32/float16/bfloat16
 *
 * W       [panels][k][16], 16 rows side by side.
 * y       overwritten; `stride` is in elements.
 * Exact   y = fma(w, x, y) for k in order, with the same result for one row and for many.
 * Why     one row of x is multiplied by four panels at a time.  For many rows, each vector of W is
 *         converted once for eight rows.
 */
#include "kernels.h"

INLINE f32x16 load_weight(const uint8_t *p, int bits, int bfloat)
{
    if (bits == 32) {
        return load_f32((const float *) (const void *) p);
    }
    if (!bfloat) {
        return load_f16(p);
    }
    u16x16 h;
    memcpy(&h, p, sizeof h);
    const u32x16 wide = __builtin_convertvector(h, u32x16) << 16;
    f32x16 v;
    memcpy(&v, &wide, sizeof v);
    return v;
}

INLINE void one_row(const uint8_t *image, int count, const float *x, int64_t k, float *y, int bits,
                    int bfloat)
{
    const size_t line = (size_t) (2 * bits), panel = line * (size_t) k;
    f32x16 sum[4];
#pragma clang loop unroll(full)
    for (int p = 0; p < count; p++) {
        sum[p] = 0.0f;
    }
    for (int64_t i = 0; i < k; i++) {
#pragma clang loop unroll(full)
        for (int p = 0; p < count; p++) {
            const uint8_t *at = image + (size_t) p * panel + (size_t) i * line;
            sum[p] = fma16(load_weight(at, bits, bfloat), (f32x16) (x[i]), sum[p]);
        }
    }
#pragma clang loop unroll(full)
    for (int p = 0; p < count; p++) {
        store_f32(y + p * ROWS, sum[p]);
    }
}

INLINE void some_rows(const uint8_t *image, int count, const float *x, int64_t k, float *y,
                      int64_t stride, int bits, int bfloat)
{
    f32x16 sum[8];
#pragma clang loop unroll(full)
    for (int r = 0; r < count; r++) {
        sum[r] = 0.0f;
    }
    for (int64_t i = 0; i < k; i++) {
        const f32x16 w = load_weight(image + i * 2 * bits, bits, bfloat);
#pragma clang loop unroll(full)
        for (int r = 0; r < count; r++) {
            sum[r] = fma16(w, (f32x16) (x[r * k + i]), sum[r]);
        }
    }
#pragma clang loop unroll(full)
    for (int r = 0; r < count; r++) {
        store_f32(y + r * stride, sum[r]);
    }
}

INLINE void dense(const uint8_t *image, int panels, const float *x, int rows, int64_t k, float *y,
                  int64_t stride, int bits, int bfloat)
{
    const size_t panel = (size_t) (2 * bits) * (size_t) k;
    int p = 0;
    for (; rows == 1 && p + 4 <= panels; p += 4) {
        one_row(image + (size_t) p * panel, 4, x, k, y + p * ROWS, bits, bfloat);
    }
    for (; p < panels; p++) {
        const uint8_t *w = image + (size_t) p * panel;
        int r = 0;
        for (; r + 8 <= rows; r += 8) {
            some_rows(w, 8, x + r * k, k, y + r * stride + p * ROWS, stride, bits, bfloat);
        }
        for (; r < rows; r++) {
            some_rows(w, 1, x + r * k, k, y + r * stride + p * ROWS, stride, bits, bfloat);
        }
    }
}

#define NPURT_DENSE(name, bits, bfloat)                                                            \
    npurt_dense_fn AT_LEVEL(npurt_dense_##name);                                                   \
    void AT_LEVEL(npurt_dense_##name)(const uint8_t *image, int panels, const float *x, int rows,  \
                                      int64_t k, float *y, int64_t stride)                         \
    {                                                                                              \
        dense(image, panels, x, rows, k, y, stride, bits, bfloat);                                 \
    }
NPURT_DENSE(f32, 32, 0)
NPURT_DENSE(f16, 16, 0)
NPURT_DENSE(bf16, 16, 1)
