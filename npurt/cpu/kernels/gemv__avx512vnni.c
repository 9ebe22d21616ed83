/*
 * y[panel][row][16] = x[row][0..k) . W^T          int8 x 4/5/6/8-bit codes
 *
 * x       codes, scales and sums of each row, as `quantise` computes them.
 * W       image of panels (layout.h), read once, from start to end.
 * k       a multiple of 32, any length.
 * Needs   AVX512F/BW/DQ/VL and VNNI.
 * Exact   dot products of a group are exact int32; for int16 rows, 255 times the dot product of the
 *         codes plus the dot product of the remainders (kernels.h).  Then, for all groups in order,
 *         y = fma(dot, scale_w * scale_x, y) and y = fma(offset_w, sum_x, y).  All kernels execute
 *         these operations in this order, so their results are equal bit for bit.
 * Why     a vector has 16 rows by 4 columns: four values of x, broadcast, are multiplied by 64
 *         weights, sums stay in their lanes, and the scales of 16 rows are one vector.  A thread
 *         reads one panel at a time: with four panels at a time, one core of Zen 4 read half as
 *         fast (docs/decisions/003).  A block is expanded in registers, once for all rows: a gemm
 *         that expanded a record into memory first was slower for any number of rows
 *         (bench/RESULTS.md).
 */
#include "kernels.h"
#include <immintrin.h>

INLINE __m512i bytes(int v)
{
    return _mm512_set1_epi8((char) v);
}

/*
 * Prefetches `count` bytes into L2, FAR bytes ahead of `at`.  With one or two rows of x, memory
 * bandwidth limits the kernel, and each line is prefetched three times.  Zen 4 drops many single
 * prefetches, which may cost a third of the bandwidth [?] (bench/RESULTS.md).
 */
INLINE void fetch(const uint8_t *at, size_t count, int rows)
{
    enum { FAR = 8192, NEAR = 4096, STEP = 2048 };
    for (size_t line = 0; line < count; line += 64) {
        __builtin_prefetch(at + FAR + line, 0, 2);
        for (size_t ahead = NEAR; rows <= 2 && ahead < FAR; ahead += STEP) {
            __builtin_prefetch(at + ahead + line, 0, 2);
        }
    }
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

/* The place of one block in a record. */
typedef struct {
    const uint8_t *scales, *codes; /* start of the record; codes of the block */
    int blocks, block;             /* number of blocks in the record; index of the block */
    __m512 d, dmin;                /* SUPER only */
} npurt_place;

INLINE __m512 scale_of(npurt_format f, const npurt_place *at, size_t group)
{
    if (f.scale == FLAT) {
        return halves(at->scales + group * 32);
    }
    if (f.scale == EXP) {
        return power(at->scales + group * 16);
    }
    return _mm512_mul_ps(at->d, small(at->scales + (f.offset ? 64 : 32) + group * 16));
}

/* Returns the offsets of a group; SUPER offsets are negated. */
INLINE __m512 offset_of(npurt_format f, const npurt_place *at, size_t group)
{
    const size_t groups = (size_t) (at->blocks * (BLOCK / f.group));
    if (f.scale == FLAT) {
        return halves(at->scales + (groups + group) * 32);
    }
    return _mm512_mul_ps(at->dmin, small(at->scales + 64 + (groups + group) * 16));
}

/* The codes, scales and offsets of one block of one panel. */
typedef struct {
    __m512i q[8];
    __m512 scale[2], offset[2]; /* one for each group of the block */
} npurt_weights;

INLINE npurt_weights weights_of(npurt_format f, const npurt_place *at, __m512i book)
{
    npurt_weights w;
    expand(at->codes, f, book, w.q);
#pragma clang loop unroll(full)
    for (int g = 0; g < BLOCK / f.group; g++) {
        const size_t group = (size_t) (at->block * (BLOCK / f.group) + g);
        w.scale[g] = scale_of(f, at, group);
        w.offset[g] = f.offset ? offset_of(f, at, group) : w.scale[g];
    }
    return w;
}

/* Returns start + the dot products of `quads` vectors of weights with codes of x. */
INLINE __m512i dot(const __m512i *q, int quads, const int8_t *codes, __m512i start)
{
#pragma clang loop unroll(full)
    for (int i = 0; i < quads; i++) {
        int32_t four;
        memcpy(&four, codes + 4 * i, 4);
        start = _mm512_dpbusd_epi32(start, q[i], _mm512_set1_epi32(four));
    }
    return start;
}

/* Adds the products of one block of one panel with `rows` rows of x to y. */
INLINE void one_block(npurt_format f, const npurt_weights *w, const npurt_row *x, int rows,
                      int int16, int64_t block, __m512 *y)
{
    const int quads = f.group / 4;
#pragma clang loop unroll(full)
    for (int g = 0; g < BLOCK / f.group; g++) {
#pragma clang loop unroll(full)
        for (int r = 0; r < rows; r++) {
            const npurt_block *xb = x[r].blocks + block;
            const int64_t at = block * BLOCK + g * f.group;
            __m512i sum = _mm512_setzero_si512();
            if (f.shift >= 0) {
                const int32_t minus = f.group == 32 ? xb->minus : xb->minuses[g];
                sum = _mm512_slli_epi32(_mm512_set1_epi32(minus), (unsigned) f.shift);
            }
            if (int16) {
                const __m512i code_dot =
                    dot(w->q + g * quads, quads, x[r].codes + at, _mm512_setzero_si512());
                sum = dot(w->q + g * quads, quads, x[r].remainders + at, sum);
                sum = _mm512_add_epi32(
                    sum, _mm512_mullo_epi32(code_dot, _mm512_set1_epi32(REMAINDER_STEPS)));
            } else {
                sum = dot(w->q + g * quads, quads, x[r].codes + at, sum);
            }
            const __m512 both = _mm512_mul_ps(w->scale[g], _mm512_set1_ps(xb->scale));
            y[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), both, y[r]);
            if (f.offset) {
                const __m512 sum_x = _mm512_set1_ps(f.group == 32 ? xb->sum : xb->sums[g]);
                y[r] = f.scale == SUPER ? _mm512_fnmadd_ps(w->offset[g], sum_x, y[r])
                                        : _mm512_fmadd_ps(w->offset[g], sum_x, y[r]);
            }
        }
    }
}

