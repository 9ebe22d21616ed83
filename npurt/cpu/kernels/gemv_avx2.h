/*
 * The gemv of gemv__avx512vnni.c with 256-bit vectors: 8 rows per vector, two vectors per panel.
 */
#ifndef NPURT_GEMV_AVX2_H
#define NPURT_GEMV_AVX2_H

#include "avx2.h"

INLINE __m256i bytes(int v)
{
    return _mm256_set1_epi8((char) v);
}

INLINE __m256i load(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *) p);
}

/*
 * Prefetches `count` bytes into L2, FAR bytes ahead of `at`.  With one row of x, the kernel is
 * faster than the latency of L2 allows, so the bytes NEAR ahead are also prefetched from L2 into
 * L1.  Prefetching from memory directly into L1 would occupy its few miss buffers for the latency
 * of memory, and loads of x from L2 would wait (bench/RESULTS.md).
 */
INLINE void fetch(const uint8_t *at, size_t count, int rows)
{
    enum { FAR = 8192, NEAR = 1024 };
    for (size_t line = 0; line < count; line += 64) {
        __builtin_prefetch(at + FAR + line, 0, 2);
        if (rows == 1) {
            __builtin_prefetch(at + NEAR + line, 0, 3);
        }
    }
}

/* Unpacks the codes of eight rows (half 0 or 1) of one block; codes of 8 bits or of a codebook are
 * signed. */
INLINE void expand(const uint8_t *c, npurt_format f, __m256i book, int half, __m256i q[8])
{
    c += 32 * half;
    if (f.bits == 8) {
#pragma clang loop unroll(full)
        for (int i = 0; i < 8; i++) {
            q[i] = _mm256_xor_si256(load(c + 64 * i), bytes(-128));
        }
        return;
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < 4; i++) {
        const __m256i v = load(c + 64 * i);
        q[i] = _mm256_and_si256(v, bytes(15));
        q[i + 4] = _mm256_and_si256(_mm256_srli_epi16(v, 4), bytes(15));
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < 8; i++) {
        if (f.book) {
            q[i] = _mm256_shuffle_epi8(book, q[i]);
        } else if (f.bits == 5) {
            const __m256i h = load(c + 256);
            const __m256i s = i < 4 ? _mm256_slli_epi16(h, i < 4 ? 4 - i : 0)
                                    : _mm256_srli_epi16(h, i < 4 ? 0 : i - 4);
            q[i] = _mm256_or_si256(q[i], _mm256_and_si256(s, bytes(0x10)));
        } else if (f.bits == 6) {
            const __m256i h = load(c + 256 + 64 * (i / 4));
            const __m256i s = i % 4 < 3 ? _mm256_slli_epi16(h, i % 4 < 3 ? 4 - 2 * (i % 4) : 0)
                                        : _mm256_srli_epi16(h, 2);
            q[i] = _mm256_or_si256(q[i], _mm256_and_si256(s, bytes(0x30)));
        }
    }
}

INLINE __m256 halves(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p));
}

INLINE __m256 small(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) p)));
}

/* 2^(e - 128), subnormal for e < 2. */
INLINE __m256 power(const uint8_t *p)
{
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) p));
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i low = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
    const __m256i is_low = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, low, is_low));
}

/* Computes the scales and offsets of group g for eight rows; offset 0 if the format has none. */
INLINE void scale_of(npurt_format f, const uint8_t *record, int n, int g, int half, __m256 *scale,
                     __m256 *offset)
{
    const int groups = n * BLOCK / f.group;
    *offset = _mm256_setzero_ps();
    if (f.scale == FLAT) {
        *scale = halves(record + 32 * g + 16 * half);
        *offset = f.offset ? halves(record + 32 * (groups + g) + 16 * half) : *offset;
    } else if (f.scale == EXP) {
        *scale = power(record + 16 * g + 8 * half);
    } else {
        const uint8_t *subs = record + (f.offset ? 64 : 32);
        *scale = _mm256_mul_ps(halves(record + 16 * half), small(subs + 16 * g + 8 * half));
        if (f.offset) {
            const __m256 m = small(subs + 16 * (groups + g) + 8 * half);
            const __m256 minus =
                _mm256_sub_ps(_mm256_setzero_ps(), halves(record + 32 + 16 * half));
            *offset = _mm256_mul_ps(minus, m);
        }
    }
}

