/*
 * The ioctls of the mainline driver, drivers/accel/rocket (Linux 6.18).  Refusals, accepted
 * arguments and waits follow rocket_gem.c and rocket_job.c.
 */
#include "driver.h"

#include <errno.h>
#include <stdlib.h>

enum { MAX_ENTRIES = 1 << 16 };  /* most entries in a job's arrays; -ENOMEM beyond */
enum { MAX_ARRAY = 0x7FFFFFFF }; /* most bytes of an array of jobs: the limit of kvmalloc */

static int create_bo(struct file *file, void *argument)
{
    struct rocket_create_bo *args = argument;
    struct bo *bo;
    if (!args->size || args->size > INT32_MAX) {
        return args->size ? -ENOMEM : -ENOSPC; /* from iommu_map_sgtable, as an int; from drm_mm */
    }
    const int error = file_add_bo(file, &file->own, args->size, true, !settings.guard, &bo);
    if (error) {
        return error;
    }
    args->handle = bo->handle;
    args->dma_address = bo->iova;
    args->offset = bo->offset;
    return 0;
}

/* Waits for jobs that write a buffer.  Only a hang counts against the caller's timeout, because the
 * simulator is slower than hardware. */
static int wait_for_writers(const struct file *file, const struct bo *bo, int64_t until)
{
    const uint64_t deadline = until > 0 ? (uint64_t) until : 1;
    if (bo->writers && deadline <= now_ns()) {
        return -EBUSY;
    }
    while (bo->writers) {
        if (!sim_wait(cores_hang(ROCKET, 1u << file->home) ? deadline : 0)) {
            return -ETIMEDOUT;
        }
    }
    return 0;
}

static int prep_bo(struct file *file, void *argument)
{
    const struct rocket_prep_bo *args = argument;
    if (args->reserved) {
        return -EINVAL;
    }
    struct bo *bo = file_bo(file, args->handle);
    if (!bo) {
        return -ENOENT;
    }
    bo->refs++;
    const int error = wait_for_writers(file, bo, args->timeout_ns);
    bo_sync(bo, 0, bo->size, false);
    bo_put(bo);
    return error;
}

static int fini_bo(struct file *file, void *argument)
{
    const struct rocket_fini_bo *args = argument;
    if (args->reserved) {
        return -EINVAL;
    }
    struct bo *bo = file_bo(file, args->handle);
    if (!bo) {
        return -ENOENT;
    }
    bo_sync(bo, 0, bo->size, true);
    return 0;
}

/* --- submit ---------------------------------------------------------------------------------- */

static int copy_tasks(const struct rocket_job *args, struct job *job)
{
    if (args->task_struct_size < sizeof(struct rocket_task)) {
        return -EINVAL;
    }
    if (args->task_count > MAX_ENTRIES) {
        return -ENOMEM;
    }
    job->rocket_tasks = calloc(args->task_count, sizeof(*job->rocket_tasks));
    if (!job->rocket_tasks) {
        return -ENOMEM;
    }
    if (user_read_array(job->rocket_tasks, args->tasks, args->task_count, args->task_struct_size,
                        sizeof(*job->rocket_tasks))) {
        return -EFAULT;
    }
    for (uint32_t i = 0; i < args->task_count; i++) {
        if (!job->rocket_tasks[i].regcmd_count) {
            return -EINVAL;
        }
    }
    job->task_count = args->task_count;
    return 0;
}

static int add_bos(struct job *job, uint64_t from, uint32_t count)
{
    uint32_t *handles = calloc((size_t) count + 1, sizeof(*handles));
    int error = handles ? 0 : -ENOMEM;
    if (!error) {
        error = user_read(handles, from, count * sizeof(*handles));
    }
    for (uint32_t i = 0; !error && i < count; i++) {
        struct bo *bo = file_bo(job->file, handles[i]);
        if (bo) {
            bo->refs++;
            job->bos[job->bo_count++] = bo;
        }
        error = bo ? 0 : -ENOENT;
    }
    free(handles);
    return error;
}

