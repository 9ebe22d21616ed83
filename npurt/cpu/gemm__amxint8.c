/*
 * y[rows][16] += x[rows][blocks * 32] . tile^T          int8 x 8-bit codes, AMX tiles
 *
 * tile    one record of one panel, expanded: its codes are already in the order AMX wants.
 * x       quantised rows, read straight from memory; the rest past a multiple of 16 rows too.
 * Needs   AMX-TILE, AMX-INT8 and AVX512; permission asked for in kernels.c.
 * Exact   as gemv__avx512vnni.c: the tiles give exact int32 dot products of one group, vectors
 *         scale them in the same order.
 * Why     a group of 32 columns is half a tile deep, so a tile product is worth 8192
 *         multiply-adds and costs about what scaling its 256 results does: four row tiles are kept
 *         in flight so that both units stay busy.
 * Source  Intel SDM vol. 2 (LDTILECFG, TDPBSUD); A signed, B unsigned.
 */
#include "kernels.h"
#include <immintrin.h>

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t column_bytes[16];
    uint8_t rows[16];
} npurt_tile_config;

enum { C0, C1, C2, C3, A, B };

/* Tiles 0-3: 16 x 16 results; 4: 16 rows of x; 5: the group's weights. */
static void configure(int group, int last_rows)
{
    _Alignas(64) npurt_tile_config config = {.palette = 1};
    for (int t = C0; t <= C3; t++) {
        config.column_bytes[t] = 64;
        config.rows[t] = (uint8_t) (t == C3 ? last_rows : 16);
    }
    config.column_bytes[A] = (uint16_t) group;
    config.rows[A] = 16;
    config.column_bytes[6] = (uint16_t) group;
    config.rows[6] = (uint8_t) last_rows;
    config.column_bytes[B] = 64;
    config.rows[B] = (uint8_t) (group / 4);
    _tile_loadconfig(&config);
}

/* Scales one group's dot products of `rows` rows into y. */
INLINE void scale_rows(const npurt_tile *w, int at, const npurt_input *x, int64_t row, int rows,
                       int64_t block, const int32_t (*dots)[ROWS], float *y)
{
    const int64_t blocks = x->k / BLOCK;
    const __m512 scale = _mm512_load_ps(w->scales[at]);
    const __m512 offset = _mm512_load_ps(w->offsets[at]);
    for (int r = 0; r < rows; r++) {
        const npurt_block *b = x->blocks + (row + r) * blocks + block;
        __m512i dot = _mm512_load_si512(dots[r]);
        if (w->shift >= 0) {
            const int32_t minus = w->group == 32 ? b->minus : b->minuses[at % 2];
            dot = _mm512_add_epi32(dot, _mm512_set1_epi32(minus << w->shift));
        }
        __m512 sum = _mm512_loadu_ps(y + r * ROWS);
        sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(scale, _mm512_set1_ps(b->scale)),
                              sum);
        if (w->offset) {
            const float s = w->group == 32 ? b->sum : b->sums[at % 2];
            sum = _mm512_fmadd_ps(offset, _mm512_set1_ps(s), sum);
        }
        _mm512_storeu_ps(y + r * ROWS, sum);
    }
}

/* Rows [row, row + 16 * tiles), all of the record. */
INLINE void full_tiles(int tiles, const npurt_tile *w, const npurt_input *x, int64_t row,
                       int64_t block, float *y)
{
    _Alignas(64) int32_t dots[4][16][ROWS];
    const int per_block = BLOCK / w->group;
    const size_t stride = (size_t) x->k;
    for (int at = 0; at < w->blocks * per_block; at++) {
        const int b = at / per_block, quad = at % per_block * (w->group / 4);
        const int64_t of_row = block * per_block + at;
        const int8_t *from = x->codes + row * x->k + of_row * w->group;
        _tile_loadd(B, w->codes[b][quad], 64);
        _tile_zero(C0);
        _tile_loadd(A, from, stride);
        _tile_dpbsud(C0, A, B);
        _tile_stored(C0, dots[0], 64);
        if (tiles > 1) {
            _tile_zero(C1);
            _tile_loadd(A, from + 16 * stride, stride);
            _tile_dpbsud(C1, A, B);
            _tile_stored(C1, dots[1], 64);
            _tile_zero(C2);
            _tile_loadd(A, from + 32 * stride, stride);
            _tile_dpbsud(C2, A, B);
            _tile_stored(C2, dots[2], 64);
        }
        for (int t = 0; t < (tiles > 1 ? 3 : 1); t++) {
            scale_rows(w, at, x, row + 16 * t, 16, block + b, dots[t], y + 16 * t * ROWS);
        }
    }
}

/* The last rows, fewer than 16. */
static void last_rows(int rows, const npurt_tile *w, const npurt_input *x, int64_t row,
                      int64_t block, float *y)
{
    _Alignas(64) int32_t dots[16][ROWS];
    const int per_block = BLOCK / w->group;
    for (int at = 0; at < w->blocks * per_block; at++) {
        const int b = at / per_block, quad = at % per_block * (w->group / 4);
        const int64_t of_row = block * per_block + at;
        _tile_loadd(B, w->codes[b][quad], 64);
        _tile_zero(C3);
        _tile_loadd(6, x->codes + row * x->k + of_row * w->group, (size_t) x->k);
        _tile_dpbsud(C3, 6, B);
        _tile_stored(C3, dots, 64);
        scale_rows(w, at, x, row, rows, block + b, dots, y);
    }
}

void npurt_gemm__amxint8(const npurt_tile *w, const npurt_input *x, int64_t row, int rows,
                         int64_t block, float *y)
{
    const int rest = rows % 16;
    configure(w->group, rest ? rest : 16);
    int r = 0;
    for (; r + 48 <= rows; r += 48) {
        full_tiles(3, w, x, row + r, block, y + r * ROWS);
    }
    for (; r + 16 <= rows; r += 16) {
        full_tiles(1, w, x, row + r, block, y + r * ROWS);
    }
    if (rest) {
        last_rows(rest, w, x, row + r, block, y + r * ROWS);
    }
    _tile_release();
}
