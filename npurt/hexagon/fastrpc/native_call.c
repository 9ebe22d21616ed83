/*
 * Implements npurt_native_call.h.
 *
 * The state tells which thread acts next.  The requesting thread changes IDLE or DONE to REQUESTED,
 * and changes REQUESTED back to IDLE if it withdraws the call after the timeout.  The serving
 * thread changes REQUESTED to RUNNING and RUNNING to DONE.  CLOSED is final.  A thread sets its
 * flag (`asleep` or `waiting`) before it sleeps, and the futex returns at once if its word has
 * changed, so that no wake-up is lost.
 *
 * Both threads are pinned to one core during a call, because only one of them runs at a time.
 * Waking a thread takes 3 us on the same core, and 10 to 50 us on another core that sleeps.
 * Neither thread spins, because the other thread would wait for the core.
 */
#define _GNU_SOURCE
#include "npurt_native_call.h"
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { IDLE, REQUESTED, RUNNING, DONE, CLOSED };

/* The type of FastRPC's remote_handle64_invoke. */
typedef union remote_arg remote_arg;
typedef int npurt_invoke(uint64_t handle, uint32_t scalars, remote_arg *arguments);

struct npurt_native_caller {
    _Atomic uint32_t state;
    _Atomic uint32_t events;  /* number of requested calls and of wake-ups */
    _Atomic uint32_t stop;    /* 1: npurt_native_serve must return */
    _Atomic uint32_t asleep;  /* 1: the serving thread sleeps */
    _Atomic uint32_t waiting; /* 1: the requesting thread sleeps */
    npurt_invoke *invoke;
    uint64_t handle;
    void *arguments;
    uint32_t scalars;
    int code, error;
    int64_t spent;
    _Atomic pid_t thread; /* id of the serving thread */
    int core;             /* core of the serving thread plus 1; 0: not pinned */
};

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t) t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Sleep while *word is `value`, for at most `ns` unless `ns` is negative; return as futex(2). */
static long sleep_on(_Atomic uint32_t *word, uint32_t value, int64_t ns)
{
    const struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    return syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, ns < 0 ? NULL : &t, NULL, 0);
}

static void wake(_Atomic uint32_t *word, _Atomic uint32_t *sleeper)
{
    if (atomic_load(sleeper)) {
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

npurt_native_caller *npurt_native_new(void)
{
    return calloc(1, sizeof(npurt_native_caller));
}

void npurt_native_free(npurt_native_caller *caller)
{
    free(caller);
}

static void settle(npurt_native_caller *caller, uint32_t state)
{
    atomic_store(&caller->state, state);
    wake(&caller->state, &caller->waiting);
}

static void make_call(npurt_native_caller *caller)
{
    const int64_t start = now();
    errno = 0;
    caller->code = caller->invoke(caller->handle, caller->scalars, caller->arguments);
    caller->error = errno;
    caller->spent = now() - start;
    settle(caller, DONE);
}

void npurt_native_serve(npurt_native_caller *caller)
{
    atomic_store(&caller->thread, (pid_t) syscall(SYS_gettid));
    while (!atomic_exchange(&caller->stop, 0)) {
        const uint32_t seen = atomic_load(&caller->events);
        uint32_t asked = REQUESTED;
        if (atomic_compare_exchange_strong(&caller->state, &asked, RUNNING)) {
            make_call(caller);
        } else if (!atomic_load(&caller->stop)) {
            atomic_store(&caller->asleep, 1);
            sleep_on(&caller->events, seen, -1);
            atomic_store(&caller->asleep, 0);
        }
    }
}

static void announce(npurt_native_caller *caller)
{
    atomic_fetch_add(&caller->events, 1);
    wake(&caller->events, &caller->asleep);
}

void npurt_native_wake(npurt_native_caller *caller)
{
    atomic_store(&caller->stop, 1);
    announce(caller);
}

void npurt_native_close(npurt_native_caller *caller)
{
    settle(caller, CLOSED);
}

int npurt_native_busy(npurt_native_caller *caller)
{
    const uint32_t state = atomic_load(&caller->state);
    return state == REQUESTED || state == RUNNING;
}

static int pin(pid_t thread, int core)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET((size_t) core, &cores);
    return sched_setaffinity(thread, sizeof cores, &cores) == 0;
}

/* Pin both threads to this core and return its number; return -1 if this thread is not pinned. */
static int pin_both(npurt_native_caller *caller, cpu_set_t *before)
{
    const int core = sched_getcpu();
    const pid_t thread = atomic_load(&caller->thread);
    if (core < 0 || thread == 0 || sched_getaffinity(0, sizeof *before, before)) {
        return -1;
    }
    if (caller->core != core + 1 && pin(thread, core)) {
        caller->core = core + 1;
    }
    return pin(0, core) ? core : -1;
}

/* Restore this thread's previous affinity, unless other code has changed the affinity meanwhile. */
static void unpin(int core, const cpu_set_t *before)
{
    cpu_set_t cores;
    if (core >= 0 && !sched_getaffinity(0, sizeof cores, &cores) && CPU_COUNT(&cores) == 1 &&
        CPU_ISSET((size_t) core, &cores)) {
        sched_setaffinity(0, sizeof *before, before);
    }
}

/* Return the outcome of a call that neither runs nor waits; write `result` if it is DONE. */
static int outcome(const npurt_native_caller *caller, uint32_t state, int64_t *result)
{
    if (state != DONE) {
        return NPURT_CALL_BUSY; /* CLOSED before the call began */
    }
    result[0] = caller->code, result[1] = caller->error, result[2] = caller->spent;
    return NPURT_CALL_DONE;
}

/* Handle a timeout: withdraw the call if it has not begun. */
static int withdraw(npurt_native_caller *caller, int64_t *result)
{
    uint32_t state = REQUESTED;
    if (atomic_compare_exchange_strong(&caller->state, &state, IDLE)) {
        return NPURT_CALL_DROPPED;
    }
    return state == RUNNING ? NPURT_CALL_LATE : outcome(caller, state, result);
}

int npurt_native_wait(npurt_native_caller *caller, int64_t nanoseconds, int64_t *result)
{
    const int64_t end = now() + nanoseconds;
    for (;;) {
        const uint32_t state = atomic_load(&caller->state);
        if (state != REQUESTED && state != RUNNING) {
            return outcome(caller, state, result);
        }
        const int64_t left = end - now();
        if (left <= 0) {
            return withdraw(caller, result);
        }
        atomic_store(&caller->waiting, 1);
        const int signal = sleep_on(&caller->state, state, left) && errno == EINTR;
        atomic_store(&caller->waiting, 0);
        if (signal) {
            return NPURT_CALL_INTERRUPTED;
        }
    }
}

int npurt_native_call(npurt_native_caller *caller, uintptr_t invoke, uint64_t handle,
                      uint32_t scalars, void *arguments, int64_t nanoseconds, int64_t *result)
{
    uint32_t state = atomic_load(&caller->state);
    if (state != IDLE && state != DONE) {
        return NPURT_CALL_BUSY;
    }
    caller->invoke = (npurt_invoke *) invoke;
    caller->handle = handle, caller->scalars = scalars, caller->arguments = arguments;
    if (!atomic_compare_exchange_strong(&caller->state, &state, REQUESTED)) {
        return NPURT_CALL_BUSY; /* closed since the state was read */
    }
    cpu_set_t before;
    const int core = pin_both(caller, &before);
    announce(caller);
    const int end = npurt_native_wait(caller, nanoseconds, result);
    unpin(core, &before);
    return end;
}
