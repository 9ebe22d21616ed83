/*
 * out = softmax(scale * q . K^T) . V               for one kv head and all its query heads
 *
 * Bidirectional attention of an encoder: a row attends to all rows of its sequence in the run.
 * There is no cache: q, k and v are read from the qkv buffer, and copies of q and k are rotated.
 * Why     the keys of 64 rows are transposed once for 32 query rows, so that the keys of sixteen
 *         rows are adjacent.  The softmax runs online over blocks of 64 rows, counted from the
 *         first row of the sequence.  So a row's result does not depend on other sequences in the
 *         run, or on the division of the rows among threads.
 * Source  Milakov & Gimelshein 2018 (online softmax); Dao et al. 2022 (tiling).
 */
#include "kernels.h"
#include <math.h>

enum { SPAN = 64, TILE = 8, TILES = 4 };

typedef struct {
    const npurt_attention *op;
    const npurt_span *span;
    int kv_head;
    float keys[NPURT_MOST_HEAD][SPAN]; /* transposed keys of one block */
    float q[TILES * TILE][NPURT_MOST_HEAD], out[TILES * TILE][NPURT_MOST_HEAD];
    float p[TILE][SPAN];
    float most[TILES * TILE], sum[TILES * TILE];
} npurt_encoding;

_Static_assert(sizeof(npurt_encoding) <= SCRATCH_BYTES, "scratch is too small for an encoding");

/* Rotates a head of row `at` of the span by its position, and writes element d to to[d * step]. */
INLINE void rotated(const npurt_encoding *s, int64_t at, int column, float *to, int64_t step)
{
    const npurt_attention *op = s->op;
    const int half = op->rotated / 2, apart = op->halves ? half : 1, pair = op->halves ? 1 : 2;
    const float *head = op->qkv + (s->span->first + at) * op->stride + column;
    const float *cos = op->cos + (s->span->position + at) * half;
    const float *sin = op->sin + (s->span->position + at) * half;
    for (int i = 0; i < half; i++) {
        const float x = head[i * pair], y = head[i * pair + apart];
        to[i * pair * step] = x * cos[i] - y * sin[i];
        to[(i * pair + apart) * step] = x * sin[i] + y * cos[i];
    }
    for (int d = op->rotated; d < op->width; d++) {
        to[d * step] = head[d];
    }
}

INLINE void scores(npurt_encoding *s, int tile)
{
    for (int j = 0; j < SPAN; j += 16) {
        f32x16 dot[TILE];
#pragma clang loop unroll(full)
        for (int r = 0; r < TILE; r++) {
            dot[r] = 0.0f;
        }
        for (int d = 0; d < s->op->width; d++) {
            const f32x16 k = load_f32(s->keys[d] + j);
#pragma clang loop unroll(full)
            for (int r = 0; r < TILE; r++) {
                dot[r] = fma16(k, (f32x16) (s->q[tile + r][d]), dot[r]);
            }
        }
#pragma clang loop unroll(full)
        for (int r = 0; r < TILE; r++) {
            store_f32(s->p[r] + j, dot[r]);
        }
    }
}

/* Replaces scores of `count` keys by exp(score - running maximum); rescales earlier sums. */
INLINE void softmax(npurt_encoding *s, int tile, int count)
{
    for (int r = 0; r < TILE; r++) {
        for (int j = count; j < SPAN; j++) {
            s->p[r][j] = -INFINITY;
        }
        f32x16 top = load_f32(s->p[r]);
        for (int j = 16; j < SPAN; j += 16) {
            top = larger(top, load_f32(s->p[r] + j));
        }
        const float most = fmaxf(s->most[tile + r], max16(top));
        const f32x16 shrink = exp16((f32x16) (s->most[tile + r] - most));
        f32x16 sum = 0.0f;
        for (int j = 0; j < SPAN; j += 16) {
            const f32x16 e = exp16(load_f32(s->p[r] + j) - most);
            store_f32(s->p[r] + j, e);
            sum += e;
        }
        s->sum[tile + r] = fmaf(s->sum[tile + r], shrink.x, sum16(sum));
        s->most[tile + r] = most;
        for (int d = 0; d < s->op->width; d += 16) {
            store_f32(s->out[tile + r] + d, load_f32(s->out[tile + r] + d) * shrink);
        }
    }
}

