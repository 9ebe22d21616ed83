/*
 * A gated delta net in integers: layouts in delta.h, arithmetic in delta_lanes.h, delta_prepare.h
 * and delta_advance.h.
 *
 * Order   first the computation that needs no state, for up to NPURT_DELTA_ITEMS tokens or heads,
 *         then the states.  So some time passes between vector writes and scalar reads of the same
 *         memory.
 * Sources Yang et al. 2024, Gated Delta Networks, eq. 10; ggml ggml_gated_delta_net (a decay for
 *         each element of k).
 */
#include "delta.h"
#include "delta_advance.h"

#define NOT_FINITE 0x7f800000 /* float32 bits from here on */

static uint32_t blocks_of(uint32_t width)
{
    return (width + 31) / 32;
}

static uint32_t parts_of(uint32_t width)
{
    return (width + 63) / 64;
}

static size_t state_vectors(uint32_t width)
{
    uint32_t blocks = blocks_of(width), parts = parts_of(width);
    return 2 * (size_t) PAIRS * parts * blocks + 3 * (blocks + parts);
}

size_t npurt_delta_state_bytes(uint32_t width)
{
    return state_vectors(width) * NPURT_VECTOR;
}

/* Offsets in bytes of the parts of a row and of its end. */
typedef struct {
    size_t k, v, beta, decay, end;
    size_t along_k, along_v; /* of one head */
} layout;

static layout layout_of(const npurt_delta *op)
{
    layout at;
    at.along_k = (size_t) parts_of(op->width) * 2 * NPURT_VECTOR;
    at.along_v = (size_t) blocks_of(op->width) * NPURT_VECTOR;
    at.k = op->k_heads * at.along_k;
    at.v = 2 * at.k;
    at.beta = at.v + op->heads * at.along_v;
    at.decay = at.beta + padded(op->heads * sizeof(float));
    at.end = at.decay + (op->gates ? op->heads * at.along_k : padded(op->heads * sizeof(float)));
    return at;
}

size_t npurt_delta_x_bytes(const npurt_delta *op)
{
    return layout_of(op).end;
}

size_t npurt_delta_y_bytes(const npurt_delta *op)
{
    return op->heads * layout_of(op).along_v;
}

size_t npurt_delta_scratch(void)
{
    return NPURT_DELTA_ITEMS * sizeof(item);
}

/* A head of a sequence. */
typedef struct {
    uint32_t head, k_head, within; /* within: earlier heads with the same head of k */
    size_t row;                    /* first row of its sequence in x and y */
    vec *state;
} place;

/* A job: the values that all its heads and tokens use. */
typedef struct {
    const npurt_delta *op;
    layout at;
    uint32_t blocks, parts;
    size_t state_vectors;
    item *items;
    number scale;
    vec worst;
} job;

static void next(const job *job, place *at)
{
    const npurt_delta *op = job->op;
    at->state += job->state_vectors;
    at->within = at->within + 1 < op->share ? at->within + 1 : 0;
    at->k_head += !op->grouped || at->within == 0;
    at->k_head = at->k_head < op->k_heads ? at->k_head : 0;
    at->head++;
    if (at->head == op->heads) {
        at->head = 0; /* within and k_head are 0 too, because k_heads divides heads */
        at->row += op->tokens;
    }
}

/* Prepare a token of a head; `k_before` is the k of the previous token. */
INLINE void prepare_token(job *job, const place *at, uint32_t token, const vec *k_before,
                          unsigned parts, int gates, item *to)
{
    const npurt_delta *op = job->op;
    size_t row = at->row + token;
    const char *x = op->x + row * op->x_stride, *decay = x + job->at.decay;
    source from = {
        .q = (const vec *) (x + at->k_head * job->at.along_k),
        .k = (const vec *) (x + job->at.k + at->k_head * job->at.along_k),
        .beta = (const float *) (x + job->at.beta) + at->head,
        .decay = (const float *) (decay + at->head * (gates ? job->at.along_k : sizeof(float))),
        .gain = state_at(at->state, job->blocks, parts).gain,
    };
    to->state = at->state;
    to->v = (const vec *) (x + job->at.v + at->head * job->at.along_v);
    to->out = (vec *) (op->y + row * op->y_stride + at->head * job->at.along_v);
    to->k_before = k_before;
    prepare(&from, parts, gates, job->scale, to, &job->worst);
}

NOINLINE void prepare_one(job *job, const place *at, uint32_t token, const vec *k, item *to)
{
    prepare_token(job, at, token, k, 1, 0, to);
}

NOINLINE void prepare_two(job *job, const place *at, uint32_t token, const vec *k, item *to)
{
    prepare_token(job, at, token, k, 2, 0, to);
}

NOINLINE void prepare_gates(job *job, const place *at, uint32_t token, const vec *k, item *to)
{
    job->parts == 1 ? prepare_token(job, at, token, k, 1, 1, to)
                    : prepare_token(job, at, token, k, 2, 1, to);
}

/* Prepare `count` tokens of a head, starting with `token`; return the address after the last
 * item. */
static item *prepare_span(job *job, const place *at, uint32_t token, uint32_t count, item *to)
{
    const vec *k = state_at(at->state, job->blocks, job->parts).k;
    for (; count > 0; count--, token++) {
        if (job->op->gates) {
            prepare_gates(job, at, token, k, to);
        } else if (job->parts == 1) {
            prepare_one(job, at, token, k, to);
        } else {
            prepare_two(job, at, token, k, to);
        }
        k = to++->k;
    }
    return to;
}

/* Run all tokens of `heads` heads, starting with *at; set *at to the next head. */
static void run_heads(job *job, place *at, uint32_t heads, uint32_t span)
{
    uint32_t tokens = job->op->tokens;
    int gates = (int) job->op->gates;
    place here = *at;
    for (uint32_t token = 0, count; token < tokens; token += count) {
        count = tokens - token < span ? tokens - token : span;
        item *to = job->items;
        here = *at;
        for (uint32_t h = 0; h < heads; h++, next(job, &here)) {
            to = prepare_span(job, &here, token, count, to);
        }
        for (const item *by = job->items; by < to; by++) {
            advance(by, job->blocks, job->parts, gates, &job->worst);
        }
    }
    *at = here;
}

int npurt_delta_run(const npurt_delta *op, uint32_t first, uint32_t last, void *state,
                    void *scratch)
{
    vec scale = splat(op->scale);
    job job; /* set field by field: an initialiser would clear the whole struct */
    job.op = op;
    job.at = layout_of(op);
    job.blocks = blocks_of(op->width);
    job.parts = parts_of(op->width);
    job.state_vectors = state_vectors(op->width);
    job.items = scratch;
    job.scale = number_of(scale);
    job.worst = magnitude_of(scale);
    uint32_t span = op->tokens < NPURT_DELTA_ITEMS ? op->tokens : NPURT_DELTA_ITEMS;
    uint32_t group = op->tokens > 1 ? 1 : NPURT_DELTA_ITEMS;
    place at = {0};
    for (uint32_t i = 0; i < first; i++) {
        next(&job, &at);
    }
    at.state = state;
    for (uint32_t left = last - first, heads; left > 0; left -= heads) {
        heads = left < group ? left : group;
        run_heads(&job, &at, heads, span);
    }
    vec_pair worst = greatest_of(job.worst, job.worst);
    lanes all = {.all = Q6_V_lo_W(worst)};
    return all.lane[0] >= NOT_FINITE;
}
