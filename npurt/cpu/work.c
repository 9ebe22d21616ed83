/*
 * What one op's work is: how it divides into chunks, how a chunk is computed and committed.
 *
 * A matmul chunk is computed into scratch and committed after, so that two threads may compute the
 * same one (pool.c).  The other ops write where they stand and are computed once.
 */
#include "work.h"

enum { GEMV_CHUNK_BYTES = 96 << 10, SILU_SPAN = 1024, ATTEND_ROWS = 32 };

static int64_t rows_of(const npurt_op *op, const npurt_job *job)
{
    return op->head ? job->rows - job->head : job->rows;
}

static int64_t panels_of(const npurt_weight *w)
{
    return (w->n + ROWS - 1) / ROWS;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Panels a chunk: enough bytes to be worth taking, few enough that the result fits scratch. */
static int64_t matmul_grain(const npurt_matmul *m, int64_t rows, int threads, int64_t *items)
{
    int64_t panels = 0, bytes = 0;
    for (int i = 0; i < m->weights; i++) {
        panels += panels_of(&m->w[i]);
        bytes += npurt_image_bytes(m->w[i].type, m->w[i].n, m->w[i].k);
    }
    *items = panels;
    int64_t grain = ceil_div(panels, threads * 4);
    if (rows == 1) {
        const int64_t by_bytes = GEMV_CHUNK_BYTES / (bytes / panels + 1) + 1;
        grain = grain < by_bytes ? grain : by_bytes;
        grain = ceil_div(grain, 4) * 4;
    } else {
        grain = grain < 8 ? grain : 8;
    }
    const int64_t least = ceil_div(panels, MAX_CHUNKS);
    return grain > least ? grain : least;
}

npurt_division npurt_divide(const npurt_op *op, const npurt_job *job, int threads)
{
    const int64_t rows = rows_of(op, job);
    npurt_division d = {.items = rows, .grain = 1};
    switch (op->kind) {
    case NPURT_MATMUL:
        d.grain = matmul_grain(&op->u.matmul, rows, threads, &d.items);
        break;
    case NPURT_QUANT:
        d.items = rows * (op->u.quant.out.k / BLOCK);
        d.grain = 64;
        break;
    case NPURT_SILU:
        d.items = rows * ceil_div(op->u.silu.out.k, SILU_SPAN);
        break;
    case NPURT_ATTEND:
        d.items = op->u.attention.kv_heads * ceil_div(rows, ATTEND_ROWS);
        break;
    case NPURT_PACK:
        d.items = ceil_div(op->u.packing.n, ROWS);
        break;
    case NPURT_SPREAD:
        d.items = ceil_div(op->u.spreading.w.k, RECORD);
        break;
    case NPURT_PACK_I8:
    case NPURT_I8:
        d.items = ceil_div(op->u.integers.n, ROWS);
        break;
    }
    const int64_t least = ceil_div(d.items, MAX_CHUNKS);
    d.grain = d.grain > least ? d.grain : least;
    d.chunks = (int) ceil_div(d.items, d.grain);
    return d;
}

/* One piece of a chunk: consecutive panels of one weight. */
typedef struct {
    const npurt_weight *w;
    int64_t first;
    int panels;
} npurt_piece;

/* Splits panels [from, to) of the concatenated weights into at most three pieces. */
static int pieces_of(const npurt_matmul *m, int64_t from, int64_t to, npurt_piece pieces[3])
{
    int count = 0;
    int64_t base = 0;
    for (int i = 0; i < m->weights; i++) {
        const int64_t panels = panels_of(&m->w[i]);
        const int64_t lo = from > base ? from - base : 0;
        const int64_t hi = to - base < panels ? to - base : panels;
        if (lo < hi) {
            pieces[count++] = (npurt_piece){&m->w[i], lo, (int) (hi - lo)};
        }
        base += panels;
    }
    return count;
}

static int format_index(int type)
{
    static const int types[] = {
#define NPURT_FORMAT(name, number, ...) number,
#include "formats.inc"
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (types[i] == type) {
            return (int) i;
        }
    }
    return -1;
}

/* The codes, or the fine codes, of an input. */
static npurt_input part_of(const npurt_input *x, int part)
{
    npurt_input one = *x;
    if (part) {
        one.codes = x->fine_codes;
        one.blocks = x->fine_blocks;
    }
    return one;
}

static npurt_row row_of(const npurt_input *x, int part, int64_t row)
{
    const npurt_input one = part_of(x, part);
    return (npurt_row){one.codes + row * x->k, one.blocks + row * (x->k / BLOCK), x->k};
}

static int parts_of(const npurt_input *x)
{
    return x->fine_codes ? 2 : 1;
}

/* y [panels][rows][16] = x . piece^T for float weights */
static void compute_dense(const npurt_isa *isa, const npurt_input *x, const npurt_piece *p,
                          int64_t rows, float *y)
{
    const npurt_weight *w = p->w;
    const size_t panel = (size_t) (ROWS * w->k) * (w->type == 0 ? 4 : 2);
    const uint8_t *image = w->image + (size_t) p->first * panel;
    npurt_dense_fn *dense = isa->level->dense[w->type == 30 ? 2 : w->type];
    if (rows == 1) {
        dense(image, p->panels, x->values, 1, w->k, y, 0);
        return;
    }
    for (int i = 0; i < p->panels; i++) {
        dense(image + (size_t) i * panel, 1, x->values, (int) rows, w->k, y + i * rows * ROWS,
              ROWS);
    }
}

/* y [panels][parts][rows][16] = parts of x . piece^T */
static void compute_codes(const npurt_isa *isa, const npurt_input *x, const npurt_piece *p,
                          int64_t rows, float *y)
{
    const npurt_weight *w = p->w;
    const int index = format_index(w->type), parts = parts_of(x);
    const npurt_format *f = npurt_find_format(w->type);
    const size_t stride = panel_bytes(f, w->k);
    const uint8_t *image = w->image + (size_t) p->first * stride;
    if (rows * parts <= GEMV_ROWS) {
        npurt_row row[GEMV_ROWS];
        for (int i = 0; i < rows * parts; i++) {
            row[i] = row_of(x, i / (int) rows, i % rows);
        }
        isa->gemv[index](image, p->panels, row, (int) rows * parts, y);
        return;
    }
    memset(y, 0, (size_t) (p->panels * parts * rows * ROWS) * sizeof *y);
    for (int64_t block = 0; block < w->k / BLOCK; block += RECORD_BLOCKS) {
        const int64_t left = w->k / BLOCK - block;
        const int blocks = left < RECORD_BLOCKS ? (int) left : RECORD_BLOCKS;
        for (int i = 0; i < p->panels; i++) {
            npurt_tile tile;
            isa->level->expand[index](image + (size_t) i * stride, blocks, &tile);
            for (int part = 0; part < parts; part++) {
                const npurt_input one = part_of(x, part);
                isa->gemm(&tile, &one, 0, (int) rows, block, y + (i * parts + part) * rows * ROWS);
            }
        }
        image += record_bytes(f, blocks);
    }
}

/* Floats of scratch that a piece's results take. */
static int64_t result_size(const npurt_input *x, const npurt_piece *p, int64_t rows)
{
    return p->panels * (format_index(p->w->type) < 0 ? 1 : parts_of(x)) * rows * ROWS;
}

/* out = in + fine + bias, the last two where given */
static void put_row(float *restrict out, const float *restrict in, const float *restrict fine,
                    const float *restrict bias, int64_t width)
{
    for (int64_t c = 0; c < width; c++) {
        out[c] = in[c];
    }
    for (int64_t c = 0; fine && c < width; c++) {
        out[c] += fine[c];
    }
    for (int64_t c = 0; bias && c < width; c++) {
        out[c] += bias[c];
    }
}

/* Copies a piece's results to their columns, parts and bias added. */
static void commit_piece(const npurt_matmul *m, const npurt_piece *p, int64_t rows, const float *y)
{
    const npurt_weight *w = p->w;
    const int parts = format_index(w->type) < 0 ? 1 : parts_of(&m->in);
    for (int i = 0; i < p->panels; i++) {
        const int64_t n = (p->first + i) * ROWS;
        const int64_t width = w->n - n < ROWS ? w->n - n : ROWS;
        for (int64_t r = 0; r < rows; r++) {
            const float *in = y + (i * parts * rows + r) * ROWS;
            put_row(m->y + r * m->stride + w->column + n, in, parts == 2 ? in + rows * ROWS : NULL,
                    w->bias ? w->bias + n : NULL, width);
        }
    }
}

static void silu_items(const npurt_silu *op, const npurt_level *level, int64_t from, int64_t to)
{
    const int64_t k = op->out.k, spans = ceil_div(k, SILU_SPAN);
    for (int64_t i = from; i < to; i++) {
        const int64_t first = i % spans * SILU_SPAN;
        level->silu(op, i / spans, first, k - first < SILU_SPAN ? k - first : SILU_SPAN);
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

static void attend_items(const npurt_attention *op, const npurt_level *level, const npurt_job *job,
                         int64_t from, int64_t to, float *scratch)
{
    for (int64_t i = from; i < to; i++) {
        const int64_t row = i / op->kv_heads * ATTEND_ROWS;
        const int64_t left = job->rows - row;
        level->attend(op, (int) (i % op->kv_heads), row,
                      left < ATTEND_ROWS ? (int) left : ATTEND_ROWS, job->position, scratch);
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

static void single_items(npurt_op *op, const npurt_isa *isa, const npurt_job *job, int64_t from,
                         int64_t to)
{
    const npurt_level *level = isa->level;
    for (int64_t i = from; i < to; i++) {
        switch (op->kind) {
        case NPURT_NORM:
            level->norm(&op->u.norm, i + (op->u.norm.from_head ? job->head : 0), i);
            break;
        case NPURT_ROPE:
            level->rope(&op->u.attention, i, job->position + i);
            break;
        case NPURT_PACK:
            level->pack(&op->u.packing, i);
            break;
        case NPURT_SPREAD:
            level->spread(&op->u.spreading, i);
            break;
        case NPURT_PACK_I8:
            pack_i8(&op->u.integers, i);
            break;
        case NPURT_I8:
            multiply_i8(&op->u.integers, isa, rows_of(op, job), i);
            break;
        }
    }
}

void npurt_compute(npurt_op *op, npurt_division d, const npurt_job *job, int chunk, void *scratch)
{
    const npurt_isa *isa = &npurt_isas[op->isa];
    const int64_t from = chunk * d.grain;
    const int64_t to = from + d.grain < d.items ? from + d.grain : d.items;
    if (op->kind == NPURT_SILU) {
        silu_items(&op->u.silu, isa->level, from, to);
    } else if (op->kind == NPURT_QUANT) {
        quant_items(&op->u.quant.out, isa->level, from, to);
    } else if (op->kind == NPURT_ATTEND) {
        attend_items(&op->u.attention, isa->level, job, from, to, scratch);
    } else if (op->kind == NPURT_MATMUL) {
        const int64_t rows = rows_of(op, job);
        npurt_piece pieces[3];
        const int count = pieces_of(&op->u.matmul, from, to, pieces);
        float *y = scratch;
        for (int i = 0; i < count; i++) {
            if (format_index(pieces[i].w->type) < 0) {
                compute_dense(isa, &op->u.matmul.in, &pieces[i], rows, y);
            } else {
                compute_codes(isa, &op->u.matmul.in, &pieces[i], rows, y);
            }
            y += result_size(&op->u.matmul.in, &pieces[i], rows);
        }
    } else {
        single_items(op, isa, job, from, to);
    }
}

void npurt_commit(npurt_op *op, npurt_division d, const npurt_job *job, int chunk,
                  const void *scratch)
{
    const int64_t from = chunk * d.grain, rows = rows_of(op, job);
    const int64_t to = from + d.grain < d.items ? from + d.grain : d.items;
    npurt_piece pieces[3];
    const int count = pieces_of(&op->u.matmul, from, to, pieces);
    const float *y = scratch;
    for (int i = 0; i < count; i++) {
        commit_piece(&op->u.matmul, &pieces[i], rows, y);
        y += result_size(&op->u.matmul.in, &pieces[i], rows);
    }
}

int npurt_is_right(const npurt_op *op, const npurt_job *job)
{
    const npurt_matmul *m = &op->u.matmul;
    for (int i = 0; i < m->weights; i++) {
        for (int64_t row = 0; m->w[i].check_s && row < rows_of(op, job); row++) {
            if (!npurt_isas[op->isa].level->row_is_right(m, &m->w[i], row)) {
                return 0;
            }
        }
    }
    return 1;
}
