/* One call for all that the host does for a product: see npurt_rk.h. */
#include "run.h"
#include <errno.h>
#include <string.h>

/* A job that runs. */
typedef struct {
    npurt_rk_ioctl *ioctl;
    npurt_rk_job *job;
    int64_t until;
} turn;

static int request(const turn *t, const npurt_rk_request *r)
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

static void make(const turn *t, npurt_rk_lane *lane, int end)
{
    while (!lane->error && lane->made < end) {
        lane->error = request(t, lane->requests + lane->made);
        lane->made += !lane->error;
    }
}

static int start(const turn *t, npurt_rk_lane *lane)
{
    if (lane->copy) {
        memcpy(lane->copy, t->job->a, (size_t) t->job->a_bytes);
    }
    make(t, lane, lane->starts);
    return !lane->error;
}

static void finish(const turn *t, npurt_rk_lane *lane)
{
    if (lane->made >= lane->starts) {
        make(t, lane, lane->count);
    }
}

static void run_lane(void *context, int i)
{
    const turn *t = context;
    if (start(t, t->job->lanes + i)) {
        finish(t, t->job->lanes + i);
    }
}

/* Every lane is submitted before any is waited for; after a failure, what runs is waited for. */
static void run_lanes(const turn *t)
{
    npurt_rk_lane *lanes = t->job->lanes;
    for (int i = 0; i < t->job->lane_count && start(t, lanes + i); i++) {
    }
    for (int i = 0; i < t->job->lane_count; i++) {
        finish(t, lanes + i);
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
    for (int i = 0; i < job->mark_count; i++) {
        memcpy(job->marks[i], job->mark, (size_t) job->mark_bytes);
    }
    for (int i = 0; i < job->lane_count; i++) {
        job->lanes[i].made = job->lanes[i].error = 0;
    }
    turn t = {ioctl, job, now_ns() + job->timeout};
    if (job->crew && job->lane_count > 1) {
        crew_run(job->crew, run_lane, &t, job->lane_count);
    } else {
        run_lanes(&t);
    }
    for (int i = 0; i < job->lane_count; i++) {
        if (job->lanes[i].error) {
            return failed(job, NPURT_RK_REFUSED, i);
        }
    }
    for (int i = 0; i < job->mark_count; i++) {
        if (!memcmp(job->marks[i], job->mark, (size_t) job->mark_bytes)) {
            return failed(job, NPURT_RK_UNWRITTEN, i);
        }
    }
    if (job->y) {
        read_results(job);
    }
    return 0;
}
