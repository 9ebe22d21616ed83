/* Run a job: see npurt_rk_run in npurt_rk.h. */
#include "run.h"
#include <errno.h>
#include <string.h>

/* A running job. */
typedef struct {
    npurt_rk_ioctl *ioctl;
    npurt_rk_job *job;
    int64_t until; /* the deadline, in ns of CLOCK_MONOTONIC */
} running;

static int request(const running *t, const npurt_rk_request *r)
{
    int code = EINTR;
    if (r->until) {
        *r->until = t->until;
    }
    for (int i = 0; code == EINTR && i < t->job->tries; i++) {
        code = t->ioctl(r->fd, r->number, r->argument) < 0 ? errno : 0;
    }
    return code;
}

static void make(const running *t, npurt_rk_queue *queue, int end)
{
    while (!queue->error && queue->made < end) {
        queue->error = request(t, queue->requests + queue->made);
        queue->made += !queue->error;
    }
}

static int start(const running *t, npurt_rk_queue *queue)
{
    if (queue->copy) {
        memcpy(queue->copy, t->job->a, (size_t) t->job->a_bytes);
    }
    make(t, queue, queue->starts);
    return !queue->error;
}

static void finish(const running *t, npurt_rk_queue *queue)
{
    if (queue->made >= queue->starts) {
        make(t, queue, queue->count);
    }
}

static void run_queue(void *context, int i)
{
    const running *t = context;
    if (start(t, t->job->queues + i)) {
        finish(t, t->job->queues + i);
    }
}

/* Submit every queue, then wait for each.  After a failure, submit no more queues, and wait for the
 * submitted ones. */
static void run_queues(const running *t)
{
    npurt_rk_queue *queues = t->job->queues;
    for (int i = 0; i < t->job->queue_count && start(t, queues + i); i++) {
    }
    for (int i = 0; i < t->job->queue_count; i++) {
        finish(t, queues + i);
    }
}

static int round_parts(npurt_rk_job *job)
{
    int bad = 0;
    for (int i = 0; job->x && i < job->part_count && !bad; i++) {
        const npurt_rk_part *p = job->parts + i;
        bad = npurt_rk_round(job->x + p->first, job->pitch, job->rows, p->k, p->kp, p->signs,
                             p->block, job->passes, p->codes, p->scales, job->scratch);
    }
    return bad;
}

static int failed(npurt_rk_job *job, int what, int at)
{
    job->at = at;
    return what;
}

NPURT_API int npurt_rk_run(npurt_rk_ioctl *ioctl, npurt_rk_job *job)
{
    const int bad = round_parts(job);
    if (bad) {
        return failed(job, NPURT_RK_BAD_ROW, bad - 1);
    }
    for (int i = 0; i < job->sentinel_count; i++) {
        memcpy(job->sentinels[i], job->sentinel, (size_t) job->sentinel_bytes);
    }
    for (int i = 0; i < job->queue_count; i++) {
        job->queues[i].made = job->queues[i].error = 0;
    }
    running t = {ioctl, job, now_ns() + job->timeout};
    if (job->pool && job->queue_count > 1) {
        pool_run(job->pool, run_queue, &t, job->queue_count);
    } else {
        run_queues(&t);
    }
    for (int i = 0; i < job->queue_count; i++) {
        if (job->queues[i].error) {
            return failed(job, NPURT_RK_REFUSED, i);
        }
    }
    for (int i = 0; i < job->sentinel_count; i++) {
        if (!memcmp(job->sentinels[i], job->sentinel, (size_t) job->sentinel_bytes)) {
            return failed(job, NPURT_RK_UNWRITTEN, i);
        }
    }
    if (job->y) {
        read_results(job);
    }
    return 0;
}
