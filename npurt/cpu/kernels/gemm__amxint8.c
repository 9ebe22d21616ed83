/*
 * y[rows][16] += x[rows][blocks * 32] . tile^T          int8 x 8-bit codes, AMX tiles
 *
 * tile    one record of one panel, expanded; its codes are in the order that AMX needs.
 * x       quantised rows, loaded into tiles directly from memory.
 * Needs   AMX-TILE, AMX-INT8 and AVX512; kernels.c requests the permission to use AMX.
 * Exact   as gemv__avx512vnni.c: tiles compute exact int32 dot products of one group, and vectors
 *         scale them in the same order.
 * Why     a group of 32 columns is half the depth of a tile.  A tile product is 8192 multiply-adds,
 *         and takes about as long as scaling its 256 results.  So 16 sums of y stay in registers,
 *         and the next group is multiplied while the current one is scaled.  Codes are converted to
 *         signed first, so that results need no correction.
 * Source  Intel SDM vol. 2 (LDTILECFG, TDPBSSD).
 */
#include "kernels.h"
#include <immintrin.h>

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t column_bytes[16];
    uint8_t rows[16];
} npurt_tile_config;

enum { SUM, X, W }; /* tile registers: results [rows][16], rows of x, weights */

typedef uint8_t npurt_codes[RECORD_BLOCKS][8][64];

static void configure(int group, int rows)
{
    _Alignas(64) npurt_tile_config config = {.palette = 1};
    config.column_bytes[SUM] = config.column_bytes[W] = 64;
    config.column_bytes[X] = (uint16_t) group;
    config.rows[SUM] = config.rows[X] = (uint8_t) rows;
    config.rows[W] = (uint8_t) (group / 4);
    _tile_loadconfig(&config);
}

/* code + 2^shift -> code, as int8 */
static void make_signed(const npurt_tile *w, npurt_codes out)
{
    const __m512i bias = _mm512_set1_epi8((char) (w->shift < 0 ? 0 : 1 << w->shift));
    for (int b = 0; b < w->blocks; b++) {
        for (int q = 0; q < 8; q++) {
            const __m512i codes = _mm512_load_si512(w->codes[b][q]);
            _mm512_store_si512(out[b][q], _mm512_sub_epi8(codes, bias));
        }
    }
}

/* dots[rows][16] = products of one group with the rows from `x` on */
INLINE void multiply(const uint8_t *codes, const int8_t *x, size_t stride, void *dots)
{
    _tile_zero(SUM);
    _tile_loadd(X, x, stride);
    _tile_loadd(W, codes, 64);
    _tile_dpbssd(SUM, X, W);
    _tile_stored(SUM, dots, 64);
}

/* The dot products of one group with codes and with remainders. */
typedef struct {
    _Alignas(64) int32_t codes[16][ROWS], remainders[16][ROWS];
} npurt_dots;

INLINE void multiply_group(int group, int at, npurt_codes codes, const npurt_row *x,
                           npurt_dots *dots)
{
    const uint8_t *w = codes[at * group / BLOCK][at * group % BLOCK / 4];
    multiply(w, x->codes + at * group, (size_t) x->k, dots->codes);
    if (x->remainders) {
        multiply(w, x->remainders + at * group, (size_t) x->k, dots->remainders);
    }
}

INLINE __m512i dot_of(int int16, const npurt_dots *dots, int r)
{
    const __m512i code_dot = _mm512_load_si512(dots->codes[r]);
    return int16
               ? _mm512_add_epi32(_mm512_mullo_epi32(code_dot, _mm512_set1_epi32(REMAINDER_STEPS)),
                                  _mm512_load_si512(dots->remainders[r]))
               : code_dot;
}

/* Computes up to 16 rows from x on; the tiles are configured for `rows` rows. */
INLINE void some_rows(int rows, int group, int offset, int int16, const npurt_tile *w,
                      npurt_codes codes, npurt_row x, float *out)
{
    npurt_dots dots[2];
    const int per_block = BLOCK / group, groups = w->blocks * per_block;
    __m512 y[16];
#pragma clang loop unroll(full)
    for (int r = 0; r < 16; r++) {
        y[r] = r < rows ? _mm512_loadu_ps(out + r * ROWS) : _mm512_setzero_ps();
    }
    multiply_group(group, 0, codes, &x, &dots[0]);
    for (int at = 0; at < groups; at++) {
        const __m512 scale = _mm512_load_ps(w->scales[at]);
        const __m512 minimum = _mm512_load_ps(w->offsets[at]);
        if (at + 1 < groups) {
            multiply_group(group, at + 1, codes, &x, &dots[(at + 1) % 2]);
        }
#pragma clang loop unroll(full)
        for (int r = 0; r < 16; r++) {
            const npurt_block *xb = x.blocks + (r < rows ? r : 0) * (x.k / BLOCK) + at / per_block;
            const __m512 dot = _mm512_cvtepi32_ps(dot_of(int16, &dots[at % 2], r));
            y[r] = _mm512_fmadd_ps(dot, _mm512_mul_ps(scale, _mm512_set1_ps(xb->scale)), y[r]);
            if (offset) {
                const float sum = group == 32 ? xb->sum : xb->sums[at % 2];
                y[r] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(sum), y[r]);
            }
        }
    }
#pragma clang loop unroll(full)
    for (int r = 0; r < 16; r++) {
        if (r < rows) {
            _mm512_storeu_ps(out + r * ROWS, y[r]);
        }
    }
}

INLINE void all_rows(int group, int offset, int int16, const npurt_tile *w, const npurt_input *x,
                     int64_t row, int rows, int64_t block, float *y)
{
    _Alignas(64) npurt_codes codes;
    make_signed(w, codes);
    configure(group, 16);
    for (; rows >= 16; rows -= 16, row += 16, y += 16 * ROWS) {
        some_rows(16, group, offset, int16, w, codes, npurt_row_of(x, row, block), y);
    }
    if (rows) {
        configure(group, rows);
        some_rows(rows, group, offset, int16, w, codes, npurt_row_of(x, row, block), y);
    }
    _tile_release();
}

INLINE void gemm(int group, int offset, const npurt_tile *w, const npurt_input *x, int64_t row,
                 int rows, int64_t block, float *y)
{
    if (x->remainders) {
        all_rows(group, offset, 1, w, x, row, rows, block, y);
    } else {
        all_rows(group, offset, 0, w, x, row, rows, block, y);
    }
}

void npurt_gemm__amxint8(const npurt_tile *w, const npurt_input *x, int64_t row, int rows,
                         int64_t block, float *y)
{
    if (w->group == 32 && w->offset) {
        gemm(32, 1, w, x, row, rows, block, y);
    } else if (w->group == 32) {
        gemm(32, 0, w, x, row, rows, block, y);
    } else if (w->offset) {
        gemm(16, 1, w, x, row, rows, block, y);
    } else {
        gemm(16, 0, w, x, row, rows, block, y);
    }
}
