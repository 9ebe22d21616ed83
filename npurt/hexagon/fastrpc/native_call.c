/*
 * See npurt_native_call.h.
 *
 * The state says whose turn it is.  IDLE and DONE -> ASKED by a caller, -> RUNNING -> DONE by the
 * thread that serves; ASKED -> IDLE by a caller who waits no longer; anything -> CLOSED at the end.
 * Who sleeps says so first, and looks again, so that no wake is lost.
 *
 * Both threads keep to one core for a call, since only one of them has something to do: to wake a
 * thread there takes 3 us, and 10 to 50 on another one that sleeps.  Nor does anybody look busily: the
 * other thread would wait for that.
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

struct npurt_native_call {
    _Atomic uint32_t state;
    _Atomic uint32_t bell;    /* counts calls asked for, and rings */
    _Atomic uint32_t rung;    /* serve shall return */
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

npurt_native_call *npurt_native_call_new(void)
{
    return calloc(1, sizeof(npurt_native_call));
}

void npurt_native_call_free(npurt_native_call *line)
{
    free(line);
}

static void settle(npurt_native_call *line, uint32_t state)
{
    atomic_store(&line->state, state);
    wake(&line->state, &line->waiting);
}

static void make_call(npurt_native_call *line)
{
    const int64_t start = now();
    errno = 0;
    line->code = line->invoke(line->handle, line->scalars, line->arguments);
    line->error = errno;
    line->spent = now() - start;
    settle(line, DONE);
}

void npurt_native_call_serve(npurt_native_call *line)
{
    atomic_store(&line->thread, (pid_t) syscall(SYS_gettid));
    while (!atomic_exchange(&line->rung, 0)) {
        const uint32_t seen = atomic_load(&line->bell);
        uint32_t asked = ASKED;
        if (atomic_compare_exchange_strong(&line->state, &asked, RUNNING)) {
            make_call(line);
        } else if (!atomic_load(&line->rung)) {
            atomic_store(&line->asleep, 1);
            sleep_on(&line->bell, seen, -1);
            atomic_store(&line->asleep, 0);
        }
    }
}

static void announce(npurt_native_call *line)
{
    atomic_fetch_add(&line->bell, 1);
    wake(&line->bell, &line->asleep);
}

void npurt_native_call_ring(npurt_native_call *line)
{
    atomic_store(&line->rung, 1);
    announce(line);
}

void npurt_native_call_close(npurt_native_call *line)
{
    settle(line, CLOSED);
}

int npurt_native_call_busy(npurt_native_call *line)
{
    const uint32_t state = atomic_load(&line->state);
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
static int stay(npurt_native_call *line, cpu_set_t *before)
{
    const int core = sched_getcpu();
    const pid_t thread = atomic_load(&line->thread);
    if (core < 0 || thread == 0 || sched_getaffinity(0, sizeof *before, before)) {
        return -1;
    }
    if (line->core != core + 1 && keep_to(thread, core)) {
        line->core = core + 1;
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
static int outcome(const npurt_native_call *line, uint32_t state, int64_t *result)
{
    if (state != DONE) {
        return NPURT_CALL_BUSY; /* the line was closed before */
    }
    result[0] = line->code, result[1] = line->error, result[2] = line->spent;
    return NPURT_CALL_DONE;
}

/* It takes too long: take it back, if it has not begun. */
static int give_up(npurt_native_call *line, int64_t *result)
{
    uint32_t state = ASKED;
    if (atomic_compare_exchange_strong(&line->state, &state, IDLE)) {
        return NPURT_CALL_DROPPED;
    }
    return state == RUNNING ? NPURT_CALL_LATE : outcome(line, state, result);
}

int npurt_native_call_wait(npurt_native_call *line, int64_t nanoseconds, int64_t *result)
{
    const int64_t end = now() + nanoseconds;
    for (;;) {
        const uint32_t state = atomic_load(&line->state);
        if (state != ASKED && state != RUNNING) {
            return outcome(line, state, result);
        }
        const int64_t left = end - now();
        if (left <= 0) {
            return give_up(line, result);
        }
        atomic_store(&line->waiting, 1);
        const int signal = sleep_on(&line->state, state, left) && errno == EINTR;
        atomic_store(&line->waiting, 0);
        if (signal) {
            return NPURT_CALL_INTERRUPTED;
        }
    }
}

int npurt_native_call_make(npurt_native_call *line, uintptr_t invoke, uint64_t handle, uint32_t scalars,
                    void *arguments, int64_t nanoseconds, int64_t *result)
{
    uint32_t state = atomic_load(&line->state);
    if (state != IDLE && state != DONE) {
        return NPURT_CALL_BUSY;
    }
    line->invoke = (npurt_invoke *) invoke;
    line->handle = handle, line->scalars = scalars, line->arguments = arguments;
    if (!atomic_compare_exchange_strong(&line->state, &state, ASKED)) {
        return NPURT_CALL_BUSY; /* it was closed just now */
    }
    cpu_set_t before;
    const int core = stay(line, &before);
    announce(line);
    const int end = npurt_native_call_wait(line, nanoseconds, result);
    leave(core, &before);
    return end;
}
