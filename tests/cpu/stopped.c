/*
 * Stops runs at an op whose result does not verify, and then runs the rest from that op on: each op
 * after it is done once.
 *
 *   stopped THREADS RUNS
 *
 * A run is three products, the last of which does not verify, and x += 1.  Status 1: x is not 1
 * after a run was stopped and the rest was run, for example because a thread of the stopped run
 * continued.
 */
#include "npurt_cpu.h"
#include <stdlib.h>
#include <string.h>

static const npurt_span one_span = {.rows = 1};
static const npurt_table one_row = {.rows = 1, .count = 1, .spans = &one_span};

enum { N = 64, PANEL = 16, PRODUCTS = 3, OPS = PRODUCTS + 1 };

static float image[N / PANEL][N][PANEL]; /* of float32 weights */
static float in[N], y[N], x[N], one[N], out[N];
static double r[N], s[N];
static npurt_op ops[OPS];

/* Sets every weight and every input to 1, and gives a wrong W^T r to the check. */
static void build(void)
{
    for (int i = 0; i < N; i++) {
        in[i] = one[i] = 1;
        r[i] = 1;
        s[i] = 1e6;
        for (int k = 0; k < N; k++) {
            image[i / PANEL][k][i % PANEL] = 1;
        }
    }
    for (int i = 0; i < PRODUCTS; i++) {
        npurt_matmul *m = &ops[i].u.matmul;
        ops[i].kind = NPURT_MATMUL;
        m->in = (npurt_input){.values = in, .k = N};
        m->weights = 1;
        m->w[0] = (npurt_weight){.image = (uint8_t *) image, .n = N, .k = N};
        m->y = y;
        m->stride = N;
    }
    npurt_weight *w = &ops[PRODUCTS - 1].u.matmul.w[0];
    w->check_r = r;
    w->check_s = s;
    w->check_bound = 1e-6;
    ops[PRODUCTS].kind = NPURT_NORM;
    ops[PRODUCTS].u.norm = (npurt_norm){
        .x = x,
        .add = one,
        .weight = one,
        .out = {.values = out, .k = N},
        .add_scale = 1,
        .eps = 1e-6f,
    };
    for (int i = 0; i < OPS; i++) {
        ops[i].isa = npurt_isa_count() - 1;
    }
}

int main(int argc, char **argv)
{
    npurt_pool *pool = argc == 3 ? npurt_pool_new(atoi(argv[1]), NULL, 0) : NULL;
    if (!pool) {
        return 2;
    }
    build();
    for (int run = 0; run < atoi(argv[2]); run++) {
        memset(x, 0, sizeof x);
        npurt_op *wrong = &ops[PRODUCTS - 1];
        wrong->u.matmul.verify = 1;
        if (npurt_run(pool, ops, OPS, &one_row) != PRODUCTS - 1) {
            return 2;
        }
        wrong->u.matmul.verify = 0;
        if (npurt_run(pool, wrong, 2, &one_row) != 2) {
            return 2;
        }
        npurt_pool_settle(pool);
        if (x[0] != 1) {
            return 1;
        }
    }
    npurt_pool_free(pool);
    return 0;
}
