/*
 * A gated delta net, from the results of the input projections to the input of the output
 * projection.
 *
 * conv    y[t] = silu(sum_j w[j] x[t - kernel_size + 1 + j]); q and k are divided by their length;
 *         beta and decay get their activation functions.  Stores its inputs, for later tokens and
 *         for replays.
 * delta   for each token: S = e^decay S; d = beta (v - S k); S = S + d k^T; out = scale S q.
 *         S is [width of v][width of k], so both products read its rows in order.
 * gate    out = x / rms(x) * weight * silu(gate), head by head.
 *
 * Rows of S do not depend on each other: sixteen rows process SPAN tokens while they are in the L1
 * cache.  One run of many tokens gives the same bits as many runs of one token.  Dot products are
 * fused multiply-adds in 16 lanes, then the tree of sum16.
 * Sources Yang et al. 2024, Gated Delta Networks, eq. 10; transformers modeling_qwen3_5.py (the
 *         place of eps); ggml ggml_gated_delta_net (a decay for each element of k).
 */
#include "kernels.h"
#include <math.h>

enum { SPAN = 16, LANES = 16 };

/* --- conv ------------------------------------------------------------------------------------- */

static const float nothing[NPURT_MOST_DELTA];

/* Returns the row of `kept` for the token at a position. */
static float *kept_at(const npurt_conv *op, const npurt_span *span, int64_t position)
{
    const int64_t line = (2 * op->k_heads + op->heads) * op->width + 2 * op->heads;
    return op->kept + (span->slot * op->capacity + position % op->capacity) * line;
}

/* Returns the inputs of the token `back` tokens before row `row` of a span, from a column on. */
static const float *token_at(const npurt_conv *op, const npurt_span *span, int64_t row,
                             int64_t back, int64_t column)
{
    const int64_t at = span->position + row - back;
    if (row >= back && !op->replay) {
        return op->in + (span->first + row - back) * op->stride + column;
    }
    return at < 0 ? nothing : kept_at(op, span, at) + column;
}

static void convolve(const npurt_conv *op, const npurt_span *span, int64_t row, int64_t column)
{
    const int64_t channels = (2 * op->k_heads + op->heads) * op->width;
    float *out = op->out + (span->first + row) * channels + column;
    const float *from[NPURT_MOST_KERNEL_SIZE];
    for (int j = 0; j < op->kernel_size; j++) {
        from[j] = token_at(op, span, row, op->kernel_size - 1 - j, column);
    }
    f32x16 squares = 0.0f;
    for (int i = 0; i < op->width; i += LANES) {
        f32x16 sum = 0.0f;
        for (int j = 0; j < op->kernel_size; j++) {
            const f32x16 w = load_f32(op->weight + j * channels + column + i);
            sum = fma16(load_f32(from[j] + i), w, sum);
        }
        const f32x16 y = silu16(sum);
        squares = fma16(y, y, squares);
        store_f32(out + i, y);
    }
    if (column < 2 * op->k_heads * op->width) {
        const float inverse = 1.0f / sqrtf(sum16(squares) + op->eps);
        for (int i = 0; i < op->width; i += LANES) {
            store_f32(out + i, load_f32(out + i) * inverse);
        }
    }
}

/* Computes beta and log decay of one row: raw [2 * heads] -> out [2 * heads]. */
static void gates(const npurt_conv *op, const float *raw, float *out)
{
    const int heads = op->heads;
    for (int h = 0; h < heads; h++) {
        out[h] = sigmoid16((f32x16) (raw[h])).x;
        out[heads + h] = op->rate[h] * softplus16((f32x16) (raw[heads + h] + op->bias[h])).x;
    }
}

/* Stores `count` columns of a span's rows in `kept`; row 0 of `from` is the span's first row. */
static void keep(const npurt_conv *op, const npurt_span *span, const float *from, int64_t stride,
                 int64_t column, int64_t count)
{
    const int64_t rows = span->rows;
    for (int64_t t = rows < op->capacity ? 0 : rows - op->capacity; t < rows; t++) {
        float *to = kept_at(op, span, span->position + t) + column;
        memcpy(to, from + t * stride, (size_t) count * sizeof *to);
    }
}

/* Computes one head of q, k or v for all rows of a span, or beta and decay if `head` is one past
 * the last head. */
void AT_LEVEL(npurt_conv)(const npurt_conv *op, int64_t head, const npurt_span *span)
{
    const int64_t heads = 2 * op->k_heads + op->heads;
    const int64_t column = head * op->width, two = 2 * op->heads, first = span->first;
    for (int64_t t = 0; t < span->rows; t++) {
        if (head < heads) {
            convolve(op, span, t, column);
        } else {
            const float *raw =
                op->replay ? token_at(op, span, t, 0, column) : op->gates + (first + t) * two;
            gates(op, raw, op->out_gates + (first + t) * two);
        }
    }
    if (!op->replay && head < heads) {
        keep(op, span, op->in + first * op->stride + column, op->stride, column, op->width);
    } else if (!op->replay) {
        keep(op, span, op->gates + first * two, two, column, two);
    }
}

