/*
 * What an op must be like for the kernels.  npurt_run refuses others.
 *
 * Sizes come from files, and Python checks them first, with better words.  But what the C relies on
 * is here, whatever Python believes: all of it but the addresses of buffers and how large they are.
 */
#include "work.h"
#include <stdio.h>

/* Whether something holds that must; says what does not. */
static int holds(int it, char *why, const char *what)
{
    if (!it) {
        snprintf(why, WHY_BYTES, "%s", what);
    }
    return it;
}

/* Whether a size is from `least` to `most`. */
static int fits(int64_t size, int64_t least, int64_t most, char *why, const char *what)
{
    const int good = size >= least && size <= most;
    if (!good) {
        snprintf(why, WHY_BYTES, "%s: %lld, where %lld to %lld can be", what, (long long) size,
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
           holds(width % NPURT_HEAD_STEP == 0, why, "heads are not whole vectors wide");
}

static int input_fits(const npurt_input *x, char *why)
{
    return columns_fit(x->k, why, "columns of an input") &&
           holds(!x->codes || x->k % BLOCK == 0, why, "codes of an input are not whole blocks") &&
           holds(x->codes || !x->remainders, why, "an input has remainders alone");
}

static int sum_fits(const npurt_sum *s, char *why)
{
    return input_fits(&s->out, why) &&
           fits(s->out.k, 1, s->stride, why, "columns of a sum in place") &&
           holds(!s->out.codes || s->stride == s->out.k, why, "codes are not of whole rows");
}

static int image_fits(int type, int64_t n, int64_t k, char *why)
{
    return columns_fit(k, why, "columns of a weight") &&
           fits(n, 1, INT64_MAX / NPURT_MOST_COLUMNS / 8, why, "rows of a weight") &&
           holds(npurt_image_bytes(type, n, k) > 0, why, "a weight's type has no such rows");
}

static int matmul_fits(const npurt_matmul *m, int64_t rows, char *why)
{
    int good = input_fits(&m->in, why) && fits(m->weights, 1, 3, why, "weights of a product") &&
               fits(m->matrices, m->groups != NULL, NPURT_MOST_EXPERTS, why, "matrices") &&
               fits(m->groups ? 0 : rows, 0, NPURT_MOST_ROWS, why, "rows of a product");
    for (int i = 0; good && i < m->weights; i++) {
        const npurt_weight *w = &m->w[i];
        good = image_fits(w->type, w->n, w->k, why) &&
               holds(w->k == m->in.k, why, "a weight's columns are not those of its input") &&
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
           fits(a->rotated, 0, a->width, why, "elements of a head that rotate") &&
           holds(a->rotated % 2 == 0, why, "elements of a head do not rotate in pairs") &&
           columns_fit(a->heads, why, "heads") && columns_fit(a->kv_heads, why, "key heads") &&
           holds(a->heads % a->kv_heads == 0, why, "heads do not share key heads evenly") &&
           fits(heads * a->width, 1, a->stride, why, "columns of q, k and v") &&
           columns_fit(a->stride, why, "columns of a row of q, k and v") &&
           holds(a->cache_bytes == 2 || a->cache_bytes == 4, why, "no such type of a cache") &&
           holds(a->positions % 16 == 0, why, "positions of a cache are not whole panels") &&
           fits(a->window, 0, INT32_MAX, why, "positions of a window") &&
           holds(!a->whole || (a->q_norm && a->k_norm && !a->gated), why,
                 "norms over all heads need weights, and heads without gates");
}

static int conv_fits(const npurt_conv *c, char *why)
{
    const int64_t heads = 2 * (int64_t) c->k_heads + c->heads;
    return head_fits(c->width, NPURT_MOST_DELTA, why) && columns_fit(c->heads, why, "heads") &&
           columns_fit(c->k_heads, why, "key heads") &&
           columns_fit(heads * c->width + 2 * (int64_t) c->heads, why, "channels") &&
           fits(c->kernel_size, 1, NPURT_MOST_KERNEL_SIZE, why, "kernel size of a convolution") &&
           fits(c->capacity, c->kernel_size, INT32_MAX, why, "tokens that a convolution keeps");
}

static int shortconv_fits(const npurt_shortconv *c, char *why)
{
    return input_fits(&c->out, why) && columns_fit(3 * c->out.k, why, "columns of two gates") &&
           holds(c->out.k % NPURT_HEAD_STEP == 0, why, "columns are not whole vectors") &&
           fits(c->kernel_size, 1, NPURT_MOST_KERNEL_SIZE, why, "kernel size of a convolution") &&
           fits(c->capacity, c->kernel_size, INT32_MAX, why, "tokens that a convolution keeps");
}

static int delta_fits(const npurt_delta *d, char *why)
{
    return head_fits(d->width, NPURT_MOST_DELTA, why) && columns_fit(d->heads, why, "heads") &&
           columns_fit(d->k_heads, why, "key heads") &&
           holds(d->heads % d->k_heads == 0, why, "heads do not share key heads evenly") &&
           columns_fit((int64_t) d->heads * d->width, why, "values of a token") &&
           columns_fit(d->sequences, why, "sequences") &&
           holds(d->gates == 1 || d->gates == d->width, why,
                 "decays of a head: not 1 or its width");
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
           holds(g->in.k == g->out.k, why, "copies have not the columns of their input") &&
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
           holds(i->k % 4 == 0, why, "columns of an exact product are not whole fours") &&
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
    return holds(0, why, "there is no such op");
}

/* Whether an op fits: looked at once, unless a run has more rows than those before. */
static int op_fits(npurt_op *op, const npurt_job *job, char *why)
{
    if (op->checked <= job->rows) {
        if (!fits(op->isa, 0, npurt_isas_count - 1, why, "instruction set") ||
            !fits(op->row_multiplier, 0, NPURT_MOST_EXPERTS, why, "copies of a row") ||
            !kind_fits(op, npurt_rows(op, job), why)) {
            return 0;
        }
        op->checked = job->rows + 1;
    }
    const int attends = op->kind == NPURT_ROPE || op->kind == NPURT_ATTEND;
    return !attends || fits(job->position + job->rows, 0, op->u.attention.positions, why,
                            "positions of a cache");
}

int npurt_job_fits(const npurt_job *job, char *why)
{
    if (!fits(job->rows, 0, NPURT_MOST_ROWS, why, "rows of a run") ||
        !fits(job->skip_rows, 0, job->rows, why, "rows to skip") ||
        !fits(job->position, 0, INT32_MAX, why, "position")) {
        return 0;
    }
    for (int i = 0; i < job->count; i++) {
        char here[WHY_BYTES];
        if (!op_fits(&job->ops[i], job, here)) {
            snprintf(why, WHY_BYTES, "op %d, %s", i, here);
            return 0;
        }
    }
    return 1;
}