/* out[rows][16] = `rows` rows of x times one panel; for one row, y stays in a register. */
INLINE void one_panel(npurt_format f, const uint8_t *at, __m512i book, const npurt_row *x, int rows,
                      int int16, float *out)
{
    const int64_t blocks = x->k / BLOCK;
    const size_t bytes = code_bytes(f.bits);
    __m512 y[GEMV_ROWS];
    for (int r = 0; r < rows; r++) {
        y[r] = _mm512_setzero_ps();
    }
    for (int64_t first = 0; first < blocks; first += RECORD_BLOCKS) {
        const int n = blocks - first < RECORD_BLOCKS ? (int) (blocks - first) : RECORD_BLOCKS;
        const size_t head = scale_bytes(f.scale, f.group, f.offset, n);
        const size_t share = bytes + head / (size_t) n; /* bytes of a block, including scales */
        npurt_place place = {.scales = at, .codes = at + head, .blocks = n};
        if (f.scale == SUPER) {
            place.d = halves(at);
            place.dmin = f.offset ? halves(at + 2 * ROWS) : place.d;
        }
        for (int b = 0; b < n; b++, place.codes += bytes) {
            int r = 0;
            place.block = b;
            fetch(at + share * (size_t) b, share, rows * (1 + int16));
            const npurt_weights w = weights_of(f, &place, book);
            for (; r + 2 <= rows; r += 2) {
                one_block(f, &w, x + r, 2, int16, first + b, y + r);
            }
            if (r < rows) {
                one_block(f, &w, x + r, 1, int16, first + b, y + r);
            }
        }
        at += head + bytes * (size_t) n;
    }
    for (int r = 0; r < rows; r++) {
        _mm512_storeu_ps(out + r * ROWS, y[r]);
    }
}

INLINE void gemv(npurt_format f, const uint8_t *image, int panels, const npurt_row *x, int rows,
                 float *y)
{
    const size_t bytes = panel_bytes(&f, x->k);
    const __m512i book = _mm512_broadcast_i32x4(
        _mm_xor_si128(_mm_loadu_si128((const __m128i *) npurt_books[f.book]), _mm_set1_epi8(-128)));
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

#define NPURT_FORMAT(name, number, bits, book, shift, group, scale, offset)                        \
    npurt_gemv_fn npurt_gemv_##name##__avx512vnni;                                                 \
    void npurt_gemv_##name##__avx512vnni(const uint8_t *image, int panels, const npurt_row *x,     \
                                         int rows, float *y)                                       \
    {                                                                                              \
        gemv((npurt_format){number, bits, book, shift, group, scale, offset}, image, panels, x,    \
             rows, y);                                                                             \
    }
#include "formats.inc"
