/*
 * out[rows][32] = a[rows][32 * tiles] . w[tiles][32][32]^T         int8 x int8 -> int32
 *
 * Needs   AVX-512 VNNI and BW.
 * Exact   vpdpbusd multiplies unsigned by signed: with w + 128 in place of w, each sum is too large
 *         by 128 times the sum of the row of a.  255 * 128 * K stays below 2^31 for K <= 65535.
 * Why     one vector holds two kernels of a tile, so a row of a is broadcast once a tile; with one
 *         row all 32 sums stay in registers and the weights stream once.
 */
#include "kernels.h"

#include <immintrin.h>

enum { ROWS = 4, VECTORS = 4 }; /* size of a block of sums: 16 registers */

static __m512i broadcast(const int8_t *a)
{
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *) a));
}

static __m512i load_unsigned(const int8_t *w)
{
    return _mm512_xor_si512(_mm512_loadu_si512(w), _mm512_set1_epi8((char) 0x80));
}

static int32_t half_total(__m256i sums)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
    return _mm_cvtsi128_si32(s);
}

static void finish(__m512i sums, int32_t excess, int32_t *out)
{
    out[0] = half_total(_mm512_castsi512_si256(sums)) - excess;
    out[1] = half_total(_mm512_extracti64x4_epi64(sums, 1)) - excess;
}

/* Returns 128 times the sum of a row. */
static int32_t excess_of(const int8_t *a, size_t tiles)
{
    const __m512i ones = _mm512_set1_epi8(1);
    __m512i sums = _mm512_setzero_si512();
    for (size_t t = 0; t < tiles; t++) {
        const __m512i row = _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *) a + t));
        sums = _mm512_dpbusd_epi32(sums, ones, row);
    }
    return 128 * _mm512_reduce_add_epi32(sums);
}

static void one_row(const int8_t *a, const int8_t *w, size_t tiles, int32_t *out)
{
    const int32_t excess = excess_of(a, tiles);
    __m512i sums[16];
    for (int v = 0; v < 16; v++) {
        sums[v] = _mm512_setzero_si512();
    }
    for (size_t t = 0; t < tiles; t++, w += 1024) {
        const __m512i row = broadcast(a + 32 * t);
        for (int v = 0; v < 16; v++) {
            sums[v] = _mm512_dpbusd_epi32(sums[v], load_unsigned(w + 64 * v), row);
        }
    }
    for (int v = 0; v < 16; v++) {
        finish(sums[v], excess, out + 2 * v);
    }
}

static void block(const int8_t *a, size_t stride, const int8_t *w, size_t tiles,
                  const int32_t *excess, int32_t *out)
{
    __m512i sums[ROWS][VECTORS];
    for (int i = 0; i < ROWS * VECTORS; i++) {
        sums[i / VECTORS][i % VECTORS] = _mm512_setzero_si512();
    }
    for (size_t t = 0; t < tiles; t++, w += 1024) {
        __m512i rows[ROWS];
        for (int r = 0; r < ROWS; r++) {
            rows[r] = broadcast(a + (size_t) r * stride + 32 * t);
        }
        for (int v = 0; v < VECTORS; v++) {
            const __m512i kernels = load_unsigned(w + 64 * v);
            for (int r = 0; r < ROWS; r++) {
                sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], kernels, rows[r]);
            }
        }
    }
    for (int r = 0; r < ROWS; r++) {
        for (int v = 0; v < VECTORS; v++) {
            finish(sums[r][v], excess[r], out + 32 * r + 2 * v);
        }
    }
}

void dot__avx512vnni(const int8_t *a, size_t rows, size_t stride, const int8_t *w, size_t tiles,
                     int32_t *out)
{
    size_t done = 0;
    for (; done + ROWS <= rows; done += ROWS) {
        int32_t excess[ROWS];
        for (int r = 0; r < ROWS; r++) {
            excess[r] = excess_of(a + (done + (size_t) r) * stride, tiles);
        }
        for (int v = 0; v < 16; v += VECTORS) {
            block(a + done * stride, stride, w + 64 * v, tiles, excess, out + 32 * done + 2 * v);
        }
    }
    for (; done < rows; done++) {
        one_row(a + done * stride, w, tiles, out + 32 * done);
    }
}