INLINE void weigh(npurt_encoding *s, int tile, int64_t first, int count)
{
    const npurt_attention *op = s->op;
    const int width = op->width;
    const float *values = op->qkv + (s->span->first + first) * op->stride +
                          (op->heads + op->kv_heads + s->kv_head) * width;
    for (int d = 0; d < width; d += 16) {
        f32x16 sums[TILE];
#pragma clang loop unroll(full)
        for (int r = 0; r < TILE; r++) {
            sums[r] = load_f32(s->out[tile + r] + d);
        }
        for (int j = 0; j < count; j++) {
            const f32x16 v = load_f32(values + j * op->stride + d);
#pragma clang loop unroll(full)
            for (int r = 0; r < TILE; r++) {
                sums[r] = fma16(v, (f32x16) (s->p[r][j]), sums[r]);
            }
        }
#pragma clang loop unroll(full)
        for (int r = 0; r < TILE; r++) {
            store_f32(s->out[tile + r] + d, sums[r]);
        }
    }
}

/* Computes query rows [first, first + count) of the block at row `row` of the span.  Query row i is
 * row i / group of the block, head i % group. */
static void tiles(npurt_encoding *s, int64_t row, int first, int count)
{
    const npurt_attention *op = s->op;
    const int group = op->heads / op->kv_heads, width = op->width;
    const int used = (count + TILE - 1) / TILE * TILE;
    for (int r = 0; r < used; r++) {
        memset(s->q[r], 0, sizeof s->q[r]);
        memset(s->out[r], 0, sizeof s->out[r]);
        if (r < count) {
            const int head = s->kv_head * group + (first + r) % group;
            rotated(s, row + (first + r) / group, head * width, s->q[r], 1);
        }
        for (int d = 0; d < width; d++) {
            s->q[r][d] *= op->scale;
        }
        s->most[r] = -INFINITY;
        s->sum[r] = 0;
    }
    for (int64_t at = 0; at < s->span->rows; at += SPAN) {
        const int64_t left = s->span->rows - at;
        const int keys = left < SPAN ? (int) left : SPAN;
        memset(s->keys, 0, (size_t) width * sizeof s->keys[0]);
        for (int j = 0; j < keys; j++) {
            rotated(s, at + j, (op->heads + s->kv_head) * width, &s->keys[0][j], SPAN);
        }
        for (int tile = 0; tile < used; tile += TILE) {
            scores(s, tile);
            softmax(s, tile, keys);
            weigh(s, tile, at, keys);
        }
    }
    for (int r = 0; r < count; r++) {
        const int64_t token = s->span->first + row + (first + r) / group;
        const int head = s->kv_head * group + (first + r) % group;
        float *out = op->out + (token * op->heads + head) * width;
        for (int d = 0; d < width; d += 16) {
            store_f32(out + d, load_f32(s->out[r] + d) / s->sum[r]);
        }
    }
}

/* Computes rows [row, row + rows) of a span, with the query heads of one key head. */
void AT_LEVEL(npurt_encode)(const npurt_attention *op, int kv_head, const npurt_span *span,
                            int64_t row, int rows, float *scratch)
{
    npurt_encoding *s = (npurt_encoding *) scratch;
    const int total = rows * (op->heads / op->kv_heads);
    s->op = op;
    s->span = span;
    s->kv_head = kv_head;
    for (int r = 0; r < total; r += TILES * TILE) {
        tiles(s, row, r, total - r < TILES * TILE ? total - r : TILES * TILE);
    }
}
