/*
 * y[0..16*panels) = x[0..k) . W^T            int8 x 4/5/6/8-bit codes, one row of x
 *
 * x       codes, scales and sums of one row, as `quantise` leaves them.
 * W       image of panels (layout.h), four read at once: four streams keep DRAM busier than one.
 * k       a multiple of 32, any length.
 * Needs   AVX512F/BW/DQ/VL and VNNI.
 * Exact   dot products of a group are exact int32; then, group by group in order,
 *         y = fma(dot, scale_w * scale_x, y) and y = fma(offset_w, sum_x, y): every kernel does
 *         these same operations, so all are equal bit for bit.
 * Why     16 rows by 4 columns a vector: a splat of four x values meets 64 weights, sums never
 *         cross lanes, and the scales of 16 rows are one vector.
 */
#include "kernels.h"
#include <immintrin.h>

INLINE __m512i bytes(int v)
{
    return _mm512_set1_epi8((char) v);
}

/* Returns the eight vectors of unsigned codes of one block. */
INLINE void expand(const uint8_t *c, npurt_format f, __m512i book, __m512i q[8])
{
    if (f.bits == 8) {
        for (int i = 0; i < 8; i++) {
            q[i] = _mm512_loadu_si512(c + 64 * i);
        }
        return;
    }
    for (int i = 0; i < 4; i++) {
        const __m512i v = _mm512_loadu_si512(c + 64 * i);
        q[i] = _mm512_and_si512(v, bytes(15));
        q[i + 4] = _mm512_and_si512(_mm512_srli_epi16(v, 4), bytes(15));
    }
    if (f.book) {
        for (int i = 0; i < 8; i++) {
            q[i] = _mm512_shuffle_epi8(book, q[i]);
        }
    }
    if (f.bits == 5) {
        const __m512i h = _mm512_loadu_si512(c + 256);
        for (int i = 0; i < 8; i++) {
            const __m512i s = i < 5 ? _mm512_slli_epi16(h, (unsigned) (i < 5 ? 4 - i : 0))
                                    : _mm512_srli_epi16(h, (unsigned) (i < 5 ? 0 : i - 4));
            q[i] = _mm512_ternarylogic_epi32(q[i], s, bytes(0x10), 0xF8); /* q | (s & m) */
        }
    }
    if (f.bits == 6) {
        for (int i = 0; i < 8; i++) {
            const __m512i h = _mm512_loadu_si512(c + 256 + 64 * (i / 4));
            const int j = i % 4;
            const __m512i s = j < 2    ? _mm512_slli_epi16(h, (unsigned) (j < 2 ? 4 - 2 * j : 0))
                              : j == 2 ? h
                                       : _mm512_srli_epi16(h, 2);
            q[i] = _mm512_ternarylogic_epi32(q[i], s, bytes(0x30), 0xF8);
        }
    }
}

INLINE __m512 halves(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p));
}

INLINE __m512 small(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) p)));
}

/* 2^(e - 128), subnormal for e < 2. */
INLINE __m512 power(const uint8_t *p)
{
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *) p));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i low = _mm512_sllv_epi32(_mm512_set1_epi32(0x200000), e);
    const __mmask16 is_low = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_low, low));
}

INLINE __m512 dot_step(__m512 y, __m512i dot, __m512 scale, __m512 scale_x)
{
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(scale, scale_x), y);
}

