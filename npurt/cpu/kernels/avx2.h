/*
 * Exact dot products of four codes with four int8 values, eight rows per vector, with AVX2.
 *
 * vpmaddubsw adds pairs of products in 16 bits.  Codes of up to 6 bits do not overflow
 * (63 * 127 * 2 < 32768); with 4 bits, eight results can be summed in 16 bits, with 5 bits four,
 * with 6 bits one.  Unsigned 8-bit codes would overflow, so 8-bit codes are signed, and their sign
 * is moved to x: a pair of products |w| * (sign(w) x) is at most 128 * 127 * 2 < 32768.
 */
#ifndef NPURT_AVX2_H
#define NPURT_AVX2_H

#include "kernels.h"
#include <immintrin.h>

/* Returns the dot products of `quads` vectors of codes with codes of x.  Codes of 4, 5 and 6 bits
 * are unsigned, codes of 8 bits signed. */
INLINE __m256i dot_avx2(int bits, int quads, const __m256i *q, const int8_t *codes)
{
    const __m256i one = _mm256_set1_epi16(1);
    const int room = bits == 4 ? 8 : bits == 5 ? 4 : 1;
    __m256i sum = _mm256_setzero_si256();
#pragma clang loop unroll(full)
    for (int i = 0; i < quads; i += room) {
        __m256i part = _mm256_setzero_si256();
#pragma clang loop unroll(full)
        for (int j = i; j < i + room && j < quads; j++) {
            int32_t four;
            memcpy(&four, codes + 4 * j, 4);
            const __m256i x = _mm256_set1_epi32(four);
            const __m256i pair =
                bits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(q[j]), _mm256_sign_epi8(x, q[j]))
                          : _mm256_maddubs_epi16(q[j], x);
            part = j == i ? pair : _mm256_add_epi16(part, pair);
        }
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(part, one));
    }
    return sum;
}

#endif
