/*
 * The thread pool: its threads, and how they divide the work of a run.
 *
 * Every thread processes the ops in order, and takes chunks of the current op until none is left;
 * no thread coordinates the others.  The chunks of an op are divided into lanes of consecutive
 * chunks.  A thread first takes the chunks of its own lane, so that it reads weights in order: if
 * two threads take alternate chunks, they lose a fifth of the bandwidth (bench/RESULTS.md).  Then
 * it takes chunks that are left in other lanes.  If all chunks are taken, but a thread was
 * preempted in its chunk, the other threads compute that chunk again instead of waiting, and the
 * first to finish commits the result.  So a preempted thread does not stall the run.
 *
 * A late thread is one whose chunk another thread has committed.  It must not read memory that
 * another thread may write.  So a repeatable chunk is computed from weights and from the thread's
 * copy of the op and its input, into the thread's scratch.  The flag `reads` of a thread is set
 * while it makes this copy.  The thread that finishes the op waits until all these flags are clear,
 * if any chunk was repeated since the last such wait.  So no thread reads an op or its input after
 * the op is over.  A thread commits a chunk by changing the chunk's slot from the value it saw
 * before computing to the number of the run.  A late thread fails to, and drops its result.
 *
 * tests/cpu/pool_model.py is a model of this protocol that tests every order of events.
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

/* How long a thread spins before it sleeps, repeats the chunks of others, or yields the CPU. */
enum { IDLE_NS = 100000, HELP_NS = 10000, YIELD_NS = 50000 };

enum { LANES = 8 };                              /* maximum number of lanes */
static const uint32_t LAST_RUN = UINT32_MAX - 2; /* the run after this one has number 1 again */

/* Consecutive chunks of one op. */
typedef struct {
    _Alignas(64) _Atomic uint64_t ticket; /* next chunk to take */
} npurt_lane;

/* The progress of an op.  OVER: threads continue with the next op.  STOPPED: the run ends with this
 * op.  CLOSING: all chunks are committed.  Greater than OPEN: chunks are left. */
enum npurt_progress { OVER, STOPPED, CLOSING, OPEN = CLOSING };

/*
 * The shared state of one op in one run.  The high half of a ticket and of `left` is the number of
 * the run.  Every word is atomic, because a thread of an earlier run may read it at any time.
 */
typedef struct {
    npurt_lane lanes[LANES];
    _Atomic uint64_t left; /* OPEN + the number of uncommitted chunks, or another npurt_progress */
    _Atomic uint64_t division[sizeof(npurt_division) / 8];
    _Atomic uint32_t slots[MAX_CHUNKS]; /* the run that last committed each chunk */
} npurt_share;

/* The state of one thread. */
typedef struct {
    _Alignas(64) _Atomic int reads; /* 1 while the thread copies an op and its input */
    void *scratch;                  /* SCRATCH_BYTES */
    pthread_t id;                   /* unused for thread 0, the caller of npurt_run */
} npurt_thread;

struct npurt_pool {
    int count, pinned; /* number of threads; 1 if they run only on `cpus` */
    pid_t owner;       /* the process that started the threads */
    cpu_set_t cpus;
    npurt_thread *threads;
    npurt_share *shares;
    int capacity;             /* length of `shares` */
    uint64_t waited;          /* value of `repeats` at the last wait for copies */
    _Atomic uint64_t repeats; /* how often a thread began to repeat chunks of others */
    _Atomic uint64_t job[sizeof(npurt_job) / 8];
    _Atomic uint32_t run;       /* number of the current run; sleeping workers wait on it */
    _Atomic uint32_t settled;   /* no thread may begin or continue this run or an earlier one */
    _Atomic int asleep, inside; /* workers that sleep, and that are inside a run */
    _Atomic int stop, next;     /* 1: workers exit; workers that have a thread number */
    _Atomic uint64_t stamp;     /* time at which the last op was over, nanoseconds */
    char why[WHY_BYTES];        /* reason why the last run was refused */
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

/* The progress of one thread in one run. */
typedef struct {
    npurt_pool *pool;
    npurt_job job;
    uint32_t run;
    int thread;
    int copied;    /* index of the op that was copied to `copy`, or -1 */
    npurt_op copy; /* its input points into the thread's scratch */
} npurt_walk;

static npurt_thread *own(const npurt_walk *w)
{
    return &w->pool->threads[w->thread];
}

/* Returns 1 if the run has ended, because another run began or the pool was settled. */
static int is_settled(const npurt_walk *w)
{
    return (int32_t) (w->run - atomic_load(&w->pool->settled)) <= 0;
}

/* Returns `left` of the op; OVER if the run has ended. */
static uint32_t left_of(const npurt_walk *w, const npurt_share *s)
{
    const uint64_t left = atomic_load(&s->left);
    return left >> 32 == w->run ? (uint32_t) left : OVER;
}

/* Copies a struct word by word to atomic words.  A concurrent reader may get a mix of old and new
 * words, and must check afterwards that they are consistent. */
static void put_words(_Atomic uint64_t *words, const void *from, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof *words; i++) {
        uint64_t word;
        memcpy(&word, (const uint8_t *) from + i * sizeof word, sizeof word);
        atomic_store_explicit(&words[i], word, memory_order_release);
    }
}

