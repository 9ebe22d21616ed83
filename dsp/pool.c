/*
 * Threads that do one piece of work together.
 *
 * The thread that FastRPC lends us has a stack of 16 KiB, so it only gives work and waits.  Words
 * that threads wait for only ever count up or down to 0, and are read before every sleep.
 */
#include "pool.h"
#include "hap.h"
#include "timer.h"

/* At the barrier a wake-up costs more than what is left to wait for; sleep only after that long. */
enum { SPIN_CYCLES = 20000 };

static uint32_t load(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static void store(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
}

/* Return when *word is not *seen* any more. */
static void await_change(uint32_t *word, uint32_t seen)
{
    do {
        qurt_futex_wait(word, (int) seen);
    } while (load(word) == seen);
}

/* As await_change, but awake at first.  Not where cycles do not count: that is an emulator, whose
 * threads take turns, and what it executes is to be the same every time. */
static void spin_for_change(uint32_t *word, uint32_t seen)
{
    uint64_t start = timer_cycles();
    while (start && timer_cycles() - start < SPIN_CYCLES) {
        if (load(word) != seen) {
            return;
        }
    }
    await_change(word, seen);
}

void pool_barrier(pool *pool)
{
    if (pool->threads == 1) {
        return;
    }
    uint32_t round = load(&pool->rounds);
    if (__atomic_sub_fetch(&pool->waiting, 1, __ATOMIC_SEQ_CST)) {
        spin_for_change(&pool->rounds, round);
        return;
    }
    store(&pool->waiting, pool->threads);
    store(&pool->rounds, round + 1);
    qurt_futex_wake(&pool->rounds, POOL_MAX);
}

static void serve(void *argument)
{
    const pool_member *self = argument;
    pool *pool = self->pool;
    for (uint32_t seen = 0;; seen++) {
        await_change(&pool->calls, seen);
        if (!pool->work) {
            qurt_thread_exit(0);
        }
        pool->work(pool->context, self->index);
        if (__atomic_sub_fetch(&pool->working, 1, __ATOMIC_SEQ_CST) == 0) {
            qurt_futex_wake(&pool->working, 1);
        }
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
    return qurt_thread_create(&member->id, &attr, serve, member);
}

void pool_start(pool *pool, uint32_t threads)
{
    int priority = qurt_thread_get_priority(qurt_thread_get_id());
    threads = threads < POOL_MAX ? threads : POOL_MAX;
    pool->stacks = malloc((size_t) threads * POOL_STACK);
    while (pool->stacks && pool->threads < threads &&
           start_thread(pool, pool->threads, priority) == QURT_EOK) {
        pool->threads++;
    }
    pool->waiting = pool->threads;
}

void pool_run(pool *pool, pool_work work, void *context)
{
    pool->work = work;
    pool->context = context;
    store(&pool->working, pool->threads);
    __atomic_add_fetch(&pool->calls, 1, __ATOMIC_SEQ_CST);
    qurt_futex_wake(&pool->calls, POOL_MAX);
    for (uint32_t left; (left = load(&pool->working)) != 0;) {
        qurt_futex_wait(&pool->working, (int) left);
    }
}

void pool_stop(pool *pool)
{
    pool->work = NULL;
    __atomic_add_fetch(&pool->calls, 1, __ATOMIC_SEQ_CST);
    qurt_futex_wake(&pool->calls, POOL_MAX);
    for (uint32_t i = 0; i < pool->threads; i++) {
        int status;
        qurt_thread_join(pool->member[i].id, &status);
    }
    pool->threads = 0;
    free(pool->stacks);
    pool->stacks = NULL;
}
