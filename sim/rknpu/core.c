/*
 * Three cores for each driver, each a thread, with their queues, jobs and hangs.
 *
 * rocket: a hung job ends by itself after JOB_TIMEOUT_MS, when the kernel resets the core.  Its
 * fence is signalled, so only the stale output shows the hang. rknpu: a hung job ends when the
 * device is reset, by the submitter after its timeout or by ACTION RESET.
 */
#include "npu.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const double MS = 1e6; /* ns */

struct core {
    struct worker worker;
    bool started, hangs;
    struct segment *first, **last, *running;
};
static struct core cores[DRIVERS][CORES];
static bool wedged[DRIVERS];
static pthread_cond_t changed;

pthread_mutex_t sim_lock = PTHREAD_MUTEX_INITIALIZER;

uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * 1000000000 + (uint64_t) now.tv_nsec;
}

__attribute__((constructor)) static void make_condition(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

void sim_changed(void)
{
    pthread_cond_broadcast(&changed);
}

bool sim_wait(uint64_t deadline)
{
    if (!deadline) {
        pthread_cond_wait(&changed, &sim_lock);
        return true;
    }
    const struct timespec until = {(time_t) (deadline / 1000000000),
                                   (long) (deadline % 1000000000)};
    return pthread_cond_timedwait(&changed, &sim_lock, &until) != ETIMEDOUT;
}

void sim_sleep(double ms)
{
    const uint64_t deadline = now_ns() + (uint64_t) (ms * MS);
    while (sim_wait(deadline)) {
    }
}

/* --- the end of a job ------------------------------------------------------------------------ */

void job_put(struct job *job)
{
    if (--job->refs) {
        return;
    }
    for (uint32_t i = 0; i < job->bo_count; i++) {
        bo_put(job->bos[i]);
    }
    if (job->event >= 0) {
        close_descriptor(job->event);
    }
    free(job->bos);
    free(job->rocket_tasks);
    free(job->rknpu_tasks);
    free(job);
}

static void finish(struct segment *segment)
{
    struct job *job = segment->job;
    job->ns = segment->ns > job->ns ? segment->ns : job->ns;
    free(segment);
    if (!--job->pending) {
        const uint64_t one = 1;
        for (uint32_t i = job->in_count; i < job->bo_count; i++) {
            job->bos[i]->writers--;
        }
        job->file->jobs--;
        if (job->event >= 0 && !job->error) {
            (void) !write(job->event, &one, sizeof(one));
        }
        job_put(job);
    }
    sim_changed();
}

/* Waits for a reset, like hung hardware. */
static void hang(struct core *core, const struct segment *segment)
{
    const enum driver driver = core->worker.driver;
    const uint64_t start = now_ns();
    report_refused(driver, core->worker.index, core->worker.why.text);
    segment->job->tasks_done = segment->done; /* for a submitter whose wait times out */
    core->hangs = true;
    sim_changed();
    uint64_t deadline;
    do { /* hang_ms may change during the wait */
        const double ms = settings.hang_ms > 0 ? settings.hang_ms : JOB_TIMEOUT_MS;
        deadline = driver == ROCKET ? start + (uint64_t) (ms * MS) : 0;
    } while (core->hangs && sim_wait(deadline));
    core->hangs = false;
    segment->job->error = driver == ROCKET ? ECANCELED : ETIMEDOUT;
    if (driver == ROCKET) {
        sim_log(1, "rocket core %d: NPU job timed out", core->worker.index);
    }
}

/* --- a core's thread -------------------------------------------------------------------------- */

static bool run(struct core *core, struct segment *segment)
{
    struct why *why = &core->worker.why;
    if (wedged[core->worker.driver]) {
        return refuse(why, "wedged by an injected fault");
    }
    if (segment->job->fault.effect == HANG) {
        return refuse(why, "hung by an injected fault");
    }
    pthread_mutex_unlock(&sim_lock);
    const bool done = segment_run(segment, &core->worker);
    pthread_mutex_lock(&sim_lock);
    return done;
}

static void *main_of_core(void *argument)
{
    struct core *core = argument;
    pthread_mutex_lock(&sim_lock);
    for (;;) {
        struct segment *segment = core->first;
        if (!segment) {
            sim_wait(0);
            continue;
        }
        core->first = segment->next;
        core->last = core->first ? core->last : &core->first;
        core->running = segment;
        if (!run(core, segment)) {
            hang(core, segment);
        }
        core->running = NULL;
        finish(segment);
    }
    return NULL;
}

static bool start(struct core *core)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, old;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* the new thread handles no signals of the program */
    const int error = pthread_create(&thread, &attributes, main_of_core, core);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
    core->started = !error;
    return core->started;
}

bool cores_start(enum driver driver)
{
    for (int i = 0; i < CORES; i++) {
        struct core *core = &cores[driver][i];
        core->worker.driver = driver;
        core->worker.index = i;
        core->last = core->last ? core->last : &core->first;
        if (!core->started && !start(core)) {
            return false;
        }
    }
    return true;
}

void core_submit(struct segment *segment)
{
    struct core *core = &cores[segment->job->driver][segment->core];
    segment->next = NULL;
    *core->last = segment;
    core->last = &segment->next;
    sim_changed();
}

void cores_drop(enum driver driver, const struct file *file, const struct job *job)
{
    for (int i = 0; i < CORES; i++) {
        struct core *core = &cores[driver][i];
        struct segment **link = &core->first;
        while (*link) {
            struct segment *segment = *link;
            if (segment->job->file == file || segment->job == job) {
                *link = segment->next;
                segment->job->error = EINVAL;
                finish(segment);
            } else {
                link = &segment->next;
            }
        }
        core->last = link;
    }
}

int core_least_busy(enum driver driver)
{
    int best = 0;
    uint32_t least = UINT32_MAX;
    for (int i = 0; i < settings.cores; i++) {
        const struct core *core = &cores[driver][i];
        uint32_t tasks = core->running ? core->running->count : 0;
        for (const struct segment *s = core->first; s; s = s->next) {
            tasks += s->count;
        }
        if (tasks < least) {
            least = tasks;
            best = i;
        }
    }
    return best;
}

bool cores_hang(enum driver driver, uint32_t mask)
{
    bool any = false;
    for (int i = 0; i < CORES; i++) {
        any |= mask >> i & 1 && cores[driver][i].hangs;
    }
    return any;
}

void cores_wedge(enum driver driver, bool on)
{
    wedged[driver] = on;
}

void cores_reset(enum driver driver)
{
    for (int i = 0; i < CORES; i++) {
        cores[driver][i].hangs = false;
    }
    sim_changed();
}

void cores_forked(void)
{
    memset(cores, 0, sizeof(cores));
    make_condition();
}
