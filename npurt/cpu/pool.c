/*
 * The threads that run a program, and how they share it.
 *
 * Every thread walks the ops in order and takes chunks of the current one until none is left; nobody
 * is in charge.  It begins with a lane of its own, consecutive chunks, so that it reads weights in
 * order: taking turns, two threads lose a fifth of the bandwidth (bench/RESULTS.md).  Then it takes
 * what is left in the lanes of others.  When all chunks are taken but some thread was preempted in
 * the middle of its own, the others do not wait: they compute that chunk again, and the first to
 * finish commits it.  So a busy neighbour costs its share of the machine and no more.
 *
 * A late thread is harmless.  It computes into its own scratch; it may write results only after
 * changing the chunk's slot from the value it saw to the number of its run, which fails once
 * another has committed; and what else it could touch carries the number of the run too.
 */
#define _GNU_SOURCE
#include "work.h"
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* How long a thread looks busily: for a new run before it sleeps, for others before it helps. */
enum { IDLE_NS = 100000, HELP_NS = 10000, YIELD_NS = 50000 };

enum { LANES = 8 }; /* at most: more threads share them */

/* Consecutive chunks of one op. */
typedef struct {
    _Alignas(64) _Atomic uint64_t ticket; /* next chunk to take */
} npurt_lane;

/* The shared state of one op in one run.  The high half of tickets and done is the run's number. */
typedef struct {
    npurt_lane lanes[LANES];
    _Atomic uint64_t done; /* chunks committed; chunks + 1 when the op is over */
    npurt_division division;
    _Atomic uint32_t slots[MAX_CHUNKS]; /* the run that last committed each chunk */
} npurt_share;

struct npurt_pool {
    int threads, pinned;
    pid_t owner;
    cpu_set_t cpus;
    pthread_t *workers;
    void **scratch; /* of each thread */
    npurt_share *shares;
    int capacity; /* of shares */
    npurt_job job;
    _Atomic uint32_t run;           /* number of the current run; what sleepers wait on */
    _Atomic uint32_t settled;       /* the last run that nobody may join any more */
    _Atomic int asleep, stop, next; /* next: thread ids handed out */
    _Atomic int inside;             /* workers in a run */
    _Atomic int failed;             /* op whose result did not verify, or -1 */
    _Atomic uint64_t stamp;         /* when the last op was over */
};

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000000u + (uint64_t) t.tv_nsec;
}

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("yield");
#endif
}

