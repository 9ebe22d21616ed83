/*
 * Checks ops and tables before a run; npurt_run refuses those that the kernels cannot process.
 *
 * Sizes come from files.  Python checks them first, with more helpful messages.  This file checks
 * everything that the kernels rely on again, except addresses and sizes of buffers.
 */
#include "work.h"
#include <stdio.h>

/* Returns `it`; if `it` is 0, writes the error `what` to `why`. */
static int holds(int it, char *why, const char *what)
{
    if (!it) {
        snprintf(why, WHY_BYTES, "%s", what);
    }
    return it;
}

/* Returns 1 if a size is from `least` to `most`; else 0, with an error in `why`. */
static int fits(int64_t size, int64_t least, int64_t most, char *why, const char *what)
{
    const int good = size >= least && size <= most;
    if (!good) {
        snprintf(why, WHY_BYTES, "%s: %lld, must be %lld to %lld", what, (long long) size,
                 (long long) least, (long long) most);
    }
    return good;
}

static int columns_fit(int64_t columns, char *why, const char *what)
{
    return fits(columns, 1, NPURT_MOST_COLUMNS, why, what);
}

static int head_fits(int64_t width, int64_t most, char *why)
{
    return fits(width, 1, most, why, "width of a head") &&
           holds(width % NPURT_HEAD_STEP == 0, why, "the width of a head is not whole vectors");
}

static int input_fits(const npurt_input *x, char *why)
{
    return columns_fit(x->k, why, "columns of an input") &&
           holds(!x->codes || x->k % BLOCK == 0, why, "codes of an input are not whole blocks") &&
           holds(x->codes || !x->remainders, why, "an input has remainders without codes");
}

static int sum_fits(const npurt_sum *s, char *why)
{
    return input_fits(&s->out, why) &&
           fits(s->out.k, 1, s->stride, why, "columns of a sum in place") &&
           holds(!s->out.codes || s->stride == s->out.k, why, "a sum with codes needs whole rows");
}

static int image_fits(int type, int64_t n, int64_t k, char *why)
{
    return columns_fit(k, why, "columns of a weight") &&
           fits(n, 1, INT64_MAX / NPURT_MOST_COLUMNS / 8, why, "rows of a weight") &&
           holds(npurt_image_bytes(type, n, k) > 0, why,
                 "the type of a weight is unknown, or its columns are not whole blocks");
}

static int matmul_fits(const npurt_matmul *m, int64_t rows, char *why)
{
    int good = input_fits(&m->in, why) && fits(m->weights, 1, 3, why, "weights of a product") &&
               fits(m->matrices, m->groups != NULL, NPURT_MOST_EXPERTS, why, "matrices") &&
               fits(m->groups ? 0 : rows, 0, NPURT_MOST_ROWS, why, "rows of a product");
    for (int i = 0; good && i < m->weights; i++) {
        const npurt_weight *w = &m->w[i];
        good = image_fits(w->type, w->n, w->k, why) &&
               holds(w->k == m->in.k, why, "a weight and its input differ in columns") &&
               holds(!m->groups || w->n % ROWS == 0, why, "matrices are not whole panels") &&
               holds(m->in.codes || !npurt_find_format(w->type), why, "an input has no codes") &&
               fits(w->column, 0, m->stride - w->n, why, "first column of a result");
    }
    return good;
}

static int attention_fits(const npurt_attention *a, char *why)
{
    const int64_t heads = (a->gated ? 2 : 1) * (int64_t) a->heads + 2 * (int64_t) a->kv_heads;
    return head_fits(a->width, NPURT_MOST_HEAD, why) &&
           fits(a->rotated, 0, a->width, why, "rotated elements of a head") &&
           holds(a->rotated % 2 == 0, why, "rotated elements of a head are not whole pairs") &&
           columns_fit(a->heads, why, "heads") && columns_fit(a->kv_heads, why, "key heads") &&
           holds(a->heads % a->kv_heads == 0, why, "heads do not share key heads evenly") &&
           fits(heads * a->width, 1, a->stride, why, "columns of q, k and v") &&
           columns_fit(a->stride, why, "columns of a row of q, k and v") &&
           holds(a->cache_bytes == 2 || a->cache_bytes == 4, why, "unknown type of a cache") &&
           fits(a->pages, 0, INT32_MAX, why, "pages of a cache") &&
           fits(a->window, 0, INT32_MAX, why, "positions of a window") &&
           holds(!a->whole || (a->q_norm && a->k_norm && !a->gated), why,
                 "norms over all heads need weights for q and k, and no gates");
}

