/*
 * y[rows][0..16) = x[rows][4 * quads] . w^T          int8 x int8 -> int32, exact
 *
 * Arguments as npurt_i8_fn in kernels.h.  Sums wrap modulo 2^32, so the caller must limit k.
 * Needs   AVX512F and VNNI.
 * Why     each vector of w is loaded once for eight rows of x; no scaling is needed.
 */
#include "kernels.h"
#include <immintrin.h>

INLINE void some_rows(int count, const uint8_t *w, int64_t quads, const int8_t *x,
                      const int32_t *minus, int32_t *y, int64_t stride)
{
    __m512i sum[8];
#pragma clang loop unroll(full)
    for (int r = 0; r < count; r++) {
        sum[r] = _mm512_set1_epi32(minus[r]);
    }
    for (int64_t q = 0; q < quads; q++) {
        const __m512i codes = _mm512_loadu_si512(w + 64 * q);
#pragma clang loop unroll(full)
        for (int r = 0; r < count; r++) {
            int32_t four;
            memcpy(&four, x + (r * quads + q) * 4, 4);
            sum[r] = _mm512_dpbusd_epi32(sum[r], codes, _mm512_set1_epi32(four));
        }
    }
#pragma clang loop unroll(full)
    for (int r = 0; r < count; r++) {
        _mm512_storeu_si512(y + r * stride, sum[r]);
    }
}

void npurt_i8__avx512vnni(const uint8_t *w, int64_t quads, const int8_t *x, const int32_t *minus,
                          int rows, int32_t *y, int64_t stride)
{
    int r = 0;
    for (; r + 8 <= rows; r += 8) {
        some_rows(8, w, quads, x + r * 4 * quads, minus + r, y + r * stride, stride);
    }
    for (; r < rows; r++) {
        some_rows(1, w, quads, x + r * 4 * quads, minus + r, y + r * stride, stride);
    }
}
