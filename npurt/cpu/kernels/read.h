/*
 * Reads one block of a GGUF row: unsigned codes, one per byte, and unchanged scales.
 *
 * Source: ggml/src/ggml-common.h (block structs), ggml/src/ggml-quants.c (decoding), MIT.
 */
#ifndef NPURT_READ_H
#define NPURT_READ_H

#include "kernels.h"

/* The codes and scales of one row in a record of up to 256 columns. */
typedef struct {
    uint8_t codes[RECORD];
    uint16_t d, dmin;               /* SUPER, float16 bits */
    uint16_t scales[RECORD_BLOCKS]; /* FLAT, float16 bits; EXP, the exponent */
    uint16_t offsets[RECORD_BLOCKS];
    int8_t subs[2 * RECORD_BLOCKS], mins[2 * RECORD_BLOCKS];
} npurt_row_record;

INLINE uint16_t u16(const uint8_t *p)
{
    return (uint16_t) (p[0] | p[1] << 8);
}

INLINE void nibbles(const uint8_t *qs, uint8_t *out)
{
    u8x16 q;
    memcpy(&q, qs, sizeof q);
    const u8x16 low = q & 15, high = q >> 4;
    memcpy(out, &low, sizeof low);
    memcpy(out + 16, &high, sizeof high);
}