static void futex(_Atomic uint32_t *word, int what, uint32_t value)
{
    syscall(SYS_futex, word, what | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

/* One thread's way through one run. */
typedef struct {
    npurt_pool *pool;
    npurt_job job;
    uint32_t run;
    int thread;
} npurt_walk;

static int is_over(const npurt_walk *w, const npurt_share *s)
{
    const uint64_t done = atomic_load_explicit(&s->done, memory_order_acquire);
    return done >> 32 != w->run || (uint32_t) done == (uint32_t) s->division.chunks + 1;
}

static int lanes_of(const npurt_pool *pool)
{
    return pool->threads < LANES ? pool->threads : LANES;
}

/* The first chunk of a lane; a lone chunk is in lane 0. */
static int lane_start(const npurt_pool *pool, npurt_division d, int lane)
{
    const int lanes = lanes_of(pool);
    return (d.chunks * lane + lanes - 1) / lanes;
}

/* Takes the next chunk of a lane: its number, or -1 when there is none or the run is over. */
static int take_from(const npurt_walk *w, npurt_share *s, npurt_division d, int lane)
{
    const int end = lane_start(w->pool, d, lane + 1);
    _Atomic uint64_t *next = &s->lanes[lane].ticket;
    uint64_t ticket = atomic_load_explicit(next, memory_order_acquire);
    while (ticket >> 32 == w->run && (int64_t) (uint32_t) ticket < end) {
        if (atomic_compare_exchange_weak(next, &ticket, ticket + 1)) {
            return (int) (uint32_t) ticket;
        }
    }
    return -1;
}

/* Takes a chunk, from the thread's own lane if it can: as above. */
static int take(const npurt_walk *w, npurt_share *s, npurt_division *d)
{
    const int lanes = lanes_of(w->pool);
    *d = s->division;
    atomic_thread_fence(memory_order_acquire); /* a ticket of this run vouches for the division */
    for (int i = 0; i < lanes; i++) {
        const int chunk = take_from(w, s, *d, (w->thread + i) % lanes);
        if (chunk >= 0) {
            return chunk;
        }
    }
    return -1;
}

/* The last chunk of an op is in: account for it, verify it, let everybody go on. */
static void finish(const npurt_walk *w, int index, npurt_share *s)
{
    npurt_op *op = &w->job.ops[index];
    npurt_pool *pool = w->pool;
    if (op->kind == NPURT_MATMUL && op->u.matmul.armed) {
        op->checks++;
        if (!npurt_is_right(op, &w->job)) {
            atomic_store(&pool->failed, index);
        }
    }
    const uint64_t time = now();
    op->nanoseconds += time - atomic_exchange(&pool->stamp, time);
    op->calls++;
    op->rows += (uint64_t) npurt_rows(op, &w->job);
    op->matrices += op->kind == NPURT_MATMUL ? (uint64_t) npurt_matrices(op, &w->job) : 0;
    atomic_fetch_add_explicit(&s->done, 1, memory_order_release);
}

static void count_done(const npurt_walk *w, int index, npurt_share *s, npurt_division d)
{
    const uint64_t before = atomic_fetch_add(&s->done, 1);
    if ((int) (uint32_t) before + 1 == d.chunks) {
        finish(w, index, s);
    }
}

static void do_chunk(const npurt_walk *w, int index, npurt_share *s, npurt_division d, int chunk)
{
    npurt_op *op = &w->job.ops[index];
    void *scratch = w->pool->scratch[w->thread];
    if (op->kind != NPURT_MATMUL) {
        npurt_compute(op, d, &w->job, chunk, scratch);
        count_done(w, index, s, d);
        return;
    }
    uint32_t seen = atomic_load(&s->slots[chunk]);
    if (seen == w->run || atomic_load(&s->lanes[0].ticket) >> 32 != w->run) {
        return;
    }
    npurt_compute(op, d, &w->job, chunk, scratch);
    if (atomic_compare_exchange_strong(&s->slots[chunk], &seen, w->run)) {
        npurt_commit(op, d, &w->job, chunk, scratch);
        count_done(w, index, s, d);
    }
}

/* Every chunk is taken: wait for the others, and past some time do their work again. */
static void await(const npurt_walk *w, int index, npurt_share *s, npurt_division d, uint64_t own)
{
    const int helpful = w->job.ops[index].kind == NPURT_MATMUL;
    const uint64_t from = now(), patience = HELP_NS + 2 * own;
    while (!is_over(w, s)) {
        for (int i = 0; i < 64 && !is_over(w, s); i++) {
            pause_cpu();
        }
        const uint64_t waited = now() - from;
        if (helpful && waited > patience) {
            for (int chunk = 0; chunk < d.chunks && !is_over(w, s); chunk++) {
                do_chunk(w, index, s, d, chunk);
            }
        }
        if (waited > YIELD_NS + patience) {
            sched_yield();
        }
    }
}

static void walk(const npurt_walk *w)
{
    for (int index = 0; index < w->job.count; index++) {
        npurt_share *s = &w->pool->shares[index];
        npurt_division d;
        uint64_t start = 0, own = 0;
        for (int chunk; (chunk = take(w, s, &d)) >= 0;) {
            start = start ? start : now();
            do_chunk(w, index, s, d, chunk);
        }
        own = start ? now() - start : 0;
        await(w, index, s, d, own);
        if (atomic_load(&w->pool->run) != w->run || atomic_load(&w->pool->failed) >= 0) {
            return;
        }
    }
}

/* A worker: waits for a run it has not seen, joins it, again. */
static void *work(void *argument)
{
    npurt_pool *pool = argument;
    npurt_walk w = {.pool = pool, .thread = 1 + atomic_fetch_add(&pool->next, 1)};
    if (pool->pinned) {
        sched_setaffinity(0, sizeof pool->cpus, &pool->cpus);
    }
    while (!atomic_load(&pool->stop)) {
        const uint64_t from = now();
        uint32_t run;
        while ((run = atomic_load(&pool->run)) == w.run && !atomic_load(&pool->stop)) {
            pause_cpu();
            if (now() - from > IDLE_NS) {
                atomic_fetch_add(&pool->asleep, 1);
                futex(&pool->run, FUTEX_WAIT, w.run);
                atomic_fetch_sub(&pool->asleep, 1);
            }
        }
        atomic_fetch_add(&pool->inside, 1);
        w.run = run;
        w.job = pool->job;
        atomic_thread_fence(memory_order_seq_cst); /* the job is whole if its run is not settled */
        const int joins = (int32_t) (run - atomic_load(&pool->settled)) > 0;
        if (joins && !atomic_load(&pool->stop)) {
            walk(&w);
        }
        atomic_fetch_sub(&pool->inside, 1);
    }
    return NULL;
}

npurt_pool *npurt_pool_new(int threads, const int32_t *cpus, int count)
{
    npurt_pool *pool = calloc(1, sizeof *pool);
    if (!pool) {
        return NULL;
    }
    pool->owner = getpid();
    pool->failed = -1;
    pool->pinned = count > 0;
    for (int i = 0; i < count; i++) {
        CPU_SET((size_t) cpus[i], &pool->cpus);
    }
    pool->workers = calloc((size_t) threads, sizeof *pool->workers);
    pool->scratch = calloc((size_t) threads, sizeof *pool->scratch);
    for (int i = 0; pool->scratch && i < threads; i++) {
        pool->scratch[i] = aligned_alloc(64, SCRATCH_BYTES);
        if (!pool->scratch[i]) {
            break;
        }
        pool->threads = i + 1;
    }
    if (!pool->workers || !pool->threads) {
        npurt_pool_free(pool);
        return NULL;
    }
    for (int i = 1; i < pool->threads; i++) {
        if (pthread_create(&pool->workers[i], NULL, work, pool)) {
            pool->threads = i; /* a system short of threads: fewer will do */
        }
    }
    return pool;
}

/*
 * A worker counts itself in before it looks at `settled`, and this looks at the count after it has
 * set `settled`: one of the two sees the other.
 */
void npurt_pool_settle(npurt_pool *pool)
{
    atomic_store(&pool->settled, atomic_load(&pool->run));
    while (pool->owner == getpid() && atomic_load(&pool->inside)) {
        sched_yield();
    }
}

void npurt_pool_free(npurt_pool *pool)
{
    if (pool->owner == getpid()) {
        atomic_store(&pool->stop, 1);
        atomic_fetch_add(&pool->run, 1);
        futex(&pool->run, FUTEX_WAKE, INT_MAX);
        for (int i = 1; i < pool->threads; i++) {
            pthread_join(pool->workers[i], NULL);
        }
    }
    for (int i = 0; pool->scratch && i < pool->threads; i++) {
        free(pool->scratch[i]);
    }
    free(pool->shares);
    free(pool->scratch);
    free(pool->workers);
    free(pool);
}

/* Makes room for the shared state of `count` ops; nobody may be inside a run. */
static int reserve(npurt_pool *pool, int count)
{
    if (count <= pool->capacity) {
        return 1;
    }
    npurt_pool_settle(pool);
    npurt_share *shares = aligned_alloc(64, (size_t) count * sizeof *shares);
    if (!shares) {
        return 0;
    }
    memset(shares, 0, (size_t) count * sizeof *shares);
    free(pool->shares);
    pool->shares = shares;
    pool->capacity = count;
    return 1;
}

/* Lets threads take the chunks of one op; until then nobody may, of this run or of another. */
static void open_lanes(const npurt_walk *w, npurt_share *s, npurt_division d)
{
    const uint64_t run = (uint64_t) w->run << 32;
    const int lanes = lanes_of(w->pool);
    for (int i = 0; i < lanes; i++) {
        atomic_store(&s->lanes[i].ticket, run | UINT32_MAX);
    }
    atomic_thread_fence(memory_order_release); /* lanes are closed before the division changes */
    s->division = d;
    atomic_store(&s->done, run | (d.chunks ? 0u : 1u));
    for (int i = 0; i < lanes; i++) {
        const uint64_t first = (uint64_t) lane_start(w->pool, d, i);
        atomic_store_explicit(&s->lanes[i].ticket, run | first, memory_order_release);
    }
}

int npurt_run(npurt_pool *pool, npurt_op *ops, int count, int64_t rows, int64_t position,
              int64_t head)
{
    if (!reserve(pool, count)) {
        return -1;
    }
    const uint32_t run = atomic_load(&pool->run) + 1;
    atomic_store(&pool->settled, run - 1); /* before the job changes */
    atomic_thread_fence(memory_order_seq_cst);
    npurt_walk w = {pool, {ops, count, rows, position, head}, run, 0};
    for (int i = 0; i < count; i++) {
        open_lanes(&w, &pool->shares[i], npurt_divide(&ops[i], &w.job, pool->threads));
    }
    pool->job = w.job;
    atomic_store(&pool->failed, -1);
    atomic_store(&pool->stamp, now());
    atomic_store(&pool->run, run);
    if (pool->threads > 1 && atomic_load(&pool->asleep)) {
        futex(&pool->run, FUTEX_WAKE, INT_MAX);
    }
    walk(&w);
    const int failed = atomic_load(&pool->failed);
    return failed < 0 ? count : failed;
}
