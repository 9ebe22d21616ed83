/*
 * out = softmax(scale * q . K^T, causal) . V          one kv head, some tokens, all their query heads
 *
 * Options of an op: a window hides positions too long ago; scores are capped; a sink is one more
 * logit, with which the online softmax begins; queries are multiplied by a factor of the position.
 * q       float32, rotated, in the qkv buffer; out [rows][heads * width].  A gate that follows each
 *         query head there multiplies its result: out * sigmoid(gate).
 * K       pages of 64 positions, each [64/16][width][16]: sixteen positions lie side by side, so
 *         scores need no transposition; V pages [64][width].  float16 or float32.
 * Why     eight query rows share each vector of K and V.  The softmax runs online over blocks of 64
 *         positions counted from 0, so a row's result is the same alone or in a batch: positions it
 *         must not see add exact zeros.  A block is a page: where pages lie changes no bit.
 * Source  Milakov & Gimelshein 2018 (online softmax); Dao et al. 2022 (tiling).
 */
#include "kernels.h"
#include <math.h>

enum { SPAN = NPURT_PAGE, TILE = 8 };

typedef struct {
    const npurt_attention *op;
    const npurt_span *span;
    int kv_head;
    float q[TILE][NPURT_MOST_HEAD], out[TILE][NPURT_MOST_HEAD], p[TILE][SPAN];
    float most[TILE], sum[TILE];
    int64_t from[TILE], seen[TILE]; /* each row sees positions [from, seen) */
} npurt_tile_state;

_Static_assert(sizeof(npurt_tile_state) <= SCRATCH_BYTES, "a tile does not fit");

INLINE f32x16 load_cache(const void *cache, int64_t at, int bytes)
{
    return bytes == 4 ? load_f32((const float *) cache + at)
                      : load_f16((const _Float16 *) cache + at);
}

/* Where the keys, and the values, of the page with position `first` begin. */
INLINE int64_t page_start(const npurt_tile_state *s, int64_t first)
{
    const int64_t page = s->span->pages[first / SPAN];
    return (s->kv_head * s->op->pages + page) * SPAN * s->op->width;
}

INLINE void scores(npurt_tile_state *s, int rows, int bytes, int64_t start, int count)
{
    const int width = s->op->width;
    for (int j = 0; j < count; j += 16) {
        const int64_t panel = start + (int64_t) j * width;
        f32x16 dot[TILE];
#pragma clang loop unroll(full)
        for (int r = 0; r < rows; r++) {
            dot[r] = 0.0f;
        }
        for (int d = 0; d < width; d++) {
            const f32x16 k = load_cache(s->op->k_cache, panel + d * 16, bytes);
#pragma clang loop unroll(full)
            for (int r = 0; r < rows; r++) {
                dot[r] = fma16(k, (f32x16) (s->q[r][d]), dot[r]);
            }
        }
#pragma clang loop unroll(full)
        for (int r = 0; r < rows; r++) {
            store_f32(s->p[r] + j, dot[r]);
        }
    }
}

/* Caps scores, of hidden positions as well. */
INLINE void cap_scores(float *p, float cap)
{
    for (int j = 0; j < SPAN; j += 16) {
        store_f32(p + j, cap * tanh16(load_f32(p + j) / cap));
    }
}

/* Hides what a row does not see of a span. */
INLINE void hide(npurt_tile_state *s, int r, int64_t first)
{
    for (int64_t j = 0; j < s->from[r] - first; j++) {
        s->p[r][j] = -INFINITY;
    }
    for (int64_t j = s->seen[r] < first ? 0 : s->seen[r] - first; j < SPAN; j++) {
        s->p[r][j] = -INFINITY;
    }
}

/* Turns scores into weights against the running maximum; rescales what was summed before. */
INLINE void softmax(npurt_tile_state *s, int rows, int64_t first)
{
    const int width = s->op->width;
    for (int r = 0; r < rows; r++) {
        if (s->from[r] >= first + SPAN) { /* another row's window begins earlier */
            memset(s->p[r], 0, sizeof s->p[r]);
            continue;
        }
        if (s->op->softcap > 0) {
            cap_scores(s->p[r], s->op->softcap);
        }
        hide(s, r, first);
        f32x16 top = load_f32(s->p[r]);
        for (int j = 16; j < SPAN; j += 16) {
            top = larger(top, load_f32(s->p[r] + j));
        }
        const float most = fmaxf(s->most[r], max16(top));
        const f32x16 shrink = exp16((f32x16) (s->most[r] - most));
        f32x16 sum = 0.0f;
        for (int j = 0; j < SPAN; j += 16) {
            const f32x16 e = exp16(load_f32(s->p[r] + j) - most);
            store_f32(s->p[r] + j, e);
            sum += e;
        }
        s->sum[r] = fmaf(s->sum[r], shrink.x, sum16(sum));
        s->most[r] = most;
        for (int d = 0; d < width; d += 16) {
            store_f32(s->out[r] + d, load_f32(s->out[r] + d) * shrink);
        }
    }
}

