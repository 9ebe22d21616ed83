/*
 * y[rows][16] += x[rows][blocks * 32] . tile^T          int8 x 8-bit codes
 *
 * As gemm__avx512vnni.c, with 8 rows of weights a vector and four rows of x at once.
 * Needs   AVX2, FMA.
 * Exact   equal bit for bit to every other gemm.
 */
#include "avx2.h"

INLINE void some_rows(int count, int bits, int group, int fine, const npurt_tile *w, npurt_row x,
                      int half, float *out)
{
    const int per_block = BLOCK / group, quads = group / 4;
    __m256 y[4];
#pragma clang loop unroll(full)
    for (int r = 0; r < count; r++) {
        y[r] = _mm256_loadu_ps(out + r * ROWS + 8 * half);
    }
    for (int at = 0; at < w->blocks * per_block; at++) {
        __m256i q[8];
#pragma clang loop unroll(full)
        for (int i = 0; i < quads; i++) {
            const uint8_t *from = w->codes[at / per_block][at % per_block * quads + i] + 32 * half;
            q[i] = _mm256_load_si256((const __m256i *) from);
            q[i] = bits == 8 ? _mm256_xor_si256(q[i], _mm256_set1_epi8(-128)) : q[i];
        }
        const __m256 scale = _mm256_load_ps(w->scales[at] + 8 * half);
        const __m256 offset = _mm256_load_ps(w->offsets[at] + 8 * half);
#pragma clang loop unroll(full)
        for (int r = 0; r < count; r++) {
            const npurt_block *b = x.blocks + r * (x.k / BLOCK) + at / per_block;
            const int64_t from = r * x.k + at * group;
            __m256i dot = dot_avx2(bits, quads, q, x.codes + from);
            if (fine) {
                dot = _mm256_add_epi32(_mm256_mullo_epi32(dot, _mm256_set1_epi32(FINE_STEPS)),
                                       dot_avx2(bits, quads, q, x.fine + from));
            }
            if (bits != 8 && w->shift >= 0) {
                const int32_t minus = group == 32 ? b->minus : b->minuses[at % 2];
                dot = _mm256_add_epi32(dot, _mm256_set1_epi32(minus << w->shift));
            }
            y[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot),
                                   _mm256_mul_ps(scale, _mm256_set1_ps(b->scale)), y[r]);
            if (w->offset) {
                const float sum = group == 32 ? b->sum : b->sums[at % 2];
                y[r] = _mm256_fmadd_ps(offset, _mm256_set1_ps(sum), y[r]);
            }
        }
    }
#pragma clang loop unroll(full)
    for (int r = 0; r < count; r++) {
        _mm256_storeu_ps(out + r * ROWS + 8 * half, y[r]);
    }
}

INLINE void all_rows(int bits, int group, int fine, const npurt_tile *w, const npurt_input *x,
                     int64_t row, int rows, int64_t block, float *y)
{
    for (int half = 0; half < 2; half++) {
        int r = 0;
        for (; r + 4 <= rows; r += 4) {
            some_rows(4, bits, group, fine, w, npurt_row_of(x, row + r, block), half, y + r * ROWS);
        }
        for (; r < rows; r++) {
            some_rows(1, bits, group, fine, w, npurt_row_of(x, row + r, block), half, y + r * ROWS);
        }
    }
}

INLINE void gemm(int bits, int group, const npurt_tile *w, const npurt_input *x, int64_t row,
                 int rows, int64_t block, float *y)
{
    if (x->fine_codes) {
        all_rows(bits, group, 1, w, x, row, rows, block, y);
    } else {
        all_rows(bits, group, 0, w, x, row, rows, block, y);
    }
}

void npurt_gemm__avx2(const npurt_tile *w, const npurt_input *x, int64_t row, int rows,
                      int64_t block, float *y)
{
    /* Linear codes have at most shift + 1 bits; where codes need no shift, at most 5. */
    if (w->shift == 7) {
        gemm(8, 32, w, x, row, rows, block, y);
    } else if (w->group == 32) {
        gemm(5, 32, w, x, row, rows, block, y);
    } else {
        gemm(6, 16, w, x, row, rows, block, y);
    }
}