static int conv_fits(const npurt_conv *c, char *why)
{
    const int64_t heads = 2 * (int64_t) c->k_heads + c->heads;
    return head_fits(c->width, NPURT_MOST_DELTA, why) && columns_fit(c->heads, why, "heads") &&
           columns_fit(c->k_heads, why, "key heads") &&
           columns_fit(heads * c->width + 2 * (int64_t) c->heads, why, "channels") &&
           fits(c->kernel_size, 1, NPURT_MOST_KERNEL_SIZE, why, "kernel size of a convolution") &&
           fits(c->capacity, c->kernel_size, INT32_MAX, why, "stored tokens of a convolution") &&
           fits(c->slots, 0, INT32_MAX, why, "slots of sequences");
}

static int shortconv_fits(const npurt_shortconv *c, char *why)
{
    return input_fits(&c->out, why) &&
           columns_fit(3 * c->out.k, why, "columns of a gated convolution") &&
           holds(c->out.k % NPURT_HEAD_STEP == 0, why, "columns are not whole vectors") &&
           fits(c->kernel_size, 1, NPURT_MOST_KERNEL_SIZE, why, "kernel size of a convolution") &&
           fits(c->capacity, c->kernel_size, INT32_MAX, why, "stored tokens of a convolution") &&
           fits(c->slots, 0, INT32_MAX, why, "slots of sequences");
}

static int delta_fits(const npurt_delta *d, char *why)
{
    return head_fits(d->width, NPURT_MOST_DELTA, why) && columns_fit(d->heads, why, "heads") &&
           columns_fit(d->k_heads, why, "key heads") &&
           holds(d->heads % d->k_heads == 0, why, "heads do not share key heads evenly") &&
           columns_fit((int64_t) d->heads * d->width, why, "values of a token") &&
           columns_fit(d->sequences, why, "sequences") &&
           fits(d->slots, 0, INT32_MAX, why, "slots of sequences") &&
           holds(d->gates == 1 || d->gates == d->width, why,
                 "decays of a head are neither 1 nor its width");
}

static int route_fits(const npurt_route *t, char *why)
{
    return fits(t->experts, 1, NPURT_MOST_EXPERTS, why, "experts") &&
           fits(t->top_k, 1, t->experts, why, "experts of a row") &&
           fits(t->stride, t->experts, NPURT_MOST_COLUMNS, why, "columns of scores");
}

static int gather_fits(const npurt_gather *g, char *why)
{
    return input_fits(&g->in, why) && input_fits(&g->out, why) &&
           holds(g->in.k == g->out.k, why, "copies and their input differ in columns") &&
           holds(g->in.codes || !g->out.codes, why, "an input has no codes to copy") &&
           holds(g->in.remainders || !g->out.remainders, why, "an input has no remainders to copy");
}

static int gate_fits(const npurt_gate *g, char *why)
{
    return input_fits(&g->out, why) && head_fits(g->width, NPURT_MOST_COLUMNS, why) &&
           holds(g->out.k % g->width == 0, why, "columns are not whole heads");
}

static int integers_fit(const npurt_integers *i, char *why)
{
    return fits(i->k, 1, NPURT_MOST_EXACT, why, "columns of an exact product") &&
           holds(i->k % 4 == 0, why, "columns of an exact product are not a multiple of 4") &&
           columns_fit(i->n, why, "results of an exact product");
}

static int kind_fits(const npurt_op *any, int64_t rows, char *why)
{
    switch (any->kind) {
#define NPURT_OP(KIND, MEMBER, ITEMS, GRAIN, COMPUTE, CHECK)                                       \
    case NPURT_##KIND: {                                                                           \
        const __typeof__(any->u.MEMBER) *op = &any->u.MEMBER;                                      \
        return CHECK;                                                                              \
    }
#include "ops.inc"
    }
    return holds(0, why, "unknown op");
}

/* The sizes that the caches and states of ops must have for a table. */
typedef struct {
    int64_t positions, pages, slots; /* the largest numbers that a span needs */
    int paged;                       /* 1: spans list the pages of all their positions */
} npurt_needs;

/* Returns 1 if the caches, tables and states of an op are large enough for a run. */
static int places_fit(const npurt_op *op, const npurt_needs *needs, char *why)
{
    switch (op->kind) {
    case NPURT_ROPE:
    case NPURT_ATTEND:
        return holds(needs->paged, why, "a row is beyond the pages of its sequence") &&
               fits(needs->positions, 0, op->u.attention.positions, why, "positions of a cache") &&
               fits(needs->pages, 0, op->u.attention.pages, why, "pages of a cache");
    case NPURT_ENCODE:
        return fits(needs->positions, 0, op->u.attention.positions, why, "positions of a table");
    case NPURT_CONV:
        return fits(needs->slots, 0, op->u.conv.slots, why, "slots of sequences");
    case NPURT_SHORTCONV:
        return fits(needs->slots, 0, op->u.shortconv.slots, why, "slots of sequences");
    case NPURT_DELTA:
        return fits(needs->slots, 0, op->u.delta.slots, why, "slots of sequences");
    default:
        return 1;
    }
}

