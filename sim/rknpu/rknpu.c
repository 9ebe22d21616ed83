/*
 * The ioctls of the vendor's driver, rknpu 0.9.8 (DRM flavour).  Refusals, accepted arguments and
 * waits follow rknpu_gem.c, rknpu_job.c and rknpu_drv.c.
 *
 * obj_addr is a kernel pointer, which the driver does not check.  The simulator uses it as a number
 * and looks it up; an unknown number gives -EFAULT where the kernel would crash.
 */
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

enum {
    TASK_LIMIT = 1 << 20, /* tasks of one submit; the driver starts 4095 at a time */
    DOMAINS = 16,
    MAX_PATIENCE_MS = 600000,
    RESET_MS = 200, /* the driver's sleeps during a reset */
    IOVA_ALIGNMENT_SINCE = 907,
    DOMAINS_SINCE = 908, /* version that has domains above 0 */
    SWITCH_MS = 6000,    /* RKNPU_SWITCH_DOMAIN_WAIT_TIME_MS */
};
static const uint64_t KERNEL_ADDRESS = 0xFFFFFF8000000000; /* start of kernel addresses */
static const double MS = 1e6;                              /* ns */
static uint64_t last_cookie;
static struct space spaces[DOMAINS]; /* shared by all files */
static uint32_t domain;              /* current domain of the device */

static struct bo *object(uint64_t cookie)
{
    for (int id = 0; cookie && id < DOMAINS; id++) {
        for (size_t i = 0; i < spaces[id].count; i++) {
            if (spaces[id].bos[i]->cookie == cookie) {
                return spaces[id].bos[i];
            }
        }
    }
    return NULL;
}

/* --- IOMMU domains --------------------------------------------------------------------------- */

void domains_forked(void)
{
    for (int id = 0; id < DOMAINS; id++) {
        if (spaces[id].high) {
            space_forked(&spaces[id]);
        }
    }
}

/* Returns the driver's timeout of a hung job, in ms. */
static double patience(uint32_t timeout_ms)
{
    const double limit = settings.hang_ms > 0 ? settings.hang_ms : MAX_PATIENCE_MS;
    return timeout_ms < limit ? timeout_ms : limit;
}

/* Switches the whole device to a domain once no job runs, as rknpu_iommu_domain_get_and_switch
 * does. */
static int enter_domain(uint32_t id)
{
    uint64_t deadline = 0;
    if (id >= DOMAINS || (id && settings.version < DOMAINS_SINCE)) {
        return -EINVAL;
    }
    while (id != domain && device_jobs(RKNPU)) {
        if (!deadline && cores_hang(RKNPU, (1u << CORES) - 1)) {
            deadline = now_ns() + (uint64_t) (patience(SWITCH_MS) * MS);
        }
        if (!sim_wait(deadline)) {
            return -EINVAL;
        }
    }
    if (!spaces[id].high) {
        space_init(&spaces[id], PAGE, IOVA_END, true);
    }
    if (id != domain) {
        report_switch();
    }
    domain = id;
    return 0;
}

/* --- memory ---------------------------------------------------------------------------------- */

/* Returns the flags that the driver's version supports; the driver refuses other flags. */
static uint32_t known_flags(void)
{
    return settings.version < IOVA_ALIGNMENT_SINCE ? MEM_FLAGS & ~MEM_IOVA_ALIGNMENT : MEM_FLAGS;
}

static int mem_create(struct file *file, void *argument)
{
    struct rknpu_mem_create *args = argument;
    /* an imported buffer (PRIME): return its numbers */
    struct bo *bo = file_bo(file, args->handle);
    if (!bo) {
        if (args->flags & ~known_flags()) {
            return -EINVAL;
        }
        int error = args->size ? enter_domain((uint32_t) args->iommu_domain_id) : -EINVAL;
        if (!error) {
            error = file_add_bo(file, &spaces[domain], args->size, args->flags & MEM_CACHEABLE,
                                args->flags & MEM_ZEROING, &bo);
        }
        if (error) {
            return error;
        }
        bo->flags = args->flags;
        bo->cookie = KERNEL_ADDRESS + ++last_cookie * 0x400;
    }
    args->handle = bo->handle;
    args->size = round_up(bo->size, PAGE);
    args->sram_size = 0;
    args->obj_addr = bo->cookie;
    args->dma_addr = bo->iova;
    return 0;
}

