/*
 * Frees the memory of a run as soon as npurt_pool_settle() says that this is safe, many times over:
 * a thread that then still looks at it ends this program with SIGSEGV.
 *
 *   settled THREADS RUNS
 */
#define _GNU_SOURCE
#include "npurt_cpu.h"
#include <stdlib.h>
#include <sys/mman.h>

enum { OPS = 4, WIDTH = 4096, BYTES = 16384 };

static float gate_up[2 * WIDTH], out[WIDTH];

static void run_once(npurt_pool *pool)
{
    npurt_op *ops = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ops == MAP_FAILED || OPS * sizeof *ops > BYTES) {
        exit(2);
    }
    for (int i = 0; i < OPS; i++) {
        ops[i].kind = NPURT_SILU;
        ops[i].isa = npurt_isa_count() - 1;
        ops[i].u.silu.gate_up = gate_up;
        ops[i].u.silu.out.values = out;
        ops[i].u.silu.out.k = WIDTH;
    }
    if (npurt_run(pool, ops, OPS, 1, 0, 0) != OPS) {
        exit(3);
    }
    npurt_pool_settle(pool);
    munmap(ops, BYTES);
}

int main(int argc, char **argv)
{
    npurt_pool *pool = argc == 3 ? npurt_pool_new(atoi(argv[1]), NULL, 0) : NULL;
    if (!pool) {
        return 2;
    }
    for (int i = 0; i < atoi(argv[2]); i++) {
        run_once(pool);
    }
    npurt_pool_free(pool);
    return 0;
}