INLINE void weigh(npurt_tile_state *s, int rows, int bytes, int64_t start, int count)
{
    const int width = s->op->width;
    for (int d = 0; d < width; d += 32) {
        const int second = d + 16 < width ? 16 : 0; /* a lone last vector is done twice */
        f32x16 a[TILE], b[TILE];
#pragma clang loop unroll(full)
        for (int r = 0; r < rows; r++) {
            a[r] = load_f32(s->out[r] + d);
            b[r] = load_f32(s->out[r] + d + second);
        }
        for (int j = 0; j < count; j++) {
            const f32x16 va = load_cache(s->op->v_cache, start + j * width + d, bytes);
            const f32x16 vb = load_cache(s->op->v_cache, start + j * width + d + second, bytes);
#pragma clang loop unroll(full)
            for (int r = 0; r < rows; r++) {
                a[r] = fma16(va, (f32x16) (s->p[r][j]), a[r]);
                b[r] = fma16(vb, (f32x16) (s->p[r][j]), b[r]);
            }
        }
#pragma clang loop unroll(full)
        for (int r = 0; r < rows; r++) {
            store_f32(s->out[r] + d, a[r]);
            store_f32(s->out[r] + d + second, b[r]);
        }
    }
}

INLINE void span_rows(npurt_tile_state *s, int rows, int bytes, int64_t first, int count)
{
    const int64_t start = page_start(s, first);
    scores(s, rows, bytes, start, count);
    softmax(s, rows, first);
    weigh(s, rows, bytes, start, count);
}

#define SPAN_ROWS(n)                                                                               \
    case n:                                                                                        \
        if (s->op->cache_bytes == 2) {                                                             \
            span_rows(s, n, 2, first, count);                                                      \
        } else {                                                                                   \
            span_rows(s, n, 4, first, count);                                                      \
        }                                                                                          \
        break

static void one_span(npurt_tile_state *s, int rows, int64_t first, int count)
{
    switch (rows) {
        SPAN_ROWS(1);
        SPAN_ROWS(2);
        SPAN_ROWS(3);
        SPAN_ROWS(4);
        SPAN_ROWS(5);
        SPAN_ROWS(6);
        SPAN_ROWS(7);
        SPAN_ROWS(8);
    }
}

/* Query rows [first, first + rows) of a block that begins at row `row` of the span: query row i is
 * token i / group, head i % group. */
static void tile(npurt_tile_state *s, int64_t row, int first, int rows)
{
    const npurt_attention *op = s->op;
    const int group = op->heads / op->kv_heads, width = op->width;
    const int step = op->gated ? 2 * width : width;
    int64_t visible = 0;
    for (int r = 0; r < rows; r++) {
        const int64_t at = row + (first + r) / group, position = s->span->position + at;
        const int64_t token = s->span->first + at;
        const int head = s->kv_head * group + (first + r) % group;
        const float *q = op->qkv + token * op->stride + head * step;
        const float scale = op->temperature ? op->temperature[position] * op->scale : op->scale;
        for (int d = 0; d < width; d++) {
            s->q[r][d] = q[d] * scale;
            s->out[r][d] = 0;
        }
        s->most[r] = op->sinks ? op->sinks[head] : -INFINITY;
        s->sum[r] = op->sinks ? 1.0f : 0.0f;
        s->seen[r] = visible = position + 1;
        s->from[r] = op->window && visible > op->window ? visible - op->window : 0;
    }
    for (int64_t at = s->from[0] / SPAN * SPAN; at < visible; at += SPAN) {
        const int64_t left = visible - at;
        one_span(s, rows, at, left < SPAN ? (int) left : SPAN);
    }
    for (int r = 0; r < rows; r++) {
        const int64_t token = s->span->first + row + (first + r) / group;
        const int head = s->kv_head * group + (first + r) % group;
        float *out = op->out + (token * op->heads + head) * width;
        const float *gate = op->qkv + token * op->stride + head * step + width;
        for (int d = 0; d < width; d += 16) {
            const f32x16 v = load_f32(s->out[r] + d) / s->sum[r];
            store_f32(out + d, op->gated ? v * sigmoid16(load_f32(gate + d)) : v);
        }
    }
}

/* Rows [row, row + rows) of a span, and the query heads of one key head. */
void AT_LEVEL(npurt_attend)(const npurt_attention *op, int kv_head, const npurt_span *span,
                            int64_t row, int rows, float *scratch)
{
    npurt_tile_state *s = (npurt_tile_state *) scratch;
    const int total = rows * (op->heads / op->kv_heads);
    s->op = op;
    s->span = span;
    s->kv_head = kv_head;
    for (int r = 0; r < total; r += TILE) {
        tile(s, row, r, total - r < TILE ? total - r : TILE);
    }
}
