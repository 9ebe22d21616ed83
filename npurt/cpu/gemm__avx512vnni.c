/*
 * y[rows][16] += x[rows][blocks * 32] . tile^T          int8 x 8-bit codes
 *
 * tile    one record of one panel, expanded (expand__vec.c).
 * x       quantised rows; y accumulated into, so the caller walks k record by record.
 * Needs   AVX512F/BW/DQ/VL and VNNI.
 * Exact   as gemv: same operations in the same order for each element.
 * Why     eight rows share each vector of weights; x comes as embedded broadcasts, so a step is
 *         one load and one vpdpbusd, and eight chains hide its latency.
 */
#include "kernels.h"
#include <immintrin.h>

INLINE void some_rows(int count, int group, const npurt_tile *w, const npurt_input *x, int64_t row,
                      int64_t block, float *out)
{
    const int64_t blocks = x->k / BLOCK;
    const int per_block = BLOCK / group;
    __m512 y[8];
#pragma clang loop unroll(full)
    for (int r = 0; r < count; r++) {
        y[r] = _mm512_loadu_ps(out + r * ROWS);
    }
    for (int b = 0; b < w->blocks; b++) {
        for (int g = 0; g < per_block; g++) {
            const int at = b * per_block + g;
            const __m512 scale = _mm512_load_ps(w->scales[at]);
            const int64_t of_row = (block + b) * per_block + g;
            __m512i dot[8];
#pragma clang loop unroll(full)
            for (int r = 0; r < count; r++) {
                const int64_t in = (row + r) * blocks * per_block + of_row;
                const int32_t minus = group == 32 ? x->minus32[in] : x->minus16[in];
                dot[r] = w->shift < 0 ? _mm512_setzero_si512()
                                      : _mm512_slli_epi32(_mm512_set1_epi32(minus),
                                                          (unsigned) w->shift);
            }
#pragma clang loop unroll(full)
            for (int i = 0; i < group / 4; i++) {
                const __m512i q = _mm512_load_si512(w->codes[b][g * (group / 4) + i]);
#pragma clang loop unroll(full)
                for (int r = 0; r < count; r++) {
                    int32_t four;
                    memcpy(&four, x->codes + (row + r) * x->k + of_row * group + 4 * i, 4);
                    dot[r] = _mm512_dpbusd_epi32(dot[r], q, _mm512_set1_epi32(four));
                }
            }
#pragma clang loop unroll(full)
            for (int r = 0; r < count; r++) {
                const float scale_x = x->scales[(row + r) * blocks + block + b];
                y[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r]),
                                       _mm512_mul_ps(scale, _mm512_set1_ps(scale_x)), y[r]);
            }
            if (w->offset) {
                const __m512 offset = _mm512_load_ps(w->offsets[at]);
#pragma clang loop unroll(full)
                for (int r = 0; r < count; r++) {
                    const int64_t in = (row + r) * blocks * per_block + of_row;
                    const float sum = group == 32 ? x->sums32[in] : x->sums16[in];
                    y[r] = _mm512_fmadd_ps(offset, _mm512_set1_ps(sum), y[r]);
                }
            }
        }
    }
#pragma clang loop unroll(full)
    for (int r = 0; r < count; r++) {
        _mm512_storeu_ps(out + r * ROWS, y[r]);
    }
}

INLINE void gemm(int group, const npurt_tile *w, const npurt_input *x, int64_t row, int rows,
                 int64_t block, float *y)
{
    int r = 0;
    for (; r + 8 <= rows; r += 8) {
        some_rows(8, group, w, x, row + r, block, y + r * ROWS);
    }
    for (; r + 2 <= rows; r += 2) {
        some_rows(2, group, w, x, row + r, block, y + r * ROWS);
    }
    if (r < rows) {
        some_rows(1, group, w, x, row + r, block, y + r * ROWS);
    }
}

void npurt_gemm__avx512vnni(const npurt_tile *w, const npurt_input *x, int64_t row, int rows,
                            int64_t block, float *y)
{
    if (w->group == 32) {
        gemm(32, w, x, row, rows, block, y);
    } else {
        gemm(16, w, x, row, rows, block, y);
    }
}
