/*
 * Executes many runs of a pool, each in new memory: a thread that reads this memory after it may be
 * freed ends the program with SIGSEGV.
 *
 *   runs THREADS RUNS
 *
 * Everything but the weights is freed as soon as npurt_run returns, and the weights after
 * npurt_pool_settle. A run is two products, y = W (W x), of integers that are small enough to be
 * exact.  An op that starts before the previous op has ended, a chunk committed twice, or a chunk
 * not committed gives a wrong result; the program then ends with status 1.
 */
#define _GNU_SOURCE
#include "npurt_cpu.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const npurt_span one_span = {.rows = 1};
static const npurt_table one_row = {.rows = 1, .count = 1, .spans = &one_span};

enum { N = 192, PANEL = 16 };

typedef float weights[N / PANEL][N][PANEL]; /* float32: [panel][column][row] */

/* The operands of a run except W. */
typedef struct {
    npurt_op ops[2];
    float x[N], once[N], twice[N];
} memory;

static int weight(int row, int column)
{
    return (row * row + 5 * column) % 3 - 1;
}

static void multiply(const float *x, float *y)
{
    for (int n = 0; n < N; n++) {
        y[n] = 0;
        for (int k = 0; k < N; k++) {
            y[n] += (float) weight(n, k) * x[k];
        }
    }
}

static void *map(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        exit(2);
    }
    return p;
}

static void add(npurt_op *op, weights *image, float *x, float *y)
{
    op->kind = NPURT_MATMUL;
    op->isa = npurt_isa_count() - 1;
    op->u.matmul.in.values = x;
    op->u.matmul.in.k = N;
    op->u.matmul.w[0].image = (uint8_t *) image;
    op->u.matmul.w[0].n = op->u.matmul.w[0].k = N;
    op->u.matmul.weights = 1;
    op->u.matmul.y = y;
    op->u.matmul.stride = N;
}

static void run_once(npurt_pool *pool, weights *image, const float *x, const float *wanted)
{
    memory *m = map(sizeof *m);
    memcpy(m->x, x, sizeof m->x);
    for (int i = 0; i < N; i++) {
        m->once[i] = m->twice[i] = NAN;
    }
    add(&m->ops[0], image, m->x, m->once);
    add(&m->ops[1], image, m->once, m->twice);
    if (npurt_run(pool, m->ops, 2, &one_row) != 2 || memcmp(m->twice, wanted, sizeof m->twice)) {
        exit(1);
    }
    munmap(m, sizeof *m);
}

int main(int argc, char **argv)
{
    static weights image;
    static float x[N], once[N], wanted[N];
    npurt_pool *pool = argc == 3 ? npurt_pool_new(atoi(argv[1]), NULL, 0) : NULL;
    if (!pool) {
        return 2;
    }
    for (int i = 0; i < N * N; i++) {
        image[i / N / PANEL][i % N][i / N % PANEL] = (float) weight(i / N, i % N);
        x[i % N] = (float) (i % 7 % 3 - 1);
    }
    multiply(x, once);
    multiply(once, wanted);
    for (int i = 0; i < atoi(argv[2]); i++) {
        weights *w = map(sizeof *w);
        memcpy(w, &image, sizeof *w);
        run_once(pool, w, x, wanted);
        run_once(pool, w, x, wanted);
        npurt_pool_settle(pool);
        munmap(w, sizeof *w);
    }
    npurt_pool_free(pool);
    return 0;
}
