/*
 * Divides matmuls into chunks; computes, commits and verifies them.
 *
 * An item is a panel: 16 columns of the result.  Items are numbered over the panels of all weights
 * side by side, and over the groups of rows if there are groups.  A chunk is computed into scratch,
 * then committed: copied to the result.  Two threads may compute the same chunk of a repeatable op
 * (pool.c).
 */
#include "work.h"

enum { GEMV_CHUNK_BYTES = 96 << 10 };

static int64_t panels_of(const npurt_weight *w)
{
    return (w->n + ROWS - 1) / ROWS;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Returns the panels of all weights together, for one matrix of each. */
static int64_t panels_of_all(const npurt_matmul *m)
{
    int64_t panels = 0;
    for (int i = 0; i < m->weights; i++) {
        panels += panels_of(&m->w[i]);
    }
    return panels;
}

/* Returns the maximum number of groups; their actual number is known only when the op runs. */
static int64_t most_groups(const npurt_matmul *m, int64_t rows)
{
    if (!m->groups) {
        return 1;
    }
    return rows < m->matrices ? rows : m->matrices;
}

/*
 * Returns the panels per chunk.  For few rows, a chunk reads about GEMV_CHUNK_BYTES of weights, to
 * amortise the cost of taking it.  For many rows it has 8 panels, to amortise reading the rows.
 */
static int64_t grain_of(const npurt_matmul *m, int64_t items, int64_t rows, int threads)
{
    int64_t panels = panels_of_all(m), bytes = 0;
    for (int i = 0; i < m->weights; i++) {
        bytes += npurt_image_bytes(m->w[i].type, m->w[i].n, m->w[i].k);
    }
    const int64_t grain = rows > GEMV_ROWS ? 8 : GEMV_CHUNK_BYTES / (bytes / panels + 1) + 1;
    const int64_t share = ceil_div(items, threads * 4);
    return grain < share ? grain : share;
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

/* Copies `size` bytes to to[*used] unless `to` is NULL, and adds to *used; returns the copy. */
static void *keep(const void *from, int64_t size, uint8_t *to, int64_t *used)
{
    void *kept = to ? memcpy(to + *used, from, (size_t) size) : NULL;
    *used += (size + 63) / 64 * 64;
    return kept;
}

/*
 * Copies `rows` rows of a matmul's input, and its groups, to `to`; returns the number of bytes.  If
 * `to` is NULL, the function only counts the bytes and sets the pointers to NULL.
 */
static int64_t move_input(npurt_matmul *m, int64_t rows, uint8_t *to)
{
    const int64_t elements = rows * m->in.k;
    int64_t used = 0;
    int floats = 0, integers = 0;
    for (int i = 0; i < m->weights; i++) {
        const int integer = format_index(m->w[i].type) >= 0;
        floats |= !integer;
        integers |= integer;
    }
    npurt_input *x = &m->in;
    if (floats) {
        x->values = keep(x->values, elements * (int64_t) sizeof *x->values, to, &used);
    }
    if (integers) {
        x->codes = keep(x->codes, elements, to, &used);
        x->blocks = keep(x->blocks, elements / BLOCK * (int64_t) sizeof *x->blocks, to, &used);
    }
    if (integers && x->remainders) {
        x->remainders = keep(x->remainders, elements, to, &used);
    }
    if (m->groups) {
        m->groups = keep(m->groups, most_groups(m, rows) * (int64_t) sizeof *m->groups, to, &used);
    }
    return used;
}

_Static_assert(NPURT_MOST_ROWS * ROWS * sizeof(float) <= RESULT_BYTES, "a panel does not fit");

/* Returns the maximum bytes of one panel's results: a group has a row of the run at most once. */
static int64_t panel_results(const npurt_op *op, const npurt_job *job)
{
    const int64_t rows = op->u.matmul.groups ? job->table.rows : npurt_rows(op, job);
    return rows * ROWS * (int64_t) sizeof(float);
}

npurt_division npurt_divide_matmul(const npurt_op *op, const npurt_job *job, int threads)
{
    const npurt_matmul *m = &op->u.matmul;
    const int64_t rows = npurt_rows(op, job);
    if (rows == 0) {
        return (npurt_division){.items = 0, .grain = 1};
    }
    npurt_matmul moved = *m;
    npurt_division d = {.items = most_groups(m, rows) * panels_of_all(m)};
    const int64_t least = ceil_div(d.items, MAX_CHUNKS);
    const int64_t grain = grain_of(m, d.items, rows, threads);
    d.grain = grain > least ? grain : least;
    d.chunks = (int) ceil_div(d.items, d.grain);
    d.repeatable = threads > 1 && d.grain * panel_results(op, job) <= RESULT_BYTES &&
                   move_input(&moved, rows, NULL) <= COPY_BYTES;
    return d;
}

/* Panels [first, last) of the weights of a matmul without groups, or of one group's product. */
typedef struct {
    npurt_matmul m;
    int64_t rows, first, last;
} npurt_part;

/* Returns the matmul of one group of rows with its matrix. */
static npurt_matmul view_of(const npurt_matmul *m, const npurt_group *g)
{
    npurt_matmul view = *m;
    const int64_t at = g->first * m->in.k, block = at / BLOCK;
    view.y += g->first * m->stride;
    view.in.values += at;
    if (view.in.codes) {
        view.in.codes += at;
        view.in.blocks += block;
    }
    if (view.in.remainders) {
        view.in.remainders += at;
    }
    for (int i = 0; i < m->weights; i++) {
        npurt_weight *w = &view.w[i];
        w->image += g->matrix * npurt_image_bytes(w->type, w->n, w->k);
        w->bias = w->bias ? w->bias + g->matrix * w->n : NULL;
        w->check_s = w->check_s ? w->check_s + g->matrix * w->k : NULL;
    }
    return view;
}

/* Sets *part to items [from, to), or to those up to the end of a group; returns the next item. */
static int64_t next_part(const npurt_op *op, const npurt_job *job, int64_t from, int64_t to,
                         npurt_part *part)
{
    const npurt_matmul *m = &op->u.matmul;
    const int64_t panels = panels_of_all(m), base = from / panels * panels;
    const int64_t end = base + panels < to ? base + panels : to;
    *part = (npurt_part){*m, npurt_rows(op, job), from - base, end - base};
    if (m->groups) {
        const npurt_group *g = &m->groups[from / panels];
        part->m = view_of(m, g);
        part->rows = g->rows;
    }
    return end;
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

/* The product of rows of x with a piece of a weight of codes. */
typedef struct {
    const npurt_isa *isa;
    const npurt_input *x;
    const uint8_t *image;
    size_t stride; /* bytes of a panel */
    int64_t k, rows;
    int panels, format;
} npurt_product;

/* Computes y [panels][rows][16] panel by panel, with up to GEMV_ROWS rows at a time. */
static void by_gemv(const npurt_product *p, float *y)
{
    for (int64_t first = 0; first < p->rows; first += GEMV_ROWS) {
        const int count = p->rows - first < GEMV_ROWS ? (int) (p->rows - first) : GEMV_ROWS;
        npurt_row row[GEMV_ROWS];
        for (int i = 0; i < count; i++) {
            row[i] = npurt_row_of(p->x, first + i, 0);
        }
        for (int i = 0; i < p->panels; i++) {
            p->isa->gemv[p->format](p->image + (size_t) i * p->stride, 1, row, count,
                                    y + (i * p->rows + first) * ROWS);
        }
    }
}

/* Computes y [panels][rows][16] record by record, each with all rows at once. */
static void by_gemm(const npurt_product *p, const npurt_format *f, float *y)
{
    const uint8_t *image = p->image;
    memset(y, 0, (size_t) (p->panels * p->rows * ROWS) * sizeof *y);
    for (int64_t block = 0; block < p->k / BLOCK; block += RECORD_BLOCKS) {
        const int64_t left = p->k / BLOCK - block;
        const int blocks = left < RECORD_BLOCKS ? (int) left : RECORD_BLOCKS;
        for (int i = 0; i < p->panels; i++) {
            npurt_tile tile;
            p->isa->level->expand[p->format](image + (size_t) i * p->stride, blocks, &tile);
            p->isa->gemm(&tile, p->x, 0, (int) p->rows, block, y + i * p->rows * ROWS);
        }
        image += record_bytes(f, blocks);
    }
}

/* y [panels][rows][16] = x . piece^T for codes */
static void compute_codes(const npurt_isa *isa, const npurt_input *x, const npurt_piece *piece,
                          int64_t rows, float *y)
{
    const npurt_weight *w = piece->w;
    const npurt_format *f = npurt_find_format(w->type);
    const size_t stride = panel_bytes(f, w->k);
    const npurt_product product = {
        .isa = isa,
        .x = x,
        .image = w->image + (size_t) piece->first * stride,
        .stride = stride,
        .k = w->k,
        .rows = rows,
        .panels = piece->panels,
        .format = format_index(w->type),
    };
    if (isa->gemm && rows > FEW_ROWS) {
        by_gemm(&product, f, y);
    } else {
        by_gemv(&product, y);
    }
}

/* out = in + bias; bias may be NULL */
static void put_row(float *restrict out, const float *restrict in, const float *restrict bias,
                    int64_t width)
{
    for (int64_t c = 0; c < width; c++) {
        out[c] = in[c];
    }
    for (int64_t c = 0; bias && c < width; c++) {
        out[c] += bias[c];
    }
}

/* Copies a piece's results to their columns of the output, and adds the bias. */
static void commit_piece(const npurt_matmul *m, const npurt_piece *p, int64_t rows, const float *y)
{
    const npurt_weight *w = p->w;
    for (int i = 0; i < p->panels; i++) {
        const int64_t n = (p->first + i) * ROWS;
        const int64_t width = w->n - n < ROWS ? w->n - n : ROWS;
        for (int64_t r = 0; r < rows; r++) {
            put_row(m->y + r * m->stride + w->column + n, y + (i * rows + r) * ROWS,
                    w->bias ? w->bias + n : NULL, width);
        }
    }
}

/* Computes the panels of items [from, to) into `y`, one after another. */
static void compute(const npurt_op *op, const npurt_job *job, int64_t from, int64_t to, float *y)
{
    const npurt_isa *isa = &npurt_isas[op->isa];
    npurt_part part;
    while (from < to) {
        npurt_piece pieces[3];
        from = next_part(op, job, from, to, &part);
        const int count = part.rows ? pieces_of(&part.m, part.first, part.last, pieces) : 0;
        for (int i = 0; i < count; i++) {
            if (format_index(pieces[i].w->type) < 0) {
                compute_dense(isa, &part.m.in, &pieces[i], part.rows, y);
            } else {
                compute_codes(isa, &part.m.in, &pieces[i], part.rows, y);
            }
            y += pieces[i].panels * part.rows * ROWS;
        }
    }
}

/* Copies the results of `compute` to the output. */
static void commit(const npurt_op *op, const npurt_job *job, int64_t from, int64_t to,
                   const float *y)
{
    npurt_part part;
    while (from < to) {
        npurt_piece pieces[3];
        from = next_part(op, job, from, to, &part);
        const int count = part.rows ? pieces_of(&part.m, part.first, part.last, pieces) : 0;
        for (int i = 0; i < count; i++) {
            commit_piece(&part.m, &pieces[i], part.rows, y);
            y += pieces[i].panels * part.rows * ROWS;
        }
    }
}

/* The results of a chunk may exceed scratch, so this computes as many panels at a time as fit. */
void npurt_compute_matmul(const npurt_op *op, const npurt_job *job, int64_t from, int64_t to,
                          float *scratch)
{
    const int64_t most = RESULT_BYTES / panel_results(op, job);
    for (; from < to; from += most) {
        const int64_t end = to - from < most ? to : from + most;
        compute(op, job, from, end, scratch);
        commit(op, job, from, end, scratch);
    }
}

void npurt_snapshot(const npurt_op *op, const npurt_job *job, void *scratch, npurt_op *copy)
{
    *copy = *op;
    move_input(&copy->u.matmul, npurt_rows(op, job), scratch);
}

static int64_t end_of(npurt_division d, int chunk)
{
    const int64_t end = (chunk + 1) * d.grain;
    return end < d.items ? end : d.items;
}

void npurt_compute_copy(const npurt_op *copy, npurt_division d, const npurt_job *job, int chunk,
                        void *scratch)
{
    float *results = (float *) (void *) ((uint8_t *) scratch + COPY_BYTES);
    compute(copy, job, chunk * d.grain, end_of(d, chunk), results);
}

void npurt_commit_copy(const npurt_op *copy, npurt_division d, const npurt_job *job, int chunk,
                       const void *scratch)
{
    const float *results = (const float *) (const void *) ((const uint8_t *) scratch + COPY_BYTES);
    commit(copy, job, chunk * d.grain, end_of(d, chunk), results);
}

int64_t npurt_matrices(const npurt_op *op, const npurt_job *job)
{
    const npurt_matmul *m = &op->u.matmul;
    const int64_t most = most_groups(m, npurt_rows(op, job));
    int64_t count = 0;
    for (int64_t i = 0; i < most; i++) {
        count += !m->groups || m->groups[i].rows;
    }
    return count;
}

int npurt_is_right(const npurt_op *op, const npurt_job *job)
{
    const int64_t panels = panels_of_all(&op->u.matmul);
    const int64_t items = most_groups(&op->u.matmul, npurt_rows(op, job)) * panels;
    npurt_part part;
    for (int64_t from = 0; from < items;) {
        from = next_part(op, job, from, items, &part);
        for (int i = 0; i < part.m.weights; i++) {
            const npurt_weight *w = &part.m.w[i];
            for (int64_t row = 0; w->check_s && row < part.rows; row++) {
                if (!npurt_isas[op->isa].level->row_is_right(&part.m, w, row)) {
                    return 0;
                }
            }
        }
    }
    return 1;
}