static uint32_t domain_of(const struct bo *bo)
{
    return (uint32_t) (bo->space - spaces);
}

static int mem_map(struct file *file, void *argument)
{
    struct rknpu_mem_map *args = argument;
    const struct bo *bo = file_bo(file, args->handle);
    if (!bo) {
        return -ENOENT;
    }
    args->offset = bo->offset;
    return 0;
}

static int mem_destroy(struct file *file, void *argument)
{
    const struct rknpu_mem_destroy *args = argument;
    struct bo *bo = file_bo(file, args->handle);
    if (!bo) {
        return -EINVAL;
    }
    const int error = enter_domain(domain_of(bo));
    bo = file_bo(file, args->handle); /* another thread may have destroyed the buffer meanwhile */
    if (error || !bo) {
        return -EINVAL;
    }
    file_drop_bo(file, bo);
    return 0;
}

static int mem_sync(struct file *file, void *argument)
{
    const struct rknpu_mem_sync *args = argument;
    (void) file;
    struct bo *bo = object(args->obj_addr);
    if (!args->obj_addr || (bo && !(bo->flags & MEM_CACHEABLE))) {
        return -EINVAL;
    }
    if (!bo) {
        sim_log(1, "rknpu: MEM_SYNC: obj_addr %#llx is not a buffer: the kernel would crash",
                (unsigned long long) args->obj_addr);
        return -EFAULT;
    }
    bo->refs++;
    const int error = enter_domain(domain_of(bo));
    if (!error && args->flags & SYNC_TO_DEVICE) {
        bo_sync(bo, args->offset, args->size, true);
    }
    if (!error && args->flags & SYNC_FROM_DEVICE) {
        bo_sync(bo, args->offset, args->size, false);
    }
    bo_put(bo);
    return error;
}

/* --- actions --------------------------------------------------------------------------------- */

static int action(struct file *file, void *argument)
{
    struct rknpu_action *args = argument;
    (void) file;
    switch (args->flags) {
    case 0: /* hardware version: no public source has the value of an RK3588 */
        args->value = 0;
        return 0;
    case 1:
        args->value = settings.version;
        return 0;
    case 2: /* clock, Hz */
        args->value = (uint32_t) (settings.mhz[RKNPU] * 1e6);
        return 0;
    case 4:  /* supply, uV: not simulated */
    case 22: /* SRAM: none */
    case 23:
        args->value = 0;
        return 0;
    case 6: /* a user's reset also clears faults that the driver's own reset does not */
        cores_wedge(RKNPU, false);
        cores_reset(RKNPU);
        return 0;
    case 13: /* byte counters: not connected on an RK3588 */
    case 14:
    case 15:
    case 16:
    case 17:
    case 19: /* priority (nice) of the process */
        return 0;
    case 18: /* IOMMU in use */
        args->value = 1;
        return 0;
    case 24:
        args->value = domain;
        return 0;
    case 25:
        return enter_domain(args->value);
    default: /* SET_FREQ, SET_VOLT, bandwidth priority, POWER_ON, POWER_OFF and unknown ones */
        return -EINVAL;
    }
}

/* --- submit ---------------------------------------------------------------------------------- */

static int valid_cores(uint32_t mask)
{
    switch (mask) {
    case 1:
    case 2:
    case 4:
        return 1;
    case 3:
        return 2;
    case 7:
        return 3;
    default:
        return 0;
    }
}

/* Returns the tasks of a core: in slots 0..2 by core, or in slots 2..4 if all three cores work. */
static struct rknpu_range range_of(const struct rknpu_submit *args, int cores, int core)
{
    return args->subcore_task[cores == 3 ? core + 2 : core];
}

/* Copies the tasks from the CPU's view of the buffer, because the kernel has a cached mapping of
 * it. */