INLINE u8x32 load32(const uint8_t *p)
{
    u8x32 v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store32(uint8_t *p, u8x32 v)
{
    memcpy(p, &v, sizeof v);
}

INLINE void fifth_bits(const uint8_t *qh, uint8_t *out)
{
    const u8x32 bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128,
                       1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8_t a = qh[0], b = qh[1], c = qh[2], d = qh[3];
    const u8x32 h = {a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b,
                     c, c, c, c, c, c, c, c, d, d, d, d, d, d, d, d};
    store32(out, load32(out) | ((u8x32) ((h & bit) != 0) & 16));
}

/* Unpacks the 12 bytes of 6-bit scales and minima of Q4_K and Q5_K, four bytes at a time. */
INLINE void six_bits(const uint8_t *s, int8_t *scales, int8_t *mins)
{
    uint32_t a, b, c;
    memcpy(&a, s, 4);
    memcpy(&b, s + 4, 4);
    memcpy(&c, s + 8, 4);
    const uint32_t out[4] = {
        a & 0x3F3F3F3F,
        (c & 0x0F0F0F0F) | (a >> 2 & 0x30303030),
        b & 0x3F3F3F3F,
        (c >> 4 & 0x0F0F0F0F) | (b >> 2 & 0x30303030),
    };
    memcpy(scales, out, 8);
    memcpy(mins, out + 2, 8);
}

INLINE void read_q4_0(const uint8_t *p, npurt_row_record *r, int b)
{
    r->scales[b] = u16(p);
    nibbles(p + 2, r->codes + 32 * b);
}

INLINE void read_q4_1(const uint8_t *p, npurt_row_record *r, int b)
{
    r->scales[b] = u16(p);
    r->offsets[b] = u16(p + 2);
    nibbles(p + 4, r->codes + 32 * b);
}

INLINE void read_q5_0(const uint8_t *p, npurt_row_record *r, int b)
{
    r->scales[b] = u16(p);
    nibbles(p + 6, r->codes + 32 * b);
    fifth_bits(p + 2, r->codes + 32 * b);
}

INLINE void read_q5_1(const uint8_t *p, npurt_row_record *r, int b)
{
    r->scales[b] = u16(p);
    r->offsets[b] = u16(p + 2);
    nibbles(p + 8, r->codes + 32 * b);
    fifth_bits(p + 4, r->codes + 32 * b);
}

INLINE void read_q8_0(const uint8_t *p, npurt_row_record *r, int b)
{
    r->scales[b] = u16(p);
    store32(r->codes + 32 * b, load32(p + 2) ^ 0x80);
}

INLINE void read_mxfp4(const uint8_t *p, npurt_row_record *r, int b)
{
    r->scales[b] = p[0];
    nibbles(p + 1, r->codes + 32 * b);
}

INLINE void read_q2_k(const uint8_t *p, npurt_row_record *r, int b)
{
    (void) b;
    r->d = u16(p + 80);
    r->dmin = u16(p + 82);
    for (int i = 0; i < 16; i++) {
        r->subs[i] = p[i] & 15;
        r->mins[i] = (int8_t) (p[i] >> 4);
    }
    for (uint8_t i = 0; i < 8; i++) {
        store32(r->codes + 32 * i, load32(p + 16 + i / 4 * 32) >> (uint8_t) (i % 4 * 2) & 3);
    }
}

INLINE void read_q3_k(const uint8_t *p, npurt_row_record *r, int b)
{
    const uint8_t *s = p + 96;
    (void) b;
    r->d = u16(p + 108);
    for (int i = 0; i < 16; i++) {
        const int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
        const int high = s[8 + i % 4] >> 2 * (i / 4) & 3;
        r->subs[i] = (int8_t) ((low | high << 4) - 32);
    }
    for (uint8_t i = 0; i < 8; i++) {
        const u8x32 low = load32(p + 32 + i / 4 * 32) >> (uint8_t) (i % 4 * 2) & 3;
        store32(r->codes + 32 * i, low | (load32(p) >> i & 1) << 2);
    }
}

INLINE void read_q4_k(const uint8_t *p, npurt_row_record *r, int b)
{
    (void) b;
    r->d = u16(p);
    r->dmin = u16(p + 2);
    six_bits(p + 4, r->subs, r->mins);
    for (int g = 0; g < 4; g++) {
        const u8x32 q = load32(p + 16 + 32 * g);
        store32(r->codes + 64 * g, q & 15);
        store32(r->codes + 64 * g + 32, q >> 4);
    }
}

INLINE void read_q5_k(const uint8_t *p, npurt_row_record *r, int b)
{
    (void) b;
    r->d = u16(p);
    r->dmin = u16(p + 2);
    six_bits(p + 4, r->subs, r->mins);
    const u8x32 high = load32(p + 16);
    for (uint8_t g = 0; g < 4; g++) {
        const u8x32 q = load32(p + 48 + 32 * g), h = high >> (uint8_t) (2 * g);
        store32(r->codes + 64 * g, (q & 15) | (h & 1) << 4);
        store32(r->codes + 64 * g + 32, q >> 4 | (h >> 1 & 1) << 4);
    }
}

INLINE void read_q6_k(const uint8_t *p, npurt_row_record *r, int b)
{
    (void) b;
    r->d = u16(p + 208);
    memcpy(r->subs, p + 192, 16);
    for (int n = 0; n < 2; n++) {
        const u8x32 a = load32(p + 64 * n), b = load32(p + 64 * n + 32);
        const u8x32 high = load32(p + 128 + 32 * n);
        uint8_t *out = r->codes + 128 * n;
        store32(out, (a & 15) | (high & 3) << 4);
        store32(out + 32, (b & 15) | (high >> 2 & 3) << 4);
        store32(out + 64, a >> 4 | (high >> 4 & 3) << 4);
        store32(out + 96, b >> 4 | (high >> 6) << 4);
    }
}

#define read_iq4_nl read_q4_0

INLINE void read_iq4_xs(const uint8_t *p, npurt_row_record *r, int b)
{
    const int high = u16(p + 2);
    (void) b;
    r->d = u16(p);
    for (int i = 0; i < 8; i++) {
        const int low = p[4 + i / 2] >> 4 * (i % 2) & 15;
        r->subs[i] = (int8_t) ((low | (high >> 2 * i & 3) << 4) - 32);
        nibbles(p + 8 + 16 * i, r->codes + 32 * i);
    }
}

typedef void npurt_read_fn(const uint8_t *block, npurt_row_record *row, int b);

#endif
