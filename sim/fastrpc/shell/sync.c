/*
 * QuRT's mutexes, semaphores, barriers, signals, conditions and futexes, on the kernel's futexes.
 *
 * Packets executed during a wait are not counted, because a longer wait is not more work.
 */
#include "qurt.h"

enum { EVERYBODY = 0x7fffffff };
enum { MUTEX_FREE = 0xfe, MUTEX_HELD = 1, MUTEX_AWAITED = 2 }; /* free: MUTEX_MAGIC of QuRT */
enum { WAIT_ALL = 1 };                                         /* QURT_SIGNAL_ATTR_WAIT_ALL */

static bool change(uint32_t *word, uint32_t from, uint32_t to)
{
    return __atomic_compare_exchange_n(word, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* --- mutex ----------------------------------------------------------------------------------- */

void qurt_mutex_init(qurt_mutex *mutex)
{
    store(&mutex->state, MUTEX_FREE);
}

void qurt_mutex_destroy(qurt_mutex *mutex)
{
    SHAPE(load(&mutex->state) == MUTEX_FREE, "the mutex is held, or not initialised");
    store(&mutex->state, 0);
}

static void mutex_take(qurt_mutex *mutex)
{
    uint32_t state = load(&mutex->state);
    SHAPE(state == MUTEX_FREE || state == MUTEX_HELD || state == MUTEX_AWAITED,
          "the mutex is not initialised");
    if (change(&mutex->state, MUTEX_FREE, MUTEX_HELD)) {
        return;
    }
    while (__atomic_exchange_n(&mutex->state, MUTEX_AWAITED, __ATOMIC_SEQ_CST) != MUTEX_FREE) {
        futex_wait(OURS, &mutex->state, MUTEX_AWAITED);
    }
}

static void mutex_leave(qurt_mutex *mutex)
{
    uint32_t state = __atomic_exchange_n(&mutex->state, MUTEX_FREE, __ATOMIC_SEQ_CST);
    SHAPE(state == MUTEX_HELD || state == MUTEX_AWAITED, "the mutex is not held");
    if (state == MUTEX_AWAITED) {
        futex_wake(OURS, &mutex->state, 1);
    }
}

void qurt_mutex_lock(qurt_mutex *mutex)
{
    account_pause();
    mutex_take(mutex);
    account_resume();
}

int qurt_mutex_try_lock(qurt_mutex *mutex)
{
    return change(&mutex->state, MUTEX_FREE, MUTEX_HELD) ? QURT_EOK : QURT_EINVALID;
}

void qurt_mutex_unlock(qurt_mutex *mutex)
{
    account_settle();
    mutex_leave(mutex);
    account_start();
}

/* --- semaphore ------------------------------------------------------------------------------- */

void qurt_sem_init_val(qurt_semaphore *semaphore, uint16_t value)
{
    store(&semaphore->value, value);
}

void qurt_sem_init(qurt_semaphore *semaphore)
{
    qurt_sem_init_val(semaphore, 1);
}

void qurt_sem_destroy(qurt_semaphore *semaphore)
{
    store(&semaphore->value, 0);
}

int qurt_sem_add(qurt_semaphore *semaphore, uint32_t amount)
{
    account_settle();
    __atomic_add_fetch(&semaphore->value, amount, __ATOMIC_SEQ_CST);
    futex_wake(OURS, &semaphore->value, (int) amount);
    account_start();
    return QURT_EOK;
}

int qurt_sem_try_down(qurt_semaphore *semaphore)
{
    for (uint32_t value = load(&semaphore->value); value; value = load(&semaphore->value)) {
        if (change(&semaphore->value, value, value - 1)) {
            return QURT_EOK;
        }
    }
    return -1;
}

int qurt_sem_down(qurt_semaphore *semaphore)
{
    account_pause();
    while (qurt_sem_try_down(semaphore) != QURT_EOK) {
        futex_wait(OURS, &semaphore->value, 0);
    }
    account_resume();
    return QURT_EOK;
}

/* --- barrier --------------------------------------------------------------------------------- */

int qurt_barrier_init(qurt_barrier *barrier, uint32_t total)
{
    if (total == 0) {
        return QURT_EINVALID;
    }
    *barrier = (qurt_barrier){.total = total};
    return QURT_EOK;
}

int qurt_barrier_destroy(qurt_barrier *barrier)
{
    barrier->total = 0;
    return QURT_EOK;
}

/* Wait for all threads; return 1 (QURT_BARRIER_SERIAL_THREAD) in the last thread to arrive, and 0
 * in the others. */
int qurt_barrier_wait(qurt_barrier *barrier)
{
    SHAPE(barrier->total, "the barrier is not initialised");
    account_settle();
    uint32_t round = load(&barrier->round);
    bool last = __atomic_add_fetch(&barrier->arrived, 1, __ATOMIC_SEQ_CST) == barrier->total;
    if (last) {
        store(&barrier->arrived, 0);
        __atomic_add_fetch(&barrier->round, 1, __ATOMIC_SEQ_CST);
        futex_wake(OURS, &barrier->round, EVERYBODY);
    }
    while (load(&barrier->round) == round) {
        futex_wait(OURS, &barrier->round, round);
    }
    account_start();
    return last;
}

/* --- signal ---------------------------------------------------------------------------------- */

void qurt_signal_init(qurt_signal *signal)
{
    store(&signal->signals, 0);
}

void qurt_signal_destroy(qurt_signal *signal)
{
    store(&signal->signals, 0);
}

static bool arrived(uint32_t signals, uint32_t mask, uint32_t attribute)
{
    return attribute == WAIT_ALL ? (signals & mask) == mask : (signals & mask) != 0;
}

uint32_t qurt_signal_wait(qurt_signal *signal, uint32_t mask, uint32_t attribute)
{
    account_pause();
    uint32_t signals = load(&signal->signals);
    for (; !arrived(signals, mask, attribute); signals = load(&signal->signals)) {
        futex_wait(OURS, &signal->signals, signals);
    }
    account_resume();
    return signals;
}

void qurt_signal_set(qurt_signal *signal, uint32_t mask)
{
    account_settle();
    __atomic_or_fetch(&signal->signals, mask, __ATOMIC_SEQ_CST);
    futex_wake(OURS, &signal->signals, EVERYBODY);
    account_start();
}

void qurt_signal_clear(qurt_signal *signal, uint32_t mask)
{
    __atomic_and_fetch(&signal->signals, ~mask, __ATOMIC_SEQ_CST);
}

uint32_t qurt_signal_get(qurt_signal *signal)
{
    return load(&signal->signals);
}

/* --- condition ------------------------------------------------------------------------------- */

void qurt_cond_init(qurt_condition *condition)
{
    store(&condition->round, 0);
}

void qurt_cond_destroy(qurt_condition *condition)
{
    store(&condition->round, 0);
}

void qurt_cond_wait(qurt_condition *condition, qurt_mutex *mutex)
{
    account_settle();
    uint32_t round = load(&condition->round);
    mutex_leave(mutex);
    futex_wait(OURS, &condition->round, round);
    mutex_take(mutex);
    account_start();
}

static void next_round(qurt_condition *condition, int threads)
{
    account_settle();
    __atomic_add_fetch(&condition->round, 1, __ATOMIC_SEQ_CST);
    futex_wake(OURS, &condition->round, threads);
    account_start();
}

void qurt_cond_signal(qurt_condition *condition)
{
    next_round(condition, 1);
}

void qurt_cond_broadcast(qurt_condition *condition)
{
    next_round(condition, EVERYBODY);
}

/* --- futex, sleep ---------------------------------------------------------------------------- */

int qurt_futex_wait(uint32_t *word, uint32_t value)
{
    account_pause();
    futex_wait(OURS, word, value);
    account_resume();
    return QURT_EOK;
}

int qurt_futex_wake(uint32_t *word, int threads)
{
    account_settle();
    futex_wake(OURS, word, threads);
    account_start();
    return QURT_EOK;
}

int qurt_timer_sleep(uint64_t microseconds)
{
    uint32_t never = 0;
    account_pause();
    uint64_t end = sys_time() + microseconds;
    while (futex_wait_until(OURS, &never, 0, end)) {
    }
    account_resume();
    return QURT_EOK;
}