static int copy_tasks(const struct rknpu_submit *args, struct job *job)
{
    uint64_t end = 0;
    struct bo *bo = object(args->task_obj_addr);
    if (!args->task_obj_addr) {
        return -EINVAL;
    }
    for (int core = 0; core < CORES; core++) {
        const struct rknpu_range range = range_of(args, job->cores, core);
        if (args->core_mask >> core & 1 && (uint64_t) range.start + range.count > end) {
            end = (uint64_t) range.start + range.count;
        }
    }
    if (!bo || !(bo->flags & MEM_KERNEL_MAPPING) || end * sizeof(struct rknpu_task) > bo->size) {
        sim_log(1, "rknpu: %s: the kernel would crash",
                !bo                                 ? "task_obj_addr is not a buffer"
                : !(bo->flags & MEM_KERNEL_MAPPING) ? "the task buffer has no KERNEL_MAPPING"
                                                    : "tasks beyond the task buffer");
        return -EFAULT;
    }
    if (end > TASK_LIMIT) {
        return -ENOMEM;
    }
    job->rknpu_tasks = calloc(end + 1, sizeof(*job->rknpu_tasks));
    job->bos = calloc(1, sizeof(struct bo *));
    if (!job->rknpu_tasks || !job->bos) {
        return -ENOMEM;
    }
    memcpy(job->rknpu_tasks, bo->cpu, end * sizeof(*job->rknpu_tasks));
    job->task_count = (uint32_t) end;
    job->bos[job->bo_count++] = bo;
    job->in_count = 1;
    bo->refs++;
    return 0;
}

static int enqueue(const struct rknpu_submit *args, struct job *job)
{
    struct segment *segments[CORES] = {0};
    for (int core = 0; core < CORES; core++) {
        if (args->core_mask >> core & 1 && !(segments[core] = calloc(1, sizeof(struct segment)))) {
            for (int i = 0; i < core; i++) {
                free(segments[i]);
            }
            return -ENOMEM;
        }
    }
    job->pending = job->cores;
    job->file->jobs++;
    for (int core = 0; core < CORES; core++) {
        const struct rknpu_range range = range_of(args, job->cores, core);
        if (segments[core]) {
            *segments[core] = (struct segment){
                .job = job, .core = core, .first = range.start, .count = range.count};
            core_submit(segments[core]);
        }
    }
    return 0;
}

/* Stores the interrupt bits as the kernel does: in the last task of the core that it waited for. */
static void note_status(const struct rknpu_submit *args, const struct job *job)
{
    int core = 0;
    while (job->cores == 1 && !(args->core_mask >> core & 1)) {
        core++;
    }
    const struct rknpu_range range = range_of(args, job->cores, core);
    if (range.count) {
        struct rknpu_task *tasks = (struct rknpu_task *) job->bos[0]->cpu;
        tasks[range.start + range.count - 1].int_status = job->error ? 0 : INT_DPU_0;
    }
}

/* Waits for a job.  Only a hang counts against the caller's timeout, because the simulator is
 * slower than hardware.  Returns false after the timeout. */
static bool wait_for(const struct job *job, uint32_t mask, double ms)
{
    uint64_t deadline = 0;
    while (job->pending && (!deadline || now_ns() < deadline)) {
        if (!deadline && cores_hang(RKNPU, mask)) {
            deadline = now_ns() + (uint64_t) (ms * MS);
        }
        sim_wait(deadline);
    }
    return !job->pending;
}

/* Ends a late job and resets the device, as rknpu_job_wait and rknpu_job_abort do. */
static void give_up(const struct rknpu_submit *args, struct job *job)
{
    sim_log(1, "rknpu: failed to wait job, task counter: %u, flags: %#x, ret = 0", job->tasks_done,
            args->flags);
    sim_log(1,
            "rknpu: job timeout, flags: 0x0: irq status: 0x0, raw status: 0x0, require mask: "
            "0x300, task counter: %#x",
            job->tasks_done);
    cores_drop(RKNPU, NULL, job);
    sim_sleep(settings.hang_ms > 0 ? 0 : RESET_MS);
    cores_reset(RKNPU);
    while (job->pending) {
        sim_wait(0);
    }
}

