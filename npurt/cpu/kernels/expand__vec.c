/*
 * Expands a record of an image to a tile: unsigned codes, one per byte, and float32 scales and
 * offsets.
 *
 * A gemm uses one expansion for all rows.  The expansion is exact: a float16 times an 8-bit integer
 * fits float32, so the products of two-level scales do not round.
 */
#include "kernels.h"

typedef uint8_t u8x64 __attribute__((ext_vector_type(64)));
typedef uint16_t u16x32 __attribute__((ext_vector_type(32)));

INLINE u8x64 load64(const uint8_t *p)
{
    u8x64 v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void codes_of(npurt_format f, const uint8_t *c, uint8_t (*out)[64])
{
    if (f.bits == 8) {
        memcpy(out, c, 512);
        return;
    }
    for (int q = 0; q < 8; q++) {
        u8x64 v = load64(c + 64 * (q % 4));
        v = q < 4 ? v & 15 : v >> 4;
        if (f.bits == 5) {
            v |= ((load64(c + 256) >> (uint8_t) q) & 1) << 4;
        }
        if (f.bits == 6) {
            v |= ((load64(c + 256 + 64 * (q / 4)) >> (uint8_t) (2 * (q % 4))) & 3) << 4;
        }
        memcpy(out[q], &v, sizeof v);
    }
    if (f.book) {
        for (int q = 0; q < 8; q++) {
            for (int i = 0; i < 64; i++) {
                out[q][i] = (uint8_t) (npurt_books[f.book][out[q][i]] + 128);
            }
        }
    }
}

INLINE f32x16 exponent(const uint8_t *p)
{
    u8x16 e;
    memcpy(&e, p, sizeof e);
    const u32x16 wide = __builtin_convertvector(e, u32x16);
    const u32x16 low = (u32x16) (0x200000u) << (wide & 1);
    const u32x16 bits = (i32x16) (wide < 2) ? low : (wide - 1) << 23;
    f32x16 v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

INLINE void expand(npurt_format f, const uint8_t *record, int blocks, npurt_tile *tile)
{
    const int groups = blocks * BLOCK / f.group;
    const uint8_t *codes = record + scale_bytes(f.scale, f.group, f.offset, blocks);
    tile->blocks = blocks;
    tile->group = f.group;
    tile->shift = f.shift;
    tile->offset = f.offset;
    for (int b = 0; b < blocks; b++) {
        codes_of(f, codes + (size_t) b * code_bytes(f.bits), tile->codes[b]);
    }
    for (int g = 0; g < groups; g++) {
        f32x16 scale, offset = 0.0f;
        if (f.scale == FLAT) {
            scale = load_f16(record + 32 * g);
            offset = f.offset ? load_f16(record + 32 * (groups + g)) : offset;
        } else if (f.scale == EXP) {
            scale = exponent(record + 16 * g);
        } else {
            const uint8_t *subs = record + (f.offset ? 64 : 32);
            scale = load_f16(record) * load_i8(subs + 16 * g);
            if (f.offset) {
                offset = -(load_f16(record + 32) * load_i8(subs + 16 * (groups + g)));
            }
        }
        store_f32(tile->scales[g], scale);
        store_f32(tile->offsets[g], offset);
    }
}

#define NPURT_FORMAT(name, number, bits, book, shift, group, scale, offset)                        \
    void AT_LEVEL(npurt_expand_##name)(const uint8_t *record, int blocks, npurt_tile *tile);       \
    void AT_LEVEL(npurt_expand_##name)(const uint8_t *record, int blocks, npurt_tile *tile)        \
    {                                                                                              \
        expand((npurt_format){number, bits, book, shift, group, scale, offset}, record, blocks,    \
               tile);                                                                              \
    }
#include "formats.inc"
