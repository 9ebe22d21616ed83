/*
 * Converts kernels from their layout in memory for the inner loops.
 *
 *     [group of kernels][tile of channels][y][x][kernel][channel]
 *
 * int8: 32 kernels, 32 channels; int4: 64, 32; 16-bit floats: 16, 32; TF32: 16, 16.  The last
 * group may have fewer kernels, and the last tile half as many channels.  Layout: Mesa rkt_coefs.c,
 * rocket-userspace.
 */
#include "npu.h"

#include <string.h>

enum { DOT_GROUP = 32, TILE = 32, FLOAT_GROUP = 16 };

void expand_nibbles(int8_t *to, const uint8_t *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        to[2 * i] = (int8_t) ((from[i] & 0xF) ^ 8) - 8;
        to[2 * i + 1] = (int8_t) ((from[i] >> 4) ^ 8) - 8;
    }
}

/* Converts [tiles][64][32] nibbles to two groups of [tiles][32][32] bytes. */
static void expand_int4(int8_t *to, const uint8_t *from, size_t tiles)
{
    const size_t half = DOT_GROUP * TILE;
    for (size_t t = 0; t < tiles; t++, from += half) {
        expand_nibbles(to + t * half, from, half / 2);
        expand_nibbles(to + (tiles + t) * half, from + half / 2, half / 2);
    }
}

/* Converts [tiles][kernels][32 or 16] to [tiles][32][32], padded with zeros. */
static void expand_int8(const struct matmul *mm, const uint8_t *from, uint32_t kernels, int8_t *to)
{
    const uint32_t taps = mm->kernel_height * mm->kernel_width;
    memset(to, 0, depth_of(mm) * DOT_GROUP);
    for (uint32_t k = 0; k < mm->k; k += TILE) {
        const uint32_t channels = mm->k - k < TILE ? mm->k - k : TILE;
        for (uint32_t tap = 0; tap < taps; tap++, to += DOT_GROUP * TILE) {
            for (uint32_t n = 0; n < kernels; n++, from += channels) {
                memcpy(to + n * TILE, from, channels);
            }
        }
    }
}

/* Converts [tiles][16][tile] to double [16][depth]. */
static void expand_floats(const struct matmul *mm, const uint8_t *from, uint32_t kernels,
                          double *to)
{
    const uint32_t tile = mm->format->k_tile;
    const size_t bytes = (size_t) tile * mm->format->bits / 8, depth = depth_of(mm);
    memset(to, 0, depth * FLOAT_GROUP * sizeof(*to));
    for (size_t k = 0; k < depth; k += tile) {
        for (uint32_t n = 0; n < kernels; n++, from += bytes) {
            floats_best->widen(mm->in, from, tile, to + n * depth + k);
        }
    }
}

const void *weights_of(const struct matmul *mm, const uint8_t *weights, uint32_t group, void *room)
{
    const uint8_t *from = weights + (size_t) group * mm->group * mm->kernel_bytes;
    const uint32_t left = mm->kernels - group * mm->group;
    const uint32_t kernels = left < mm->group ? left : mm->group;
    if (mm->in == INT8 && kernels == DOT_GROUP && mm->k % TILE == 0) {
        return from; /* memory has the inner loop's layout */
    }
    if (mm->in == INT4) {
        expand_int4(room, from, tiles_of(mm));
    } else if (mm->in == INT8) {
        expand_int8(mm, from, kernels, room);
    } else {
        expand_floats(mm, from, kernels, room);
    }
    return room;
}
