/* Threads, and what they wait with: every method must take the same packets whenever it runs. */
#include "dsp.h"

enum { THREADS = 4, STACK = 16384, ROUNDS = 20, SHARE = 1000 };

static struct {
    uint32_t id;
    uint8_t stack[STACK] __attribute__((aligned(128)));
} workers[THREADS];

static qurt_object mutex, start, finish, ready, done;
static uint32_t sum, go;

__attribute__((noinline)) static uint32_t add_up(uint32_t share)
{
    uint32_t a = 0;
    for (uint32_t i = 0; i < share; i++) {
        __asm__ volatile("%0 = add(%0, #1)" : "+r"(a));
    }
    return a;
}

/* The work comes last, so that what a thread does next has to account for it. */
static void add_share(void)
{
    qurt_mutex_lock(&mutex);
    sum += SHARE;
    qurt_mutex_unlock(&mutex);
    add_up(SHARE);
}

static int start_workers(void (*entry)(void *), uint16_t detach_state)
{
    sum = 0;
    qurt_mutex_init(&mutex);
    for (uint32_t i = 0; i < THREADS; i++) {
        qurt_thread_attr_t attributes = {.name = "worker", .priority = 100};
        attributes.stack_size = STACK;
        attributes.stack_addr = workers[i].stack;
        attributes.detach_state = detach_state;
        if (qurt_thread_create(&workers[i].id, &attributes, entry, (void *) i)) {
            return 1000;
        }
    }
    return 0;
}

/* Wait for all; return the sum of what they exit with. */
static int join_workers(void)
{
    int total = 0;
    for (uint32_t i = 0; i < THREADS; i++) {
        int status = 0;
        if (qurt_thread_join(workers[i].id, &status) == 0) {
            total += status;
        }
    }
    return total;
}

/* --- one run each ---------------------------------------------------------------------------- */

static void once(void *number)
{
    add_share();
    qurt_thread_exit((int) number);
}

static int run_once(void)
{
    int result = start_workers(once, 1);
    return result ? result : join_workers() == 0 + 1 + 2 + 3 ? 0 : 1001;
}

/* --- a pool that waits on barriers ------------------------------------------------------------ */

static void at_barrier(void *number)
{
    (void) number;
    for (int i = 0; i < ROUNDS; i++) {
        qurt_barrier_wait(&start);
        add_share();
        qurt_barrier_wait(&finish);
    }
}

static int run_barriers(void)
{
    qurt_barrier_init(&start, THREADS + 1);
    qurt_barrier_init(&finish, THREADS + 1);
    int result = start_workers(at_barrier, 1);
    for (int i = 0; i < ROUNDS && !result; i++) {
        qurt_barrier_wait(&start);
        qurt_barrier_wait(&finish);
    }
    join_workers();
    return result;
}

/* --- semaphores ------------------------------------------------------------------------------ */

static void at_semaphore(void *number)
{
    (void) number;
    for (int i = 0; i < ROUNDS; i++) {
        qurt_sem_down(&ready);
        add_share();
        qurt_sem_add(&done, 1);
    }
}

static int run_semaphores(void)
{
    qurt_sem_init_val(&ready, 0);
    qurt_sem_init_val(&done, 0);
    int result = start_workers(at_semaphore, 1);
    qurt_sem_add(&ready, THREADS * ROUNDS);
    for (int i = 0; i < THREADS * ROUNDS && !result; i++) {
        qurt_sem_down(&done);
    }
    join_workers();
    return result;
}

/* --- signals --------------------------------------------------------------------------------- */

static void at_signal(void *number)
{
    add_share();
    qurt_signal_set(&done, 1u << (uint32_t) number);
}

static int run_signals(void)
{
    qurt_signal_init(&done);
    int result = start_workers(at_signal, 1);
    uint32_t all = (1u << THREADS) - 1;
    uint32_t got = result ? all : qurt_signal_wait(&done, all, 1);
    join_workers();
    return got == all ? result : 1002;
}

/* --- a futex --------------------------------------------------------------------------------- */

static void at_futex(void *number)
{
    (void) number;
    if (__atomic_load_n(&go, __ATOMIC_SEQ_CST) == 0) {
        qurt_futex_wait(&go, 0);
    }
    add_share();
}

static int run_futex(void)
{
    go = 0;
    int result = start_workers(at_futex, 1);
    __atomic_store_n(&go, 1, __ATOMIC_SEQ_CST);
    qurt_futex_wake(&go, THREADS);
    join_workers();
    return result;
}

/* --- misuse ---------------------------------------------------------------------------------- */

static int lock_unmade(void)
{
    qurt_object never = {{0, 0}};
    qurt_mutex_lock(&never);
    return 0;
}

static int join_nobody(void)
{
    return qurt_thread_join(0x12345, NULL); /* 30: QURT_ENOTHREAD */
}

static int (*const methods[])(void) = {
    run_once, run_barriers, run_semaphores, run_signals, run_futex, lock_unmade, join_nobody,
};

EXPORT int threads_skel_handle_invoke(uint64_t handle, uint32_t scalars, remote_arg *arguments)
{
    uint32_t method = scalars >> 24 & 31;
    (void) handle;
    if (method < 2) {
        return 0;
    }
    if (method - 2 >= sizeof(methods) / sizeof(methods[0])) {
        return UNKNOWN_METHOD;
    }
    int result = methods[method - 2]();
    if (scalars >> 8 & 255) {
        *(uint32_t *) arguments[0].buffer.at = sum;
    }
    return result;
}
