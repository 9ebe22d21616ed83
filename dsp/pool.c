/*
 * A pool of threads that work on one task together.
 *
 * FastRPC's thread has a stack of 16 KiB, so it only starts the work and waits.
 *
 * The pool implements a barrier, because each op needs several barriers and the barrier of QuRT
 * does not spin.  Consecutive barriers use two futexes in turn: a late wake-up for one barrier
 * cannot wake threads at the next.  So a barrier executes the same number of
 * instructions with any timing.
 */
#include "pool.h"
#include "hap.h"
#include "timer.h"

/* The number of cycles to spin before sleeping.  A wake-up takes longer than the usual wait. */
enum { SPIN_CYCLES = 20000 };

static uint32_t load(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

/* Spin for a short time; return whether *word has changed.  Do not spin in an emulator, which runs
 * one thread at a time and does not count cycles. */
static int changes_soon(const uint32_t *word, uint32_t seen)
{
    uint64_t start = timer_cycles();
    while (start && timer_cycles() - start < SPIN_CYCLES) {
        if (load(word) != seen) {
            return 1;
        }
    }
    return 0;
}

static void await_change(uint32_t *word, uint32_t seen)
{
    if (!changes_soon(word, seen)) {
        do {
            qurt_futex_wait(word, (int) seen); /* the loop continues after a failure too */
        } while (load(word) == seen);
    }
}

void pool_barrier(pool *pool)
{
    uint32_t *gate = &pool->gate[pool->round & 1];
    uint32_t seen = load(gate);
    if (__atomic_sub_fetch(&pool->waiting, 1, __ATOMIC_SEQ_CST)) {
        await_change(gate, seen);
        return;
    }
    pool->waiting = pool->threads;
    pool->round++;
    __atomic_add_fetch(gate, 1, __ATOMIC_SEQ_CST); /* also publishes the two writes above */
    qurt_futex_wake(gate, POOL_MAX);
}

static void serve(void *argument)
{
    pool_member *self = argument;
    pool *pool = self->pool;
    for (;;) {
        qurt_sem_down(&self->start);
        if (!pool->work) {
            qurt_thread_exit(0);
        }
        pool->work(pool->context, self->index);
        qurt_sem_up(&pool->end);
    }
}

static int start_thread(pool *pool, uint32_t index, int priority)
{
    qurt_thread_attr_t attr = {
        .name = "npurt",
        .priority = (uint16_t) priority,
        .bus_priority = QURT_THREAD_ATTR_BUS_PRIO_DEFAULT,
        .timetest_id = QURT_THREAD_ATTR_TIMETEST_ID_DEFAULT,
        .stack_size = POOL_STACK,
        .stack_addr = (char *) pool->stacks + (size_t) index * POOL_STACK,
        .detach_state = QURT_THREAD_ATTR_CREATE_JOINABLE,
    };
    pool_member *member = &pool->member[index];
    *member = (pool_member){.pool = pool, .index = index};
    qurt_sem_init_val(&member->start, 0);
    return qurt_thread_create(&member->id, &attr, serve, member);
}

void pool_start(pool *pool, uint32_t threads)
{
    int priority = qurt_thread_get_priority(qurt_thread_get_id());
    threads = priority < 0 ? 0 : threads < POOL_MAX ? threads : POOL_MAX;
    qurt_sem_init_val(&pool->end, 0);
    pool->stacks = malloc((size_t) threads * POOL_STACK);
    while (pool->stacks && pool->threads < threads &&
           start_thread(pool, pool->threads, priority) == QURT_EOK) {
        pool->threads++;
    }
    pool->waiting = pool->threads;
    pool->part = pool->threads ? ((1u << 31) - 1) / pool->threads + 1 : 0;
}

static void give(pool *pool, pool_work work, void *context)
{
    pool->work = work;
    pool->context = context;
    for (uint32_t i = 0; i < pool->threads; i++) {
        qurt_sem_up(&pool->member[i].start);
    }
}

void pool_run(pool *pool, pool_work work, void *context)
{
    give(pool, work, context);
    for (uint32_t i = 0; i < pool->threads; i++) {
        qurt_sem_down(&pool->end);
    }
}

void pool_stop(pool *pool)
{
    give(pool, NULL, NULL);
    for (uint32_t i = 0; i < pool->threads; i++) {
        int status;
        /* the only failure is that the thread has already ended */
        qurt_thread_join(pool->member[i].id, &status);
        qurt_sem_destroy(&pool->member[i].start);
    }
    pool->threads = 0;
    qurt_sem_destroy(&pool->end);
    free(pool->stacks);
    pool->stacks = NULL;
}