INLINE __m256 one_group(npurt_format f, const npurt_row *x, int int16, int64_t block, int g,
                        const __m256i *q, __m256 scale, __m256 offset, __m256 y)
{
    const int quads = f.group / 4, is_signed = f.bits == 8 || f.book;
    const npurt_block *xb = x->blocks + block;
    const int64_t at = block * BLOCK + g * f.group;
    const int bits = is_signed ? 8 : f.bits;
    __m256i dot = dot_avx2(bits, quads, q + g * quads, x->codes + at);
    if (int16) {
        dot = _mm256_add_epi32(_mm256_mullo_epi32(dot, _mm256_set1_epi32(REMAINDER_STEPS)),
                               dot_avx2(bits, quads, q + g * quads, x->remainders + at));
    }
    if (!is_signed && f.shift >= 0) {
        const int32_t minus = f.group == 32 ? xb->minus : xb->minuses[g];
        dot = _mm256_add_epi32(dot, _mm256_set1_epi32(minus * (1 << f.shift)));
    }
    y = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(scale, _mm256_set1_ps(xb->scale)),
                        y);
    if (f.offset) {
        const float sum = f.group == 32 ? xb->sum : xb->sums[g];
        y = _mm256_fmadd_ps(offset, _mm256_set1_ps(sum), y);
    }
    return y;
}

/* out[rows][16] = `rows` rows of x times one panel. */
INLINE void one_panel(npurt_format f, const uint8_t *record, __m256i book, const npurt_row *x,
                      int rows, int int16, float *out)
{
    const int64_t blocks = x->k / BLOCK;
    const int per_block = BLOCK / f.group;
    __m256 y[GEMV_ROWS][2] = {0};
    for (int64_t first = 0; first < blocks; first += RECORD_BLOCKS) {
        const int n = blocks - first < RECORD_BLOCKS ? (int) (blocks - first) : RECORD_BLOCKS;
        const size_t codes = scale_bytes(f.scale, f.group, f.offset, n);
        const size_t share = code_bytes(f.bits) + codes / (size_t) n;
        for (int b = 0; b < n; b++) {
            fetch(record + share * (size_t) b, share, rows * (1 + int16));
#pragma clang loop unroll(full)
            for (int half = 0; half < 2; half++) {
                __m256i q[8];
                expand(record + codes + code_bytes(f.bits) * (size_t) b, f, book, half, q);
#pragma clang loop unroll(full)
                for (int g = 0; g < per_block; g++) {
                    __m256 scale, offset;
                    scale_of(f, record, n, b * per_block + g, half, &scale, &offset);
                    for (int r = 0; r < rows; r++) {
                        y[r][half] =
                            one_group(f, x + r, int16, first + b, g, q, scale, offset, y[r][half]);
                    }
                }
            }
        }
        record += record_bytes(&f, n);
    }
    for (int r = 0; r < rows; r++) {
        _mm256_storeu_ps(out + r * ROWS, y[r][0]);
        _mm256_storeu_ps(out + r * ROWS + 8, y[r][1]);
    }
}

INLINE void gemv(npurt_format f, const uint8_t *image, int panels, const npurt_row *x, int rows,
                 float *y)
{
    const size_t bytes = panel_bytes(&f, x->k);
    const __m256i book =
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) npurt_books[f.book]));
    for (int p = 0; p < panels; p++, image += bytes, y += rows * ROWS) {
        if (x->remainders) {
            one_panel(f, image, book, x, rows, 1, y);
        } else if (rows == 1) {
            one_panel(f, image, book, x, 1, 0, y);
        } else {
            one_panel(f, image, book, x, rows, 0, y);
        }
    }
}

#endif
