/*
 * y[rows][16] += x[rows][blocks * 32] . tile^T          int8 x 8-bit codes
 *
 * tile    one record of one panel, expanded (expand__vec.c).
 * x       quantised rows; y accumulated into, so the caller walks k record by record.
 * Needs   AVX512F/BW/DQ/VL and VNNI.
 * Exact   as gemv: same operations in the same order for each element.
 * Why     eight rows share each vector of weights; x comes as embedded broadcasts, so a step is
 *         one load and one vpdpbusd.  Eight independent chains hide its latency only if they are
 *         interleaved, and compilers like to finish one after the other: hence `fence`.
 */
#include "kernels.h"
#include <immintrin.h>

/* Keeps what feeds the eight sums before it from moving past it; no instruction. */
#define fence(d)                                                                                   \
    __asm__(""                                                                                     \
            : "+v"((d)[0]), "+v"((d)[1]), "+v"((d)[2]), "+v"((d)[3]), "+v"((d)[4]), "+v"((d)[5]),  \
              "+v"((d)[6]), "+v"((d)[7]))

/* What is known of a tile when the code is compiled. */
typedef struct {
    int rows, group, biased, offset, fine;
} npurt_shape;

/* dot[r] += the products of one group of weights with codes of row r. */
INLINE void add_products(npurt_shape s, const uint8_t (*weights)[64], const int8_t *codes,
                         int64_t k, __m512i dot[8])
{
#pragma clang loop unroll(full)
    for (int i = 0; i < s.group / 4; i++) {
        const __m512i q = _mm512_load_si512(weights[i]);
#pragma clang loop unroll(full)
        for (int r = 0; r < s.rows; r++) {
            int32_t four;
            memcpy(&four, codes + r * k + 4 * i, 4);
            dot[r] = _mm512_dpbusd_epi32(dot[r], q, _mm512_set1_epi32(four));
        }
        fence(dot);
    }
}

/* Adds one group of one block to the sums of s.rows rows. */
INLINE void one_group(npurt_shape s, const npurt_tile *w, int b, int g, npurt_row row, __m512 *y)
{
    const int at = b * (BLOCK / s.group) + g;
    const int64_t blocks = row.k / BLOCK, first = b * BLOCK + s.group * g;
    const uint8_t (*weights)[64] = w->codes[b] + g * s.group / 4;
    const npurt_block *x = row.blocks + b;
    __m512i dot[8];
#pragma clang loop unroll(full)
    for (int r = 0; r < 8; r++) {
        dot[r] = _mm512_setzero_si512();
    }
    if (s.fine) {
        add_products(s, weights, row.codes + first, row.k, dot);
    }
#pragma clang loop unroll(full)
    for (int r = 0; r < s.rows; r++) {
        if (s.fine) {
            dot[r] = _mm512_mullo_epi32(dot[r], _mm512_set1_epi32(FINE_STEPS));
        }
        if (s.biased) {
            const int32_t minus = s.group == 32 ? x[r * blocks].minus : x[r * blocks].minuses[g];
            const __m128i by = _mm_cvtsi32_si128(w->shift);
            dot[r] = _mm512_add_epi32(dot[r], _mm512_sll_epi32(_mm512_set1_epi32(minus), by));
        }
    }
    add_products(s, weights, (s.fine ? row.fine : row.codes) + first, row.k, dot);
    const __m512 scale = _mm512_load_ps(w->scales[at]);
    const __m512 offset = s.offset ? _mm512_load_ps(w->offsets[at]) : scale;
#pragma clang loop unroll(full)
    for (int r = 0; r < s.rows; r++) {
        const npurt_block *xb = x + r * blocks;
        const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(xb->scale));
        y[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r]), both, y[r]);
        if (s.offset) {
            const float sum = s.group == 32 ? xb->sum : xb->sums[g];
            y[r] = _mm512_fmadd_ps(offset, _mm512_set1_ps(sum), y[r]);
        }
    }
}

INLINE void some_rows(npurt_shape s, const npurt_tile *w, const npurt_input *in, int64_t row,
                      int64_t block, float *out)
{
    const npurt_row x = npurt_row_of(in, row, block);
    __m512 y[8];
#pragma clang loop unroll(full)
    for (int r = 0; r < s.rows; r++) {
        y[r] = _mm512_loadu_ps(out + r * ROWS);
    }
    for (int b = 0; b < w->blocks; b++) {
#pragma clang loop unroll(full)
        for (int g = 0; g < BLOCK / s.group; g++) {
            one_group(s, w, b, g, x, y);
        }
    }
#pragma clang loop unroll(full)
    for (int r = 0; r < s.rows; r++) {
        _mm512_storeu_ps(out + r * ROWS, y[r]);
    }
}

INLINE void all_rows(npurt_shape s, const npurt_tile *w, const npurt_input *x, int64_t row,
                     int rows, int64_t block, float *y)
{
    int r = 0;
    for (s.rows = 8; r + 8 <= rows; r += 8) {
        some_rows(s, w, x, row + r, block, y + r * ROWS);
    }
    for (s.rows = 2; r + 2 <= rows; r += 2) {
        some_rows(s, w, x, row + r, block, y + r * ROWS);
    }
    if (r < rows) {
        s.rows = 1;
        some_rows(s, w, x, row + r, block, y + r * ROWS);
    }
}

INLINE void gemm(int group, int biased, int offset, const npurt_tile *w, const npurt_input *x,
                 int64_t row, int rows, int64_t block, float *y)
{
    if (x->fine_codes) {
        all_rows((npurt_shape){0, group, biased, offset, 1}, w, x, row, rows, block, y);
    } else {
        all_rows((npurt_shape){0, group, biased, offset, 0}, w, x, row, rows, block, y);
    }
}

void npurt_gemm__avx512vnni(const npurt_tile *w, const npurt_input *x, int64_t row, int rows,
                            int64_t block, float *y)
{
    if (w->group == 32 && w->shift < 0) {
        gemm(32, 0, 1, w, x, row, rows, block, y);
    } else if (w->group == 32) {
        gemm(32, 1, 0, w, x, row, rows, block, y);
    } else if (w->shift < 0) {
        gemm(16, 0, 1, w, x, row, rows, block, y);
    } else {
        gemm(16, 1, 0, w, x, row, rows, block, y);
    }
}