/* Checks an op.  Its sizes are checked only in its first run, and in runs with more rows than all
 * earlier ones. */
static int op_fits(npurt_op *op, const npurt_job *job, const npurt_needs *needs, char *why)
{
    if (op->checked <= job->table.rows) {
        if (!fits(op->isa, 0, npurt_isas_count - 1, why, "instruction set") ||
            !fits(op->row_multiplier, 0, NPURT_MOST_EXPERTS, why, "copies of a row") ||
            !kind_fits(op, npurt_rows(op, job), why)) {
            return 0;
        }
        op->checked = job->table.rows + 1;
    }
    return places_fit(op, needs, why);
}

/* Checks that a span is valid and begins where the last one ended; adds its needs to `needs`. */
static int span_fits(const npurt_span *span, int64_t end, int64_t rows, npurt_needs *needs,
                     char *why)
{
    if (!fits(span->first, end, end, why, "first row of a sequence") ||
        !fits(span->rows, 1, rows - end, why, "rows of a sequence") ||
        !fits(span->position, 0, INT32_MAX, why, "position") ||
        !fits(span->slot, 0, INT32_MAX - 1, why, "slot of a sequence") ||
        !fits(span->listed, 0, span->pages ? INT32_MAX : 0, why, "pages of a sequence")) {
        return 0;
    }
    for (int64_t i = 0; i < span->listed; i++) {
        if (!fits(span->pages[i], 0, INT32_MAX - 1, why, "page of a sequence")) {
            return 0;
        }
        needs->pages = span->pages[i] < needs->pages ? needs->pages : span->pages[i] + 1;
    }
    const int64_t positions = span->position + span->rows;
    needs->paged &= positions <= span->listed * NPURT_PAGE;
    needs->positions = positions > needs->positions ? positions : needs->positions;
    needs->slots = span->slot < needs->slots ? needs->slots : span->slot + 1;
    return 1;
}

/* Returns how many times a sequence lists a page. */
static int64_t times_listed(const npurt_span *span, int32_t page)
{
    int64_t times = 0;
    for (int64_t i = 0; i < span->listed; i++) {
        times += span->pages[i] == page;
    }
    return times;
}

/* Returns 1 if no other span uses the slot of `own`, or a page that the rows of `own` write to. */
static int is_alone(const npurt_table *table, const npurt_span *own, char *why)
{
    const int64_t end = (own->position + own->rows - 1) / NPURT_PAGE + 1;
    for (int64_t i = 0; i < table->count; i++) {
        const npurt_span *other = &table->spans[i];
        if (!holds(own == other || own->slot != other->slot, why,
                   "two sequences have the same slot")) {
            return 0;
        }
        for (int64_t p = own->position / NPURT_PAGE; p < end && p < own->listed; p++) {
            if (!fits(times_listed(other, own->pages[p]), 0, own == other, why,
                      "uses by a sequence of a page that a row is written to")) {
                return 0;
            }
        }
    }
    return 1;
}

static int table_fits(const npurt_table *table, npurt_needs *needs, char *why)
{
    int64_t end = 0;
    if (!fits(table->rows, 0, NPURT_MOST_ROWS, why, "rows of a run") ||
        !fits(table->count, 0, table->rows, why, "sequences of a run") ||
        !fits(table->selects, 0, table->rows, why, "selected rows")) {
        return 0;
    }
    for (int64_t i = 0; i < table->count; i++) {
        if (!span_fits(&table->spans[i], end, table->rows, needs, why)) {
            return 0;
        }
        end += table->spans[i].rows;
    }
    for (int64_t i = 0, least = 0; i < table->selects; i++, least = table->selected[i - 1] + 1) {
        if (!fits(table->selected[i], least, table->rows - 1, why, "selected row")) {
            return 0;
        }
    }
    for (int64_t i = 0; i < table->count; i++) {
        if (!is_alone(table, &table->spans[i], why)) {
            return 0;
        }
    }
    return holds(end == table->rows, why, "rows at the end belong to no sequence");
}

int npurt_job_fits(const npurt_job *job, char *why)
{
    npurt_needs needs = {.paged = 1};
    if (!table_fits(&job->table, &needs, why)) {
        return 0;
    }
    for (int i = 0; i < job->count; i++) {
        char here[WHY_BYTES];
        if (!op_fits(&job->ops[i], job, &needs, here)) {
            snprintf(why, WHY_BYTES, "op %d, %s", i, here);
            return 0;
        }
    }
    return 1;
}