static void get_words(void *to, const _Atomic uint64_t *words, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof *words; i++) {
        const uint64_t word = atomic_load_explicit(&words[i], memory_order_acquire);
        memcpy((uint8_t *) to + i * sizeof word, &word, sizeof word);
    }
}

static int lanes_of(const npurt_pool *pool)
{
    return pool->count < LANES ? pool->count : LANES;
}

/* Returns the first chunk of a lane; a single chunk is in lane 0. */
static int lane_start(const npurt_pool *pool, npurt_division d, int lane)
{
    const int lanes = lanes_of(pool);
    return (d.chunks * lane + lanes - 1) / lanes;
}

/* Takes the next chunk of a lane.  Returns its number, or -1 if none is left or the run is over. */
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

/* Takes a chunk from the thread's own lane, or from another lane if it is empty: see take_from. */
static int take(const npurt_walk *w, npurt_share *s, npurt_division d)
{
    const int lanes = lanes_of(w->pool);
    for (int i = 0; i < lanes; i++) {
        const int chunk = take_from(w, s, d, (w->thread + i) % lanes);
        if (chunk >= 0) {
            return chunk;
        }
    }
    return -1;
}

/* Waits until no thread copies the current op, whose chunks are all committed. */
static void await_copies(npurt_pool *pool)
{
    const uint64_t repeats = atomic_load(&pool->repeats);
    for (int i = 0; repeats != pool->waited && i < pool->count; i++) {
        while (atomic_load(&pool->threads[i].reads)) {
            sched_yield();
        }
    }
    pool->waited = repeats;
}

/* Finishes an op after its last chunk: verifies and counts it, and lets threads continue. */
static void finish(const npurt_walk *w, int index, npurt_share *s)
{
    npurt_op *op = &w->job.ops[index];
    enum npurt_progress progress = OVER;
    await_copies(w->pool);
    if (op->kind == NPURT_MATMUL && op->u.matmul.verify) {
        op->checks++;
        progress = npurt_is_right(op, &w->job) ? OVER : STOPPED;
    }
    const uint64_t time = now();
    op->nanoseconds += time - atomic_exchange(&w->pool->stamp, time);
    op->calls++;
    op->rows += (uint64_t) npurt_rows(op, &w->job);
    op->matrices += op->kind == NPURT_MATMUL ? (uint64_t) npurt_matrices(op, &w->job) : 0;
    atomic_store(&s->left, (uint64_t) w->run << 32 | progress);
}

static void count_done(const npurt_walk *w, int index, npurt_share *s)
{
    const uint64_t before = atomic_fetch_sub(&s->left, 1);
    if ((uint32_t) before == OPEN + 1) {
        finish(w, index, s);
    }
}

/* Copies the op and its input, which cannot change while `reads` is set; then clears `reads`. */
static void copy(npurt_walk *w, int index)
{
    npurt_snapshot(&w->job.ops[index], &w->job, own(w)->scratch, &w->copy);
    w->copied = index;
    atomic_store_explicit(&own(w)->reads, 0, memory_order_release);
}