/* Returns -EALREADY if a job lists a buffer twice, because drm_gem_lock_reservations locks each
 * buffer. */
static int check_twice(const struct job *job)
{
    int error = 0;
    for (uint32_t i = 0; i < job->bo_count; i++) {
        error = job->bos[i]->listed ? -EALREADY : error;
        job->bos[i]->listed = true;
    }
    for (uint32_t i = 0; i < job->bo_count; i++) {
        job->bos[i]->listed = false;
    }
    return error;
}

static int copy_lists(const struct rocket_job *args, struct job *job)
{
    const uint64_t count = (uint64_t) args->in_count + args->out_count;
    if (count > MAX_ENTRIES) {
        return -ENOMEM;
    }
    job->bos = calloc(count + 1, sizeof(struct bo *));
    if (!job->bos) {
        return -ENOMEM;
    }
    int error = add_bos(job, args->in_handles, args->in_count);
    job->in_count = job->bo_count;
    error = error ? error : add_bos(job, args->out_handles, args->out_count);
    return error ? error : check_twice(job);
}

static int submit_job(struct file *file, const struct rocket_job *args, struct fault fault)
{
    if (!args->task_count) {
        return -EINVAL;
    }
    struct job *job = calloc(1, sizeof(*job));
    struct segment *segment = calloc(1, sizeof(*segment));
    if (!job || !segment) {
        free(job);
        free(segment);
        return -ENOMEM;
    }
    *job = (struct job){.file = file,
                        .space = &file->own,
                        .driver = ROCKET,
                        .fault = fault,
                        .refs = 1,
                        .event = -1};
    int error = copy_tasks(args, job);
    error = error ? error : copy_lists(args, job);
    if (error) {
        free(segment);
        job_put(job);
        return error;
    }
    for (uint32_t i = job->in_count; i < job->bo_count; i++) {
        job->bos[i]->writers++;
    }
    file->home = file->home < 0 ? device_quietest_core() : file->home;
    job->cores = device_at_work() < settings.cores ? device_at_work() : settings.cores;
    job->pending = 1;
    file->jobs++;
    *segment = (struct segment){.job = job, .core = file->home, .count = job->task_count};
    core_submit(segment);
    return 0;
}

/* Submits the jobs of an array.  SUBMIT succeeds even if a job is refused, as in the kernel. */
static void submit_jobs(struct file *file, const struct rocket_job *jobs, uint32_t count)
{
    report_submit(ROCKET, (int) count);
    for (uint32_t i = 0; i < count; i++) {
        const struct fault fault = i ? (struct fault){NO_EFFECT, 0} : file->fault;
        const int error = submit_job(file, &jobs[i], fault);
        if (error) {
            report_dropped(-error);
        }
    }
}

static int submit(struct file *file, void *argument)
{
    const struct rocket_submit *args = argument;
    if (!args->job_count) {
        return 0;
    }
    if (args->job_struct_size < sizeof(struct rocket_job) || args->reserved) {
        return -EINVAL;
    }
    if ((uint64_t) args->job_count * sizeof(struct rocket_job) > MAX_ARRAY ||
        !cores_start(ROCKET)) {
        return -ENOMEM;
    }
    struct rocket_job *jobs = calloc(args->job_count, sizeof(*jobs));
    int error = jobs ? 0 : -ENOMEM;
    if (!error) {
        error = user_read_array(jobs, args->jobs, args->job_count, args->job_struct_size,
                                sizeof(*jobs));
    }
    if (!error) {
        submit_jobs(file, jobs, args->job_count);
    }
    free(jobs);
    return error;
}

const struct driver_ioctl rocket_ioctls[] = {
    {ROCKET_CREATE_BO, CALL_CREATE, create_bo},
    {ROCKET_SUBMIT, CALL_SUBMIT, submit},
    {ROCKET_PREP_BO, CALL_PREP, prep_bo},
    {ROCKET_FINI_BO, CALL_FINI, fini_bo},
    {0},
};