/* `count` panels at once. */
INLINE void panels_at_once(npurt_format f, int count, const uint8_t *image, size_t stride,
                           const npurt_row *x, float *out)
{
    const int64_t blocks = x->k / BLOCK;
    const int per_block = BLOCK / f.group;
    const __m512i book = _mm512_broadcast_i32x4(
        _mm_xor_si128(_mm_loadu_si128((const __m128i *) npurt_books[f.book]), _mm_set1_epi8(-128)));
    const uint8_t *at[4];
    __m512 y[4];
#pragma clang loop unroll(full)
    for (int p = 0; p < count; p++) {
        at[p] = image + (size_t) p * stride;
        y[p] = _mm512_setzero_ps();
    }
    for (int64_t first = 0; first < blocks; first += RECORD_BLOCKS) {
        const int n = blocks - first < RECORD_BLOCKS ? (int) (blocks - first) : RECORD_BLOCKS;
        const size_t held = scale_bytes(f.scale, f.group, 0, n);
        const size_t codes = scale_bytes(f.scale, f.group, f.offset, n);
        __m512 d[4], dmin[4];
        if (f.scale == SUPER) {
#pragma clang loop unroll(full)
            for (int p = 0; p < count; p++) {
                d[p] = halves(at[p]);
                dmin[p] = f.offset ? halves(at[p] + 2 * ROWS) : d[p];
            }
        }
        for (int b = 0; b < n; b++) {
            const int64_t block = first + b;
            __m512i xq[8];
#pragma clang loop unroll(full)
            for (int i = 0; i < 8; i++) {
                int32_t four;
                memcpy(&four, x->codes + block * BLOCK + 4 * i, 4);
                xq[i] = _mm512_set1_epi32(four);
            }
            const __m512 scale_x = _mm512_set1_ps(x->scales[block]);
#pragma clang loop unroll(full)
            for (int p = 0; p < count; p++) {
                __m512i q[8];
                expand(at[p] + codes + code_bytes(f.bits) * (size_t) b, f, book, q);
#pragma clang loop unroll(full)
                for (int g = 0; g < per_block; g++) {
                    const size_t group = (size_t) (b * per_block + g);
                    __m512i dot = _mm512_setzero_si512();
                    if (f.shift >= 0) {
                        const int32_t *minus = f.group == 32 ? x->minus32 + block
                                                             : x->minus16 + 2 * block + g;
                        dot = _mm512_slli_epi32(_mm512_set1_epi32(*minus), (unsigned) f.shift);
                    }
#pragma clang loop unroll(full)
                    for (int i = 0; i < f.group / 4; i++) {
                        const int at_quad = g * (f.group / 4) + i;
                        dot = _mm512_dpbusd_epi32(dot, q[at_quad], xq[at_quad]);
                    }
                    const uint8_t *s = at[p];
                    __m512 scale, offset = _mm512_setzero_ps();
                    if (f.scale == FLAT) {
                        scale = halves(s + group * 32);
                        offset = f.offset ? halves(s + held + group * 32) : offset;
                    } else if (f.scale == EXP) {
                        scale = power(s + group * 16);
                    } else {
                        const size_t subs = f.offset ? 64 : 32;
                        const size_t groups = (size_t) (n * per_block);
                        scale = _mm512_mul_ps(d[p], small(s + subs + group * 16));
                        if (f.offset) {
                            const __m512 m = small(s + subs + (groups + group) * 16);
                            offset = _mm512_mul_ps(dmin[p], m);
                        }
                    }
                    y[p] = dot_step(y[p], dot, scale, scale_x);
                    if (f.offset) {
                        const float *sums = f.group == 32 ? x->sums32 + block
                                                          : x->sums16 + 2 * block + g;
                        const __m512 sum_x = _mm512_set1_ps(*sums);
                        y[p] = f.scale == SUPER ? _mm512_fnmadd_ps(offset, sum_x, y[p])
                                                : _mm512_fmadd_ps(offset, sum_x, y[p]);
                    }
                }
            }
        }
#pragma clang loop unroll(full)
        for (int p = 0; p < count; p++) {
            at[p] += codes + code_bytes(f.bits) * (size_t) n;
        }
    }
#pragma clang loop unroll(full)
    for (int p = 0; p < count; p++) {
        _mm512_storeu_ps(out + p * ROWS, y[p]);
    }
}

INLINE void gemv(npurt_format f, const uint8_t *image, int panels, const npurt_row *x, float *y)
{
    const size_t stride = panel_bytes(&f, x->k);
    int p = 0;
    for (; p + 4 <= panels; p += 4) {
        panels_at_once(f, 4, image + (size_t) p * stride, stride, x, y + p * ROWS);
    }
    for (; p < panels; p++) {
        panels_at_once(f, 1, image + (size_t) p * stride, stride, x, y + p * ROWS);
    }
}

#define NPURT_FORMAT(name, number, bits, book, shift, group, scale, offset)                        \
    void npurt_gemv_##name##__avx512vnni(const uint8_t *image, int panels, const npurt_row *x,     \
                                         float *y)                                                 \
    {                                                                                              \
        gemv((npurt_format){number, bits, book, shift, group, scale, offset}, image, panels, x,    \
             y);                                                                                   \
    }
#include "formats.inc"
