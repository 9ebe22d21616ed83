/*
 * Lets the numbers of runs wrap around: a run must not use the state of an earlier run with the
 * same number.
 *
 *   wrap THREADS
 *
 * Status 1: a run gave a wrong result.  If a run treats a chunk as committed, no thread computes
 * the chunk, and this program does not end.
 */
#include "../../npurt/cpu/pool/pool.c"

static const npurt_span one_span = {.rows = 1};
static const npurt_table one_row = {.rows = 1, .count = 1, .spans = &one_span};

enum { N = 192, PANEL = 16, RUNS = 20, WIDE = 5 };

static float image[N / PANEL][N][PANEL]; /* float32: [panel][column][row] */
static float x[N], y[N];

/* Run WIDE has many chunks, the others one: WIDE's other slots are unchanged when it recurs. */
static int is_right(npurt_pool *pool, npurt_op *op)
{
    const int n = atomic_load(&pool->run) == WIDE - 1 ? N : PANEL;
    op->u.matmul.w[0].n = n;
    memset(y, 0, sizeof y);
    if (npurt_run(pool, op, 1, &one_row) != 1) {
        return 0;
    }
    for (int i = 0; i < n; i++) {
        if (y[i] != N) {
            return 0;
        }
    }
    return 1;
}

int main(int argc, char **argv)
{
    npurt_pool *pool = argc == 2 ? npurt_pool_new(atoi(argv[1]), NULL, 0) : NULL;
    npurt_op op = {.kind = NPURT_MATMUL, .isa = npurt_isa_count() - 1};
    npurt_matmul *m = &op.u.matmul;
    if (!pool) {
        return 2;
    }
    for (int i = 0; i < N * N; i++) {
        image[i / N / PANEL][i % N][i / N % PANEL] = 1;
        x[i % N] = 1;
    }
    m->in = (npurt_input){.values = x, .k = N};
    m->weights = 1;
    m->w[0] = (npurt_weight){.image = (uint8_t *) image, .k = N};
    m->y = y;
    m->stride = N;
    for (int i = 0; i < 2 * RUNS; i++) {
        if (i == RUNS) {
            npurt_pool_settle(pool);
            atomic_store(&pool->settled, LAST_RUN - RUNS / 2);
            atomic_store(&pool->run, LAST_RUN - RUNS / 2);
        }
        if (!is_right(pool, &op)) {
            return 1;
        }
    }
    const int wrapped = atomic_load(&pool->run) == RUNS / 2;
    npurt_pool_free(pool);
    return wrapped ? 0 : 2;
}