static int wait_done(struct rknpu_submit *args, struct job *job)
{
    if (!wait_for(job, args->core_mask, patience(args->timeout))) {
        give_up(args, job);
    }
    args->task_counter = job->error ? job->tasks_done : args->task_number;
    args->hw_elapse_time = job->error ? args->hw_elapse_time : (int64_t) job->ns;
    note_status(args, job);
    return -job->error;
}

static int fence_in(struct rknpu_submit *args)
{
    struct pollfd fence = {.fd = args->fence_fd, .events = POLLIN};
    pthread_mutex_unlock(&sim_lock); /* the thread that signals the fence may need the lock */
    const int ready = args->fence_fd < 0 ? -1 : poll(&fence, 1, (int) patience(args->timeout));
    pthread_mutex_lock(&sim_lock);
    if (ready < 0 || fence.revents & POLLNVAL) {
        return -EINVAL;
    }
    args->fence_fd = -1;
    return fence.revents & POLLIN ? 0 : -ETIMEDOUT;
}

static int fence_out(struct rknpu_submit *args, struct job *job)
{
    job->event = eventfd(0, EFD_CLOEXEC);
    args->fence_fd = job->event < 0 ? -1 : fcntl(job->event, F_DUPFD_CLOEXEC, 0);
    return args->fence_fd < 0 ? -ENOMEM : 0;
}

static int start_job(struct rknpu_submit *args, struct job *job)
{
    int error = copy_tasks(args, job);
    if (!error && args->flags & JOB_FENCE_OUT) {
        error = fence_out(args, job);
    }
    error = error ? error : enter_domain(args->iommu_domain_id);
    job->space = &spaces[domain];
    return error ? error : enqueue(args, job);
}

static int submit(struct file *file, void *argument)
{
    struct rknpu_submit *args = argument;
    if (!args->task_number || args->core_mask >= 1u << settings.cores || !(args->flags & JOB_PC)) {
        return -EINVAL;
    }
    if (args->flags & JOB_FENCE_IN) {
        const int error = fence_in(args);
        if (error) {
            return error;
        }
    }
    if (args->flags & JOB_NONBLOCK && cores_hang(RKNPU, args->core_mask)) {
        cores_reset(RKNPU); /* as rknpu_job_timeout_clean does */
    }
    if (!args->core_mask) {
        args->core_mask = 1u << core_least_busy(RKNPU);
    }
    struct job *job = calloc(1, sizeof(*job));
    if (!job || !cores_start(RKNPU)) {
        free(job);
        return -ENOMEM;
    }
    *job = (struct job){.file = file,
                        .driver = RKNPU,
                        .fault = file->fault,
                        .refs = 1,
                        .event = -1,
                        .cores = valid_cores(args->core_mask)};
    if (!job->cores) { /* 5 and 6: the driver starts no core and waits until the timeout */
        sim_log(1, "rknpu: Unknown core mask: %u; job commit failed", args->core_mask);
        sim_sleep(patience(args->timeout));
        job_put(job);
        return -EINVAL;
    }
    report_submit(RKNPU, 1);
    int error = start_job(args, job);
    if (!error && !(args->flags & JOB_NONBLOCK)) {
        job->refs++;
        error = wait_done(args, job);
        job_put(job);
    } else if (error) {
        job_put(job);
    }
    return error;
}

const struct driver_ioctl rknpu_ioctls[] = {
    {RKNPU_ACTION, CALL_ACTION, action},
    {RKNPU_SUBMIT, CALL_SUBMIT, submit},
    {RKNPU_MEM_CREATE, CALL_CREATE, mem_create},
    {RKNPU_MEM_MAP, CALL_MAP, mem_map},
    {RKNPU_MEM_DESTROY, CALL_DESTROY, mem_destroy},
    {RKNPU_MEM_SYNC, CALL_SYNC, mem_sync},
    {0},
};
