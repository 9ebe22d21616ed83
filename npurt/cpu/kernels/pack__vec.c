/*
 * Packs GGUF rows into one panel of an image (layout.h), without changing codes or scales.
 *
 * A record is packed in two steps.  First, the blocks of 16 rows are unpacked to unsigned codes,
 * one per byte.  Then the codes are written in quads of four columns by sixteen rows, low and high
 * bits separately.  Rows past n are zero.
 */
#include "kernels.h"
#include "read.h"

/* Writes the codes of one block of 16 rows in the layout of layout.h. */
INLINE void put_codes(int bits, const npurt_row_record *rows, int b, uint8_t *out)
{
    uint32_t c[8][ROWS];
    uint32_t *to = (uint32_t *) (void *) out;
    for (int r = 0; r < ROWS; r++) {
        for (int q = 0; q < 8; q++) {
            memcpy(&c[q][r], rows[r].codes + 32 * b + 4 * q, 4);
        }
    }
    if (bits == 8) {
        memcpy(out, c, sizeof c);
        return;
    }
    for (int r = 0; r < ROWS; r++) {
        uint32_t fifth = 0, high[2] = {0, 0};
        for (int q = 0; q < 4; q++) {
            to[q * ROWS + r] = (c[q][r] & 0x0F0F0F0F) | (c[q + 4][r] & 0x0F0F0F0F) << 4;
        }
        for (int q = 0; q < 8; q++) {
            fifth |= (c[q][r] >> 4 & 0x01010101) << q;
            high[q / 4] |= (c[q][r] >> 4 & 0x03030303) << 2 * (q % 4);
        }
        if (bits == 5) {
            to[4 * ROWS + r] = fifth;
        }
        if (bits == 6) {
            to[4 * ROWS + r] = high[0];
            to[5 * ROWS + r] = high[1];
        }
    }
}

/* Loops over rows are not vectorised: clang would use scatters, which take twice the time. */
#define SCALAR _Pragma("clang loop vectorize(disable)")

INLINE void put_super(npurt_format f, const npurt_row_record *rows, int groups, uint8_t *out)
{
    uint16_t *wide = (uint16_t *) (void *) out;
    int8_t *subs = (int8_t *) out + (f.offset ? 64 : 32);
    SCALAR for (int r = 0; r < ROWS; r++)
    {
        wide[r] = rows[r].d;
        if (f.offset) {
            wide[ROWS + r] = rows[r].dmin;
        }
    }
    for (int g = 0; g < groups; g++) {
        SCALAR for (int r = 0; r < ROWS; r++)
        {
            subs[g * ROWS + r] = rows[r].subs[g];
            if (f.offset) {
                subs[(groups + g) * ROWS + r] = rows[r].mins[g];
            }
        }
    }
}

INLINE void put_flat(npurt_format f, const npurt_row_record *rows, int blocks, uint8_t *out)
{
    uint16_t *wide = (uint16_t *) (void *) out;
    for (int b = 0; b < blocks; b++) {
        SCALAR for (int r = 0; r < ROWS; r++)
        {
            if (f.scale == EXP) {
                out[b * ROWS + r] = (uint8_t) rows[r].scales[b];
                continue;
            }
            wide[b * ROWS + r] = rows[r].scales[b];
            if (f.offset) {
                wide[(blocks + b) * ROWS + r] = rows[r].offsets[b];
            }
        }
    }
}

INLINE uint8_t *put_scales(npurt_format f, const npurt_row_record *rows, int blocks, uint8_t *out)
{
    if (f.scale == SUPER) {
        put_super(f, rows, blocks * BLOCK / f.group, out);
    } else {
        put_flat(f, rows, blocks, out);
    }
    return out + scale_bytes(f.scale, f.group, f.offset, blocks);
}

INLINE void pack(npurt_format f, npurt_read_fn *read, const npurt_packing *op, int64_t panel)
{
    const int per_block = f.scale == SUPER ? RECORD : BLOCK;
    const size_t row_bytes = (size_t) op->row_bytes;
    const size_t block_bytes = row_bytes / (size_t) (op->k / per_block);
    const int64_t left = op->n - panel * ROWS;
    uint8_t *out = op->image + (size_t) panel * panel_bytes(&f, op->k);
    for (int64_t k = 0; k < op->k; k += RECORD) {
        const int blocks = op->k - k < RECORD ? (int) (op->k - k) / BLOCK : RECORD_BLOCKS;
        npurt_row_record rows[ROWS];
        if (left < ROWS) {
            memset(rows, 0, sizeof rows);
        }
        for (int r = 0; r < (left < ROWS ? left : ROWS); r++) {
            const uint8_t *at = op->blocks + (size_t) (panel * ROWS + r) * row_bytes +
                                (size_t) (k / per_block) * block_bytes;
            for (int b = 0; b < blocks * BLOCK / per_block; b++) {
                read(at + (size_t) b * block_bytes, &rows[r], b);
            }
        }
        out = put_scales(f, rows, blocks, out);
        for (int b = 0; b < blocks; b++, out += code_bytes(f.bits)) {
            put_codes(f.bits, rows, b, out);
        }
    }
}

/* Packs a panel [k][16] of elements of 2 or 4 bytes. */
static void pack_dense(const npurt_packing *op, int64_t panel, size_t bytes)
{
    const int64_t left = op->n - panel * ROWS;
    uint8_t *out = op->image + (size_t) (panel * ROWS * op->k) * bytes;
    for (int r = 0; r < ROWS; r++) {
        const uint8_t *in = op->blocks + (size_t) ((panel * ROWS + r) * op->k) * bytes;
        for (int64_t i = 0; i < op->k; i++) {
            uint8_t *to = out + (size_t) (i * ROWS + r) * bytes;
            if (r >= left) {
                memset(to, 0, bytes);
            } else if (bytes == 2) {
                memcpy(to, in + 2 * i, 2);
            } else {
                memcpy(to, in + 4 * i, 4);
            }
        }
    }
}

enum { F32 = 0, F16 = 1, BF16 = 30 };

void AT_LEVEL(npurt_pack)(const npurt_packing *op, int64_t panel)
{
    switch (op->type) {
    case F32:
        pack_dense(op, panel, 4);
        break;
    case F16:
    case BF16:
        pack_dense(op, panel, 2);
        break;
#define NPURT_FORMAT(name, number, bits, book, shift, group, scale, offset)                        \
    case number:                                                                                   \
        pack((npurt_format){number, bits, book, shift, group, scale, offset}, read_##name, op,     \
             panel);                                                                               \
        break;
#include "formats.inc"
    }
}