/* --- delta ------------------------------------------------------------------------------------ */

/* The inputs of one head for one token, except v; a = e^decay in every element. */
typedef struct {
    float a[NPURT_MOST_DELTA], k[NPURT_MOST_DELTA], ak[NPURT_MOST_DELTA], aq[NPURT_MOST_DELTA];
    float kq, beta;
} npurt_token;

_Static_assert(SPAN * sizeof(npurt_token) <= SCRATCH_BYTES, "scratch is too small for tokens");

/* One head of one sequence. */
typedef struct {
    const npurt_delta *op;
    const float *q, *k, *v, *decay, *beta;
    float *out;
    npurt_token *tokens; /* [SPAN] */
} npurt_head;

static void prepare(const npurt_head *h, int64_t first, int count)
{
    const npurt_delta *op = h->op;
    for (int t = 0; t < count; t++) {
        const float *k = h->k + (first + t) * op->k_at.token;
        const float *q = h->q + (first + t) * op->q_at.token;
        const float *g = h->decay + (first + t) * op->decay_at.token;
        npurt_token *token = &h->tokens[t];
        f32x16 kq = 0.0f, a = exp16((f32x16) (*g));
        for (int i = 0; i < op->width; i += LANES) {
            const f32x16 ki = load_f32(k + i), qi = load_f32(q + i);
            a = op->gates == 1 ? a : exp16(load_f32(g + i));
            kq = fma16(ki, qi, kq);
            store_f32(token->a + i, a);
            store_f32(token->k + i, ki);
            store_f32(token->ak + i, a * ki);
            store_f32(token->aq + i, a * qi);
        }
        token->kq = sum16(kq);
        token->beta = h->beta[(first + t) * op->beta_at.token];
    }
}

/* Computes S (a k) and S (a q) for four rows of S; if `fetches`, prefetches the rows of S that are
 * sixteen rows further into L2. */
INLINE void read_rows(const float *s, const npurt_token *token, int width, int fetches, f32x4 *k,
                      f32x4 *q)
{
    f32x16 sk[4] = {0}, sq[4] = {0};
    for (int i = 0; i < width; i += LANES) {
        const f32x16 ak = load_f32(token->ak + i), aq = load_f32(token->aq + i);
#pragma clang loop unroll(full)
        for (int r = 0; r < 4; r++) {
            const f32x16 row = load_f32(s + r * width + i);
            if (fetches) {
                __builtin_prefetch(s + (LANES + r) * width + i, 0, 2);
            }
            sk[r] = fma16(row, ak, sk[r]);
            sq[r] = fma16(row, aq, sq[r]);
        }
    }
    *k = sum16_of_4(sk[0], sk[1], sk[2], sk[3]);
    *q = sum16_of_4(sq[0], sq[1], sq[2], sq[3]);
}

/* For four rows: d = beta (v - S (a k)), out = scale (S (a q) + d k.q), then S = a S + d k^T. */
INLINE void write_rows(float *s, const npurt_token *token, int width, f32x4 k, f32x4 q,
                       const float *v, float scale, float *out)
{
    f32x4 wanted;
    memcpy(&wanted, v, sizeof wanted);
    const f32x4 d = token->beta * (wanted - k);
    const f32x4 y = __builtin_elementwise_fma(d, (f32x4) (token->kq), q) * scale;
    memcpy(out, &y, sizeof y);
    for (int i = 0; i < width; i += LANES) {
        const f32x16 a = load_f32(token->a + i), ki = load_f32(token->k + i);
#pragma clang loop unroll(full)
        for (int r = 0; r < 4; r++) {
            float *at = s + r * width + i;
            store_f32(at, fma16((f32x16) (d[r]), ki, load_f32(at) * a));
        }
    }
}

/*
 * Processes one token for sixteen rows of S.  Both products read S before the update, four rows
 * ahead of the rows that are written, so that writing does not wait for the sums.
 */
INLINE void one_token(float *s, const npurt_token *token, int width, int fetches, const float *v,
                      float scale, float *out)
{
    const int step = 4 * width;
    f32x4 k[4], q[4];
    read_rows(s, token, width, fetches, k, q);
#pragma clang loop unroll(full)
    for (int r = 0; r < 4; r++) {
        if (r < 3) {
            read_rows(s + (r + 1) * step, token, width, fetches, k + r + 1, q + r + 1);
        }
        write_rows(s + r * step, token, width, k[r], q[r], v + 4 * r, scale, out + 4 * r);
    }
}

