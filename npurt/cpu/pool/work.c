/*
 * Divides ops into chunks, and computes the chunks.
 *
 * matmul.c does this for matmuls.  The chunks of all other ops are computed only once, and write
 * directly to the op's output.
 */
#include "work.h"

enum { UNIT_SPAN = 1024, CAP_SPAN = 4096, CONV_SPAN = 256, ATTEND_ROWS = 32 };

int64_t npurt_rows(const npurt_op *op, const npurt_job *job)
{
    const int64_t rows = op->selects ? job->table.selects : job->table.rows;
    return op->row_multiplier ? rows * op->row_multiplier : rows;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Returns the number of blocks of all spans: a block is up to ATTEND_ROWS rows of one span. */
static int64_t attend_blocks(const npurt_table *table)
{
    int64_t blocks = 0;
    for (int64_t i = 0; i < table->count; i++) {
        blocks += ceil_div(table->spans[i].rows, ATTEND_ROWS);
    }
    return blocks;
}

/* Returns the items of one span: one for each head of q, k and v, and one for the gates. */
static int64_t conv_items(const npurt_conv *op)
{
    return 2 * (int64_t) op->k_heads + op->heads + 1;
}

/* Returns the items of one span: each is up to DELTA_ROWS rows of the state of one head. */
static int64_t delta_items(const npurt_delta *op)
{
    return (int64_t) op->sequences * op->heads * ceil_div(op->width, DELTA_ROWS);
}

npurt_division npurt_divide(const npurt_op *any, const npurt_job *job, int threads)
{
    const int64_t rows = npurt_rows(any, job);
    const npurt_table *table = &job->table;
    npurt_division d = {0};
    if (any->kind == NPURT_MATMUL) {
        return npurt_divide_matmul(any, job, threads);
    }
    switch (any->kind) {
#define NPURT_OP(KIND, MEMBER, ITEMS, GRAIN, COMPUTE, CHECK)                                       \
    case NPURT_##KIND: {                                                                           \
        const __typeof__(any->u.MEMBER) *op = &any->u.MEMBER;                                      \
        (void) op;                                                                                 \
        d.items = ITEMS;                                                                           \
        d.grain = GRAIN;                                                                           \
        break;                                                                                     \
    }
#include "ops.inc"
    }
    const int64_t least = ceil_div(d.items, MAX_CHUNKS) + !d.items; /* at least 1 */
    d.grain = d.grain > least ? d.grain : least;
    d.chunks = (int) ceil_div(d.items, d.grain);
    return d;
}

