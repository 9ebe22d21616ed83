/*
 * Prints the order in which threads take the chunks of an op, one line for each order of calls.
 *
 *   lanes THREADS CHUNKS
 *
 * First, each thread alone takes all chunks, one line per thread.  Then all threads take one chunk
 * each in turn.  Status 1: a thread of another run was given a chunk.
 */
#include "../../npurt/cpu/pool/pool.c"
#include <stdio.h>

static npurt_share share;

/* Takes one chunk and prints it; returns 0 when there is none. */
static int take_one(npurt_pool *pool, uint32_t run, int thread)
{
    const npurt_walk w = {.pool = pool, .run = run, .thread = thread};
    npurt_division d;
    get_words(&d, share.division, sizeof d);
    const int chunk = take(&w, &share, d);
    if (chunk >= 0) {
        printf("%d:%d ", thread, chunk);
    }
    return chunk >= 0;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        return 2;
    }
    npurt_pool pool = {.count = atoi(argv[1])};
    const int chunks = atoi(argv[2]);
    npurt_walk w = {.pool = &pool};
    for (int thread = 0; thread < pool.count; thread++) {
        w.run++;
        open_lanes(&w, &share, (npurt_division){chunks, 1, chunks, 0});
        while (take_one(&pool, w.run, thread)) {
        }
        printf("\n");
    }
    w.run++;
    open_lanes(&w, &share, (npurt_division){chunks, 1, chunks, 0});
    if (take_one(&pool, w.run - 1, 0) || take_one(&pool, w.run + 1, 0)) {
        return 1;
    }
    for (int i = 0; i < chunks + pool.count; i++) {
        take_one(&pool, w.run, i % pool.count);
    }
    printf("\n");
    return 0;
}