/*
 * Processes `count` prepared tokens, from token `first` on, for the sixteen rows of S from row j
 * on. During decoding, every state is read from memory once per token; prefetching halves this
 * time.
 */
INLINE void sixteen_rows(const npurt_head *h, int64_t first, int count, int64_t j, int width,
                         float *s)
{
    const float *v = h->v + first * h->op->v_at.token + j;
    float *out = h->out + first * h->op->out_at.token + j;
    one_token(s, h->tokens, width, 1, v, h->op->scale, out);
    for (int t = 1; t < count; t++) {
        v += h->op->v_at.token;
        out += h->op->out_at.token;
        one_token(s, &h->tokens[t], width, 0, v, h->op->scale, out);
    }
}

/* Calls sixteen_rows, which is compiled separately for the usual widths. */
static void advance(const npurt_head *h, int64_t first, int count, int64_t j, float *s)
{
    switch (h->op->width) {
    case 64:
        sixteen_rows(h, first, count, j, 64, s);
        break;
    case 128:
        sixteen_rows(h, first, count, j, 128, s);
        break;
    default:
        sixteen_rows(h, first, count, j, h->op->width, s);
    }
}

static int64_t start_of(const npurt_strides *at, int64_t token, int64_t head, int64_t sequence)
{
    return token * at->token + head * at->head + sequence * at->sequence;
}

/* Computes up to DELTA_ROWS rows of one head of one sequence, for all tokens of a span. */
void AT_LEVEL(npurt_delta)(const npurt_delta *op, int64_t item, const npurt_span *span,
                           float *scratch)
{
    const int64_t parts = (op->width + DELTA_ROWS - 1) / DELTA_ROWS;
    const int64_t first = item % parts * DELTA_ROWS, left = op->width - first;
    const int64_t rows = left < DELTA_ROWS ? left : DELTA_ROWS;
    const int64_t head = item / parts % op->heads, sequence = item / parts / op->heads;
    const int64_t k_head = op->grouped ? head / (op->heads / op->k_heads) : head % op->k_heads;
    const int64_t size = (int64_t) op->width * op->width;
    const int64_t copy = op->sequences * op->heads * size, tokens = span->rows;
    const size_t bytes = (size_t) (rows * op->width) * sizeof(float);
    const int32_t plain[3] = {0, -1, 0};
    const int32_t *control = op->control ? op->control + 3 * span->slot : plain;
    float *s = op->state + span->slot * op->slot_stride + (sequence * op->heads + head) * size +
               first * op->width;
    npurt_head h = {
        .op = op,
        .tokens = (npurt_token *) (void *) scratch,
        .q = op->q + start_of(&op->q_at, span->first, k_head, sequence),
        .k = op->k + start_of(&op->k_at, span->first, k_head, sequence),
        .v = op->v + start_of(&op->v_at, span->first, head, sequence) + first,
        .decay = op->decay + start_of(&op->decay_at, span->first, head, sequence),
        .beta = op->beta + start_of(&op->beta_at, span->first, head, sequence),
        .out = op->out + start_of(&op->out_at, span->first, head, sequence) + first,
    };
    if (control[0]) {
        memcpy(s, s + control[0] * copy, bytes);
    }
    for (int64_t t = 0, end; t < tokens; t = end) {
        const int64_t saving = control[1] < 0 ? -1 : control[2];
        if (t == saving) {
            memcpy(s + control[1] * copy, s, bytes);
        }
        end = t + SPAN < tokens ? t + SPAN : tokens;
        end = t < saving && saving < end ? saving : end;
        prepare(&h, t, (int) (end - t));
        for (int64_t j = 0; j < rows; j += LANES) {
            advance(&h, t, (int) (end - t), j, s + j * op->width);
        }
    }
}

/* --- gate ------------------------------------------------------------------------------------- */

void AT_LEVEL(npurt_gate)(const npurt_gate *op, int64_t row)
{
    const int64_t k = op->out.k;
    const float *x = op->x + row * k, *gate = op->gate + row * op->stride;
    float *out = op->out.values + row * k;
    for (int64_t first = 0; first < k; first += op->width) {
        f32x16 squares = 0.0f;
        for (int64_t i = 0; i < op->width; i += LANES) {
            const f32x16 v = load_f32(x + first + i);
            squares = fma16(v, v, squares);
        }
        const float inverse = 1.0f / sqrtf(sum16(squares) / (float) op->width + op->eps);
        for (int64_t i = 0; i < op->width; i += LANES) {
            const f32x16 normed = load_f32(x + first + i) * inverse * load_f32(op->weight + i);
            store_f32(out + first + i, normed * silu16(load_f32(gate + first + i)));
        }
    }
}
