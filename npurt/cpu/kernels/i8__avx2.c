/*
 * y[rows][0..16) = x[rows][4 * quads] . w^T          int8 x int8 -> int32, exact
 *
 * Arguments as npurt_i8_fn in kernels.h.  Sums wrap modulo 2^32, so the caller must limit k.
 * Needs   AVX2.
 * Why     the method of avx2.h needs -x, but 128 does not fit int8.  So both operands are widened
 *         to 16 bits, where vpmaddwd is exact: 255 * 128 * 2 < 2^17 fits its 32-bit sums.
 */
#include "kernels.h"
#include <immintrin.h>

/* Adds the products of rows 4 * part .. 4 * part + 3 of w with one row of x; each row of w has two
 * partial sums. */
INLINE __m256i step(const uint8_t *w, int part, __m256i x16, __m256i sum)
{
    const __m128i codes = _mm_loadu_si128((const __m128i *) (w + 16 * part));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_cvtepu8_epi16(codes), x16));
}

void npurt_i8__avx2(const uint8_t *w, int64_t quads, const int8_t *x, const int32_t *minus,
                    int rows, int32_t *y, int64_t stride)
{
    for (int r = 0; r < rows; r++) {
        __m256i sum[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                          _mm256_setzero_si256()};
        for (int64_t q = 0; q < quads; q++) {
            int32_t four;
            memcpy(&four, x + (r * quads + q) * 4, 4);
            const __m256i x16 = _mm256_cvtepi8_epi16(_mm_set1_epi32(four));
            for (int part = 0; part < 4; part++) {
                sum[part] = step(w + 64 * q, part, x16, sum[part]);
            }
        }
        for (int part = 0; part < 4; part++) {
            const __m256i pairs = _mm256_hadd_epi32(sum[part], sum[part]);
            const __m128i four = _mm_unpacklo_epi64(_mm256_castsi256_si128(pairs),
                                                    _mm256_extracti128_si256(pairs, 1));
            _mm_storeu_si128((__m128i *) (y + r * stride + 4 * part),
                             _mm_add_epi32(four, _mm_set1_epi32(minus[r])));
        }
    }
}