/* Computes a chunk from the thread's copy of the op; commits it unless another thread was first. */
static void do_copied(const npurt_walk *w, int index, npurt_share *s, npurt_division d, int chunk)
{
    uint32_t seen = atomic_load(&s->slots[chunk]);
    if (seen == w->run || left_of(w, s) <= CLOSING) {
        return;
    }
    npurt_compute_copy(&w->copy, d, &w->job, chunk, own(w)->scratch);
    if (atomic_compare_exchange_strong(&s->slots[chunk], &seen, w->run)) {
        npurt_commit_copy(&w->copy, d, &w->job, chunk, own(w)->scratch);
        count_done(w, index, s);
    }
}

/*
 * Takes and computes chunks until none is left.  A thread sets `reads` before it takes a chunk of a
 * repeatable op.  A thread that repeats this chunk has seen that it was taken, and so sees `reads`.
 */
static void do_chunks(npurt_walk *w, int index, npurt_share *s, npurt_division d)
{
    for (;;) {
        if (d.repeatable && w->copied != index) {
            atomic_store_explicit(&own(w)->reads, 1, memory_order_relaxed);
        }
        const int chunk = take(w, s, d);
        if (chunk < 0) {
            atomic_store_explicit(&own(w)->reads, 0, memory_order_release);
            return;
        }
        if (!d.repeatable) {
            npurt_compute(&w->job.ops[index], d, &w->job, chunk, own(w)->scratch);
            count_done(w, index, s);
            continue;
        }
        if (w->copied != index) {
            copy(w, index);
        }
        do_copied(w, index, s, d, chunk);
    }
}

/*
 * Repeats uncommitted chunks of other threads.  Either the thread that commits the last chunk sees
 * the new value of `repeats`, or this thread sees that no chunk is left.
 */
static void help(npurt_walk *w, int index, npurt_share *s, npurt_division d)
{
    const int copies = w->copied != index;
    atomic_store(&own(w)->reads, copies);
    atomic_fetch_add(&w->pool->repeats, 1);
    if (left_of(w, s) <= CLOSING) {
        atomic_store_explicit(&own(w)->reads, 0, memory_order_release);
        return;
    }
    if (copies) {
        copy(w, index);
    }
    for (int chunk = 0; chunk < d.chunks && left_of(w, s) > CLOSING; chunk++) {
        do_copied(w, index, s, d, chunk);
    }
}

/* Waits for other threads after all chunks are taken; after some time, repeats their chunks. */
static enum npurt_progress await(npurt_walk *w, int index, npurt_share *s, npurt_division d,
                                 uint64_t spent)
{
    const uint64_t from = now(), patience = HELP_NS + 2 * spent;
    uint32_t left;
    while ((left = left_of(w, s)) >= CLOSING) {
        for (int i = 0; i < 64 && left_of(w, s) >= CLOSING; i++) {
            pause_cpu();
        }
        const uint64_t waited = now() - from;
        if (d.repeatable && waited > patience && left_of(w, s) > CLOSING) {
            help(w, index, s, d);
        }
        if (waited > YIELD_NS + patience) {
            sched_yield();
        }
    }
    return left;
}

/* Runs the ops.  Returns how many are done: less than all if an op stopped the run. */
static int walk(npurt_walk *w)
{
    int index = 0;
    for (w->copied = -1; index < w->job.count && !is_settled(w); index++) {
        npurt_share *s = &w->pool->shares[index];
        npurt_division d; /* consistent if a chunk can be taken: lanes are closed during changes */
        get_words(&d, s->division, sizeof d);
        const uint64_t start = now();
        do_chunks(w, index, s, d);
        if (await(w, index, s, d, now() - start) == STOPPED) {
            break;
        }
    }
    return index;
}

/* The main function of a worker: waits for a new run, joins it, and repeats. */
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
        get_words(&w.job, pool->job, sizeof w.job); /* consistent unless the run is settled */
        if (!atomic_load(&pool->stop)) {
            walk(&w);
        }
        atomic_fetch_sub(&pool->inside, 1);
    }
    return NULL;
}

/* Allocates memory for up to `wanted` threads; returns the number of threads that have memory. */
static int make_threads(npurt_pool *pool, int wanted)
{
    pool->threads = aligned_alloc(64, (size_t) wanted * sizeof *pool->threads);
    for (int i = 0; pool->threads && i < wanted; i++) {
        pool->threads[i] = (npurt_thread){.scratch = aligned_alloc(64, SCRATCH_BYTES)};
        if (!pool->threads[i].scratch) {
            return i;
        }
    }
    return pool->threads ? wanted : 0;
}

