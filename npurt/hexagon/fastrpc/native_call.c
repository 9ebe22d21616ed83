/*
 * See npurt_native_call.h.
 *
 * The state says which thread acts next.  The thread that asks changes IDLE and DONE to ASKED, and
 * ASKED back to IDLE when it waits no longer.  The thread that serves changes ASKED to RUNNING and
 * RUNNING to DONE.  CLOSED is final.  A thread announces that it sleeps and then reads the state
 * again, so that no wake-up is lost.
 *
 * Both threads stay on one core during a call, because only one of them has work: waking a thread on
 * the same core takes 3 us, and on another core that sleeps 10 to 50.  Neither thread spins: the
 * other one would wait for the core.
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

enum { IDLE, ASKED, RUNNING, DONE, CLOSED };

/* FastRPC's remote_handle64_invoke: a function is called as the type that it has. */
typedef union remote_arg remote_arg;
typedef int npurt_invoke(uint64_t handle, uint32_t scalars, remote_arg *arguments);

struct npurt_native_caller {
    _Atomic uint32_t state;
    _Atomic uint32_t events;  /* how many calls were asked for, and wake-ups */
    _Atomic uint32_t stop;    /* serve shall return */
    _Atomic uint32_t asleep;  /* the thread that serves */
    _Atomic uint32_t waiting; /* the one that asked, asleep */
    npurt_invoke *invoke;
    uint64_t handle;
    void *arguments;
    uint32_t scalars;
    int code, error;
    int64_t spent;
    _Atomic pid_t thread; /* that serves */
    int core;             /* that it keeps to, from 1 on */
};

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t) t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Sleeps while *word is value, at most so long if that is not negative; -1 and errno as futex(2). */
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
        uint32_t asked = ASKED;
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
    return state == ASKED || state == RUNNING;
}

static int keep_to(pid_t thread, int core)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET((size_t) core, &cores);
    return sched_setaffinity(thread, sizeof cores, &cores) == 0;
}

/* Has both threads keep to this core; returns it, or -1 when they go where they want. */
static int stay(npurt_native_caller *caller, cpu_set_t *before)
{
    const int core = sched_getcpu();
    const pid_t thread = atomic_load(&caller->thread);
    if (core < 0 || thread == 0 || sched_getaffinity(0, sizeof *before, before)) {
        return -1;
    }
    if (caller->core != core + 1 && keep_to(thread, core)) {
        caller->core = core + 1;
    }
    return keep_to(0, core) ? core : -1;
}

/* Lets this thread go where it could before, unless somebody has said otherwise meanwhile. */
static void leave(int core, const cpu_set_t *before)
{
    cpu_set_t cores;
    if (core >= 0 && !sched_getaffinity(0, sizeof cores, &cores) && CPU_COUNT(&cores) == 1 &&
        CPU_ISSET((size_t) core, &cores)) {
        sched_setaffinity(0, sizeof *before, before);
    }
}

/* What to tell the caller of a call that is not under way any more. */
static int outcome(const npurt_native_caller *caller, uint32_t state, int64_t *result)
{
    if (state != DONE) {
        return NPURT_CALL_BUSY; /* the caller was closed before */
    }
    result[0] = caller->code, result[1] = caller->error, result[2] = caller->spent;
    return NPURT_CALL_DONE;
}

/* It takes too long: take it back, if it has not begun. */
static int give_up(npurt_native_caller *caller, int64_t *result)
{
    uint32_t state = ASKED;
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
        if (state != ASKED && state != RUNNING) {
            return outcome(caller, state, result);
        }
        const int64_t left = end - now();
        if (left <= 0) {
            return give_up(caller, result);
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
    if (!atomic_compare_exchange_strong(&caller->state, &state, ASKED)) {
        return NPURT_CALL_BUSY; /* it was closed just now */
    }
    cpu_set_t before;
    const int core = stay(caller, &before);
    announce(caller);
    const int end = npurt_native_wait(caller, nanoseconds, result);
    leave(core, &before);
    return end;
}
