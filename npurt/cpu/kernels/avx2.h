/*
 * Exact dot products of four unsigned codes with four int8 values, eight rows a vector, with AVX2.
 *
 * vpmaddubsw adds pairs in 16 bits: a code of up to 6 bits leaves room (63 * 127 * 2 < 32768), and
 * one of 4 bits for the sum of eight steps, 5 bits of four, 6 bits of one.  Codes of 8 bits would
 * overflow, so they are taken as signed, and the sign is moved to x: |w| * sign(w) x is at most
 * 128 * 127 * 2 < 32768.
 */
#ifndef NPURT_AVX2_H
#define NPURT_AVX2_H

#include "kernels.h"
#include <immintrin.h>

/* Sum over `quads` vectors of codes, each times four codes of x.  bits: 4, 5, 6; 8: signed. */
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
