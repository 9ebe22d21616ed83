/*
 * out[rows][32] = a[rows][32 * tiles] . w[tiles][32][32]^T int8 x int8 -> int32
 *
 * Needs AVX2.  Exact products of 16-bit values are added in pairs: 2 * 128 * 128 fits 32 bits.
 */
#include "kernels.h"

#include <immintrin.h>

enum { PART = 8 }; /* channels whose sums stay in registers */

static __m256i widen(const int8_t *from)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *) from));
}

static int32_t total(__m256i sums)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
    return _mm_cvtsi128_si32(s);
}

static void part(const int8_t *a, const int8_t *w, size_t tiles, int32_t *out)
{
    __m256i sums[PART];
    for (int n = 0; n < PART; n++) {
        sums[n] = _mm256_setzero_si256();
    }
    for (size_t t = 0; t < tiles; t++, a += 32, w += 1024) {
        const __m256i low = widen(a), high = widen(a + 16);
        for (int n = 0; n < PART; n++) {
            const __m256i first = _mm256_madd_epi16(low, widen(w + 32 * n));
            const __m256i second = _mm256_madd_epi16(high, widen(w + 32 * n + 16));
            sums[n] = _mm256_add_epi32(sums[n], _mm256_add_epi32(first, second));
        }
    }
    for (int n = 0; n < PART; n++) {
        out[n] = total(sums[n]);
    }
}

void dot__avx2(const int8_t *a, size_t rows, size_t stride, const int8_t *w, size_t tiles,
               int32_t *out)
{
    for (size_t r = 0; r < rows; r++) {
        for (int n = 0; n < 32; n += PART) {
            part(a + r * stride, w + 32 * n, tiles, out + r * 32 + n);
        }
    }
}