npurt_pool *npurt_pool_new(int threads, const int32_t *cpus, int count)
{
    npurt_pool *pool = calloc(1, sizeof *pool);
    if (!pool) {
        return NULL;
    }
    pool->owner = getpid();
    pool->pinned = count > 0;
    for (int i = 0; i < count; i++) {
        CPU_SET((size_t) cpus[i], &pool->cpus);
    }
    const int most = make_threads(pool, threads);
    if (!most) {
        npurt_pool_free(pool);
        return NULL;
    }
    pool->count = 1;
    while (pool->count < most &&
           !pthread_create(&pool->threads[pool->count].id, NULL, work, pool)) {
        pool->count++;
    }
    for (int i = pool->count; i < most; i++) { /* threads that could not be started */
        free(pool->threads[i].scratch);
    }
    return pool;
}

/*
 * A worker increments `inside` before it reads `settled`; this function sets `settled` before it
 * reads `inside`.  So either this function waits for the worker, or the worker leaves the run.
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
        for (int i = 1; i < pool->count; i++) {
            pthread_join(pool->threads[i].id, NULL);
        }
    }
    for (int i = 0; i < pool->count; i++) {
        free(pool->threads[i].scratch);
    }
    free(pool->shares);
    free(pool->threads);
    free(pool);
}

/* Grows `shares` to `count` ops; clears it before run 1.  Returns 0 if there is no memory. */
static int reserve(npurt_pool *pool, int count)
{
    if (count <= pool->capacity && atomic_load(&pool->run) < LAST_RUN) {
        return 1;
    }
    npurt_pool_settle(pool);
    const int capacity = count > pool->capacity ? count : pool->capacity;
    npurt_share *shares = aligned_alloc(64, (size_t) capacity * sizeof *shares);
    if (!shares) {
        return 0;
    }
    memset(shares, 0, (size_t) capacity * sizeof *shares);
    free(pool->shares);
    pool->shares = shares;
    pool->capacity = capacity;
    return 1;
}

/* Opens the lanes of one op for this run.  While `division` changes, no thread can take a chunk. */
static void open_lanes(const npurt_walk *w, npurt_share *s, npurt_division d)
{
    const uint64_t run = (uint64_t) w->run << 32;
    const int lanes = lanes_of(w->pool);
    for (int i = 0; i < lanes; i++) {
        atomic_store(&s->lanes[i].ticket, run | UINT32_MAX);
    }
    put_words(s->division, &d, sizeof d);
    atomic_store(&s->left, run | (d.chunks ? OPEN + (uint32_t) d.chunks : OVER));
    for (int i = 0; i < lanes; i++) {
        const uint64_t first = (uint64_t) lane_start(w->pool, d, i);
        atomic_store_explicit(&s->lanes[i].ticket, run | first, memory_order_release);
    }
}

const char *npurt_pool_why(const npurt_pool *pool)
{
    return pool->why;
}

int npurt_run(npurt_pool *pool, npurt_op *ops, int count, const npurt_table *table)
{
    npurt_walk w = {.pool = pool, .job = {ops, count, *table}};
    if (!npurt_job_fits(&w.job, pool->why)) {
        return NPURT_REFUSED;
    }
    if (!reserve(pool, count)) {
        return NPURT_NO_MEMORY;
    }
    const uint32_t last = atomic_load(&pool->run);
    w.run = last < LAST_RUN ? last + 1 : 1;
    atomic_store(&pool->settled, last); /* late threads must leave before the job changes */
    for (int i = 0; i < count; i++) {
        open_lanes(&w, &pool->shares[i], npurt_divide(&ops[i], &w.job, pool->count));
    }
    put_words(pool->job, &w.job, sizeof w.job);
    atomic_store(&pool->stamp, now());
    atomic_store(&pool->run, w.run);
    if (pool->count > 1 && atomic_load(&pool->asleep)) {
        futex(&pool->run, FUTEX_WAKE, INT_MAX);
    }
    return walk(&w);
}
