/*
 * out = softmax(scale * q . K^T, causal) . V       for one kv head and all its query heads
 *
 * Options of an op: a window masks old positions; scores are capped; a sink is an extra logit, with
 * which the online softmax begins; queries are multiplied by a factor that depends on the position.
 * q       float32, rotated, in the qkv buffer; out [rows][heads * width].  If gated, a gate follows
 *         each query head in the buffer, and the head's result is out * sigmoid(gate).
 * K       pages of 64 positions, each [64/16][width][16]: sixteen positions are adjacent, so that
 *         scores need no transposition.  Pages of V are [64][width].  float16 or float32.
 * Why     a tile is eight query rows, for which each vector of K and V is loaded once.  Up to 16
 *         tiles read a page one after another, while it is in the level 1 cache.  The softmax runs
 *         online over blocks of 64 positions counted from 0, and masked positions add exact zeros,
 *         so a row's result is the same alone or in a batch.  A block is a page, so the order of
 *         pages in memory does not change the result.
 * Source  Milakov & Gimelshein 2018 (online softmax); Dao et al. 2022 (tiling).
 */
#include "kernels.h"
#include <math.h>

enum { SPAN = NPURT_PAGE, TILE = 8, TILES = 16 };

/* Number of panels of 16 keys for which an element of a query is loaded once.  On Arm, the sums of
 * eight rows and one panel already fill all 32 registers. */
#ifdef __aarch64__
enum { PANELS = 1 };
#else
enum { PANELS = 2 };
#endif

typedef struct {
    const npurt_attention *op;
    const npurt_span *span;
    int kv_head, rows;
    int alone;          /* 1: no other tile reads the same pages */
    int64_t row, first; /* query rows [first, first + rows) of the block at row `row` of the span */
    float q[TILE][NPURT_MOST_HEAD], out[TILE][NPURT_MOST_HEAD], p[TILE][SPAN];
    float most[TILE], sum[TILE];
    int64_t from[TILE], seen[TILE]; /* each row attends to positions [from, seen) */
} npurt_tile_state;

_Static_assert(TILES * sizeof(npurt_tile_state) <= SCRATCH_BYTES, "scratch is too small for tiles");

INLINE f32x16 load_cache(const void *cache, int64_t at, int bytes)
{
    return bytes == 4 ? load_f32((const float *) cache + at)
                      : load_f16((const _Float16 *) cache + at);
}

/* Returns a number in all lanes of a register; otherwise clang loads it from memory for each
 * use. */
INLINE f32x16 broadcast(float x)
{
    f32x16 v = x;
#ifdef __AVX512F__
    __asm__("" : "+v"(v));
#endif
    return v;
}

/* Returns the index of the first element of the page with position `first`, in both caches. */
INLINE int64_t page_start(const npurt_tile_state *s, int64_t first)
{
    const int64_t page = s->span->pages[first / SPAN];
    return (s->kv_head * s->op->pages + page) * SPAN * s->op->width;
}

/* Computes the scores of 16 * panels positions, from position `first` of a page on. */
INLINE void panel_scores(npurt_tile_state *s, int rows, int bytes, int64_t start, int first,
                         int panels)
{
    const int width = s->op->width;
    f32x16 dot[TILE][PANELS];
#pragma clang loop unroll(full)
    for (int i = 0; i < rows * panels; i++) {
        dot[i / panels][i % panels] = 0.0f;
    }
    for (int d = 0; d < width; d++) {
        f32x16 k[PANELS];
#pragma clang loop unroll(full)
        for (int j = 0; j < panels; j++) {
            k[j] = load_cache(s->op->k_cache, start + (first + 16 * j) * width + d * 16, bytes);
        }
#pragma clang loop unroll(full)
        for (int r = 0; r < rows; r++) {
            const f32x16 q = broadcast(s->q[r][d]);
#pragma clang loop unroll(full)
            for (int j = 0; j < panels; j++) {
                dot[r][j] = fma16(k[j], q, dot[r][j]);
            }
        }
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < rows * panels; i++) {
        store_f32(s->p[i / panels] + first + 16 * (i % panels), dot[i / panels][i % panels]);
    }
}

/* Computes the scores of a page.  Memory bandwidth limits a tile that is alone: two panels at a
 * time would be 12 % slower at a depth of 16,000 (bench/RESULTS.md). */
INLINE void scores(npurt_tile_state *s, int rows, int bytes, int64_t start, int count)
{
    int j = 0;
    for (; !s->alone && j + 16 * (PANELS - 1) < count; j += 16 * PANELS) {
        panel_scores(s, rows, bytes, start, j, PANELS);
    }
    for (; j < count; j += 16) {
        panel_scores(s, rows, bytes, start, j, 1);
    }
}

/* Caps all scores, including those of masked positions. */
INLINE void cap_scores(float *p, float cap)
{
    for (int j = 0; j < SPAN; j += 16) {
        store_f32(p + j, cap * tanh16(load_f32(p + j) / cap));
    }
}

/* Masks the positions of a page that row r does not attend to. */
INLINE void hide(npurt_tile_state *s, int r, int64_t first)
{
    for (int64_t j = 0; j < s->from[r] - first; j++) {
        s->p[r][j] = -INFINITY;
    }
    for (int64_t j = s->seen[r] < first ? 0 : s->seen[r] - first; j < SPAN; j++) {
        s->p[r][j] = -INFINITY;
    }
}

