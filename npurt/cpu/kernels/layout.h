/*
 * The layout of a weight image: panels of 16 rows; a panel is records of up to 256 columns.
 *
 * A record has its scales, then its offsets, then its codes, so that a panel is read in order:
 *   FLAT   scales [b][16] f16, offsets [b][16] f16; b = blocks of 32 in the record, at most 8
 *   SUPER  d [16] f16, dmin [16] f16, sub [groups][16] i8, submin [groups][16] i8
 *   EXP    exponents [b][16] u8
 *   codes  per block, for 4 to 6 bits: low [4][16][4] u8, where byte (j, row, i) has the low bits
 *          of column 4j+i in its low nibble and of column 16+4j+i in its high nibble.
 *          For 5 bits, high [16][4] u8 follows: bit q of byte (row, i) is bit 4 of column 4q+i.
 *          For 6 bits, high [2][16][4] u8 follows: bits 2j+1..2j of byte (p, row, i) are bits 5..4
 *          of column 16p+4j+i.  For 8 bits, the codes are [8][16][4] u8.
 * Four columns of one row are adjacent, because vpdpbusd, sdot and AMX multiply four at a time.
 */
#ifndef NPURT_LAYOUT_H
#define NPURT_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

enum { ROWS = 16, BLOCK = 32, RECORD_BLOCKS = 8, RECORD = BLOCK * RECORD_BLOCKS };
enum { FLAT, SUPER, EXP };

typedef struct {
    int number, bits, book, shift, group, scale, offset;
} npurt_format;

/* The number of rows of formats.inc. */
enum {
    FORMATS = 0
#define NPURT_FORMAT(...) +1
#include "formats.inc"
};

extern const int8_t npurt_books[3][16];

/* Returns the row of formats.inc with this GGUF type number, or NULL. */
const npurt_format *npurt_find_format(int number);

static inline size_t code_bytes(int bits)
{
    return bits == 8 ? 512 : 256 + 64 * (size_t) (bits - 4);
}

/* Returns the bytes of the scales and offsets of a record of `blocks` blocks. */
static inline size_t scale_bytes(int scale, int group, int offset, int blocks)
{
    const size_t held = offset ? 2 : 1;
    const size_t groups = (size_t) blocks * (size_t) (BLOCK / group);
    if (scale == FLAT) {
        return held * groups * ROWS * 2;
    }
    return scale == SUPER ? held * (ROWS * 2 + groups * ROWS) : groups * ROWS;
}

static inline size_t record_bytes(const npurt_format *f, int blocks)
{
    return scale_bytes(f->scale, f->group, f->offset, blocks) +
           code_bytes(f->bits) * (size_t) blocks;
}

/* Returns the bytes of a panel of 16 rows and k columns; k is a multiple of 32. */
static inline size_t panel_bytes(const npurt_format *f, int64_t k)
{
    const int64_t full = k / RECORD;
    const int rest = (int) (k % RECORD) / BLOCK;
    return (size_t) full * record_bytes(f, RECORD_BLOCKS) + (rest ? record_bytes(f, rest) : 0);
}

#endif