static int64_t lesser(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void unit_items(const npurt_unit *op, const npurt_level *level, int64_t from, int64_t to)
{
    const int64_t k = op->out.k, spans = ceil_div(k, UNIT_SPAN);
    for (int64_t i = from; i < to; i++) {
        const int64_t first = i % spans * UNIT_SPAN;
        level->unit(op, i / spans, first, lesser(k - first, UNIT_SPAN));
    }
}

static void cap_item(const npurt_cap *op, const npurt_level *level, int64_t item)
{
    const int64_t spans = ceil_div(op->k, CAP_SPAN), first = item % spans * CAP_SPAN;
    level->cap(op, item / spans, first, lesser(op->k - first, CAP_SPAN));
}

/* Returns the index of the span that has a row. */
static int64_t span_of(const npurt_table *table, int64_t row)
{
    int64_t low = 0, high = table->count;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (table->spans[middle].first <= row) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

static void rope_rows(const npurt_attention *op, const npurt_level *level, const npurt_table *table,
                      int64_t from, int64_t to)
{
    const npurt_span *span = table->spans + span_of(table, from);
    for (int64_t row = from; row < to; row++) {
        span += row == span->first + span->rows;
        level->rope(op, span, row);
    }
}

static void shortconv_item(const npurt_shortconv *op, const npurt_level *level,
                           const npurt_table *table, int64_t item)
{
    const int64_t parts = ceil_div(op->out.k, CONV_SPAN);
    const npurt_span *span = &table->spans[item / parts];
    const int64_t first = item % parts * CONV_SPAN, count = lesser(op->out.k - first, CONV_SPAN);
    level->shortconv(op, first, count, span);
    for (int64_t row = 0; op->out.codes && row < span->rows; row++) {
        level->quantise(&op->out, span->first + row, first / BLOCK, count / BLOCK);
    }
}

static void quant_items(const npurt_input *x, const npurt_level *level, int64_t from, int64_t to)
{
    const int64_t blocks = x->k / BLOCK;
    while (from < to) {
        const int64_t first = from % blocks;
        const int64_t count = to - from < blocks - first ? to - from : blocks - first;
        level->quantise(x, from / blocks, first, count);
        from += count;
    }
}

/* Item i is key head i % kv_heads of block i / kv_heads. */
typedef void attend_fn(const npurt_attention *op, int kv_head, const npurt_span *span, int64_t row,
                       int rows, float *scratch);

static void attend_items(const npurt_attention *op, attend_fn *attend, const npurt_table *table,
                         int64_t from, int64_t to, float *scratch)
{
    const npurt_span *span = table->spans;
    int64_t before = 0; /* blocks of all spans before `span` */
    for (int64_t i = from; i < to; i++) {
        for (int64_t own; i / op->kv_heads >= before + (own = ceil_div(span->rows, ATTEND_ROWS));
             span++) {
            before += own;
        }
        const int64_t row = (i / op->kv_heads - before) * ATTEND_ROWS;
        attend(op, (int) (i % op->kv_heads), span, row, (int) lesser(span->rows - row, ATTEND_ROWS),
               scratch);
    }
}

static void gate(const npurt_gate *op, const npurt_level *level, int64_t row)
{
    level->gate(op, row);
    if (op->out.codes) {
        level->quantise(&op->out, row, 0, op->out.k / BLOCK);
    }
}

static void gather(const npurt_gather *op, int64_t row)
{
    const int64_t k = op->in.k, blocks = k / BLOCK, from = op->gather_indices[row];
    memcpy(op->out.values + row * k, op->in.values + from * k, (size_t) k * sizeof(float));
    if (op->out.codes) {
        memcpy(op->out.codes + row * k, op->in.codes + from * k, (size_t) k);
        memcpy(op->out.blocks + row * blocks, op->in.blocks + from * blocks,
               (size_t) blocks * sizeof(npurt_block));
    }
    if (op->out.remainders) {
        memcpy(op->out.remainders + row * k, op->in.remainders + from * k, (size_t) k);
    }
}

static void pack_i8(const npurt_integers *op, int64_t panel)
{
    uint8_t *out = op->image + panel * ROWS * op->k;
    memset(out, 128, (size_t) (ROWS * op->k));
    for (int64_t k = 0; k < op->real_k; k++) {
        for (int64_t r = 0; r < ROWS && panel * ROWS + r < op->n; r++) {
            const int8_t *at = op->b + k * op->stride_k + (panel * ROWS + r) * op->stride_n;
            out[(k / 4 * ROWS + r) * 4 + k % 4] = (uint8_t) (*at + 128);
        }
    }
}

static void multiply_i8(const npurt_integers *op, const npurt_isa *isa, int64_t rows, int64_t panel)
{
    const uint8_t *w = op->image + panel * ROWS * op->k;
    isa->i8(w, op->k / 4, op->x, op->minus, (int) rows, op->y + panel * ROWS, op->stride);
}

void npurt_compute(npurt_op *any, npurt_division d, const npurt_job *job, int chunk, void *scratch)
{
    const npurt_isa *isa = &npurt_isas[any->isa];
    const npurt_level *level = isa->level;
    const npurt_table *table = &job->table;
    const int64_t rows = npurt_rows(any, job);
    const int64_t from = chunk * d.grain, to = lesser(from + d.grain, d.items);
    switch (any->kind) {
#define EACH(COMPUTE)                                                                              \
    for (int64_t i = from; i < to; i++) {                                                          \
        COMPUTE;                                                                                   \
    }
#define NPURT_OP(KIND, MEMBER, ITEMS, GRAIN, COMPUTE, CHECK)                                       \
    case NPURT_##KIND: {                                                                           \
        const __typeof__(any->u.MEMBER) *op = &any->u.MEMBER;                                      \
        (void) op;                                                                                 \
        COMPUTE;                                                                                   \
        break;                                                                                     \
    }
#include "ops.inc"
    }
}