/* Replaces scores by exp(score - running maximum); rescales the sums of earlier pages. */
INLINE void softmax(npurt_tile_state *s, int rows, int64_t first)
{
    const int width = s->op->width;
    for (int r = 0; r < rows; r++) {
        if (s->from[r] >= first + SPAN) { /* only windows of other rows include the page */
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
        f32x16 sum = 0.0f;
        for (int j = 0; j < SPAN; j += 16) {
            const f32x16 e = exp16(load_f32(s->p[r] + j) - most);
            store_f32(s->p[r] + j, e);
            sum += e;
        }
        f32x16 shrink = 1.0f;
        if (most != s->most[r]) {
            shrink = exp16((f32x16) (s->most[r] - most));
            s->most[r] = most;
            for (int d = 0; d < width; d += 16) {
                store_f32(s->out[r] + d, load_f32(s->out[r] + d) * shrink);
            }
        }
        s->sum[r] = fmaf(s->sum[r], shrink.x, sum16(sum));
    }
}

INLINE void weigh(npurt_tile_state *s, int rows, int bytes, int64_t start, int count)
{
    const int width = s->op->width;
    for (int d = 0; d < width; d += 32) {
        const int second = d + 16 < width ? 16 : 0; /* 0 computes a single last vector twice */
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
                const f32x16 p = broadcast(s->p[r][j]);
                a[r] = fma16(va, p, a[r]);
                b[r] = fma16(vb, p, b[r]);
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

/* Initialises a tile.  Query row i is token i / group, head i % group. */
static void begin(npurt_tile_state *s)
{
    const npurt_attention *op = s->op;
    const int group = op->heads / op->kv_heads, width = op->width;
    const int step = op->gated ? 2 * width : width;
    for (int r = 0; r < s->rows; r++) {
        const int64_t at = s->row + (s->first + r) / group, position = s->span->position + at;
        const int64_t token = s->span->first + at;
        const int64_t head = s->kv_head * group + (s->first + r) % group;
        const float *q = op->qkv + token * op->stride + head * step;
        const float scale = op->temperature ? op->temperature[position] * op->scale : op->scale;
        for (int d = 0; d < width; d++) {
            s->q[r][d] = q[d] * scale;
            s->out[r][d] = 0;
        }
        s->most[r] = op->sinks ? op->sinks[head] : -INFINITY;
        s->sum[r] = op->sinks ? 1.0f : 0.0f;
        s->seen[r] = position + 1;
        s->from[r] = op->window && s->seen[r] > op->window ? s->seen[r] - op->window : 0;
    }
}

static void end(const npurt_tile_state *s)
{
    const npurt_attention *op = s->op;
    const int group = op->heads / op->kv_heads, width = op->width;
    const int step = op->gated ? 2 * width : width;
    for (int r = 0; r < s->rows; r++) {
        const int64_t token = s->span->first + s->row + (s->first + r) / group;
        const int64_t head = s->kv_head * group + (s->first + r) % group;
        float *out = op->out + (token * op->heads + head) * width;
        const float *gate = op->qkv + token * op->stride + head * step + width;
        for (int d = 0; d < width; d += 16) {
            const f32x16 v = load_f32(s->out[r] + d) / s->sum[r];
            store_f32(out + d, op->gated ? v * sigmoid16(load_f32(gate + d)) : v);
        }
    }
}

/* Prefetches part i of `parts` equal parts of a page into the level 2 cache. */
static void fetch(const npurt_tile_state *s, int64_t first, int i, int parts)
{
    const int64_t bytes = (int64_t) SPAN * s->op->width * s->op->cache_bytes;
    const int64_t start = page_start(s, first) * s->op->cache_bytes;
    for (int64_t at = bytes * i / parts; at < bytes * (i + 1) / parts; at += 64) {
        __builtin_prefetch((const char *) s->op->k_cache + start + at, 0, 2);
        __builtin_prefetch((const char *) s->op->v_cache + start + at, 0, 2);
    }
}

/* Computes `count` tiles.  Positions ascend, so the window of a tile begins with that of its first
 * row, and ends with that of its last row. */
static void tiles(npurt_tile_state *s, int count)
{
    const int64_t visible = s[count - 1].seen[s[count - 1].rows - 1];
    for (int64_t at = s->from[0] / SPAN * SPAN; at < visible; at += SPAN) {
        for (int i = 0; i < count; i++) {
            if (count > 1 && at + SPAN < visible) {
                fetch(s, at + SPAN, i, count);
            }
            const int64_t left = s[i].seen[s[i].rows - 1] - at;
            if (left > 0 && at + SPAN > s[i].from[0]) {
                one_span(&s[i], s[i].rows, at, left < SPAN ? (int) left : SPAN);
            }
        }
    }
}

/* Computes rows [row, row + rows) of a span, with the query heads of one key head. */
void AT_LEVEL(npurt_attend)(const npurt_attention *op, int kv_head, const npurt_span *span,
                            int64_t row, int rows, float *scratch)
{
    npurt_tile_state *s = (npurt_tile_state *) scratch;
    const int64_t total = (int64_t) rows * (op->heads / op->kv_heads);
    for (int64_t first = 0; first < total;) {
        int count = 0;
        for (; count < TILES && first < total; count++, first += TILE) {
            s[count].op = op;
            s[count].span = span;
            s[count].kv_head = kv_head;
            s[count].row = row;
            s[count].first = first;
            s[count].rows = total - first < TILE ? (int) (total - first) : TILE;
            begin(&s[count]);
        }
        for (int i = 0; i < count; i++) {
            s[i].alone = count == 1;
        }
        tiles(s, count);
        for (int i = 0; i < count; i++) {
            end(&s[i]);
        }
    }
}
