/*
 * Dequantises chosen rows of a matrix, for embeddings.
 *
 * value = scale * code + offset.  The product is exact, so only the addition rounds, as in ggml and
 * in npurt/quant/canonical.py.
 */
#include "read.h"

static float half(uint16_t bits)
{
    _Float16 h;
    memcpy(&h, &bits, sizeof h);
    return h;
}

/* Returns 2^(e - 128), not 2^(e - 127), because the MXFP4 codebook is doubled. */
static float power(uint16_t e)
{
    const uint32_t bits = e < 2 ? 0x200000u << e : (uint32_t) (e - 1) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

INLINE float scale_of(npurt_format f, const npurt_row_record *r, int group)
{
    if (f.scale == SUPER) {
        return half(r->d) * r->subs[group];
    }
    return f.scale == EXP ? power(r->scales[group]) : half(r->scales[group]);
}

INLINE float offset_of(npurt_format f, const npurt_row_record *r, int group)
{
    return f.scale == SUPER ? -(half(r->dmin) * r->mins[group]) : half(r->offsets[group]);
}

INLINE void row(npurt_format f, npurt_read_fn *read, const uint8_t *at, size_t block_bytes,
                int64_t k, float *out)
{
    const int per_block = f.scale == SUPER ? RECORD : BLOCK;
    const int bias = f.book || f.shift < 0 ? 0 : 1 << f.shift;
    for (int64_t done = 0; done < k; done += per_block, at += block_bytes, out += per_block) {
        npurt_row_record r;
        read(at, &r, 0);
        for (int g = 0; g < per_block / f.group; g++) {
            const float scale = scale_of(f, &r, g);
            const float offset = f.offset ? offset_of(f, &r, g) : 0;
            for (int i = g * f.group; i < (g + 1) * f.group; i++) {
                const int code = f.book ? npurt_books[f.book][r.codes[i]] : r.codes[i] - bias;
                out[i] = scale * (float) code;
                if (f.offset) {
                    out[i] += offset;
                }
            }
        }
    }
}

int npurt_take(int type, const uint8_t *blocks, int64_t n, int64_t k, int64_t row_bytes,
               const int32_t *index, int64_t count, float *out)
{
    const npurt_format *found = npurt_find_format(type);
    const int per_block = found && found->scale == SUPER ? RECORD : BLOCK;
    if (!found || k < per_block || k % per_block) {
        return NPURT_REFUSED;
    }
    for (int64_t i = 0; i < count; i++) {
        if (index[i] < 0 || index[i] >= n) {
            return NPURT_REFUSED;
        }
    }
    const size_t block_bytes = (size_t) (row_bytes / (k / per_block));
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *at = blocks + (size_t) index[i] * (size_t) row_bytes;
        switch (type) {
#define NPURT_FORMAT(name, number, bits, book, shift, group, scale, offset)                        \
    case number:                                                                                   \
        row((npurt_format){number, bits, book, shift, group, scale, offset}, read_##name, at,      \
            block_bytes, k, out + i * k);                                                          \
        break;
#include "formats.inc"
        }
    }
    return 0;
}
