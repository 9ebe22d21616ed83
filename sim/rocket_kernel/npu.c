/*
 * The three cores of an NPU whose registers are in a kernel: a process with the simulator's model
 * of a core (sim/rknpu), which takes tasks from /dev/npuhw and accesses memory through it.
 *
 * The process has no files, buffers or jobs, only the tasks that the driver starts.  So strict=1
 * checks commands and registers, but not whether a task may write to a buffer.
 *
 *     NPURT_SIM_RKNPU="fault=timeout@submit:2" npu        settings as in docs/simulators.md
 *
 * A fault of "submit" occurs at the N-th task.  A task that the model refuses hangs, and the driver
 * ends it after its timeout.
 */
#include "npu.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "npuhw.h"

pthread_mutex_t sim_lock = PTHREAD_MUTEX_INITIALIZER;

static struct core {
    struct worker worker;
    struct space space;
    uint8_t *seen; /* 4 GiB of addresses; only the pages that tasks use are allocated */
} cores[CORES];
static int hardware;

void sim_changed(void)
{
}

void device_reload(void)
{
    fault_clear();
}

/* --- replacement of dma.c, for memory behind an IOMMU ---------------------------------------- */

static const uint64_t REACH = 0x100000000; /* bytes that 32-bit addresses reach */

static off_t place(const struct run *run, uint32_t address)
{
    return (off_t) (NPUHW_MEMORY | (uint64_t) run->worker->index << 32 | address);
}

static bool transferred(struct run *run, ssize_t done, uint64_t size, uint32_t address,
                        const char *what)
{
    return done == (ssize_t) size || refuse(run->why, "%s at %#x: %llu bytes are not all mapped",
                                            what, address, (unsigned long long) size);
}

/* Copies the bytes to the same address in the core's own 4 GiB, so that overlapping operands
 * overlap in the copy too. */
uint8_t *dma(struct run *run, uint32_t address, uint64_t size, const char *what)
{
    uint8_t *at = cores[run->worker->index].seen + address;
    if (size > REACH - address) {
        refuse(run->why, "%s at %#x: %llu bytes reach past the last address", what, address,
               (unsigned long long) size);
        return NULL;
    }
    const ssize_t done = pread(hardware, at, size, place(run, address));
    return transferred(run, done, size, address, what) ? at : NULL;
}

bool dma_may_write(struct run *run, uint32_t address)
{
    return run->list != address || refuse(run->why, "output goes over the commands");
}

bool dma_flush(struct run *run)
{
    const uint32_t address = (uint32_t) (run->out - cores[run->worker->index].seen);
    const ssize_t done = pwrite(hardware, run->out, run->out_size, place(run, address));
    return transferred(run, done, run->out_size, address, "output");
}

/* --- a core ---------------------------------------------------------------------------------- */

enum { AMOUNT = 0xFFFF }; /* bits of REGISTER_AMOUNTS: 128-bit beats less one */
enum { TASKS = 0xFFF };   /* bits of TASK_CON: number of lists to run */

/* Waits for the time that the model estimates; the kernel's clock may be simulated too. */
static void pass(double ns)
{
    const struct timespec time = {(time_t) (ns / 1e9), (long) ns % 1000000000};
    nanosleep(&time, NULL);
}

static bool may_start(const struct npuhw_task *started, const struct job *job, struct why *why)
{
    if (job->fault.effect == HANG) {
        return refuse(why, "hung by an injected fault");
    }
    if ((started->task_con & TASKS) != 1) {
        return refuse(why, "TASK_CON %#x: rocket starts one task at a time", started->task_con);
    }
    return started->interrupt_mask & INT_DPU ||
           refuse(why, "INTERRUPT_MASK %#x: no interrupt at the end of the task",
                  started->interrupt_mask);
}

static void run_task(const struct npuhw_task *started)
{
    struct core *core = &cores[started->core];
    struct rocket_task task = {started->address, 2 * ((started->amount & AMOUNT) + 1)};
    struct job job = {.space = &core->space,
                      .driver = ROCKET,
                      .rocket_tasks = &task,
                      .task_count = 1,
                      .cores = settings.cores};
    struct segment segment = {.job = &job, .core = (int) started->core, .count = 1};
    pthread_mutex_lock(&sim_lock);
    job.fault = fault_at(CALL_SUBMIT);
    report_submit(ROCKET, 1);
    pthread_mutex_unlock(&sim_lock);
    const bool done =
        may_start(started, &job, &core->worker.why) && segment_run(&segment, &core->worker);
    pass(segment.ns);
    if (!done) {
        pthread_mutex_lock(&sim_lock);
        report_refused(ROCKET, (int) started->core, core->worker.why.text);
        pthread_mutex_unlock(&sim_lock);
        return;
    }
    const struct npuhw_done end = {started->core, started->start, INT_DPU};
    if (write(hardware, &end, sizeof(end)) != sizeof(end)) {
        sim_log(1, "/dev/npuhw: %s", strerror(errno));
    }
}

/* Runs tasks until /dev/npuhw fails, as one of CORES threads: a core runs one task at a time. */
static void *serve(void *unused)
{
    struct npuhw_task task;
    ssize_t size;
    while ((size = read(hardware, &task, sizeof(task))) == sizeof(task)) {
        run_task(&task);
    }
    sim_log(1, "/dev/npuhw: %s", size < 0 ? strerror(errno) : "a short task");
    return unused;
}

static void make_core(struct core *core, int index)
{
    core->worker.driver = ROCKET;
    core->worker.index = index;
    pthread_rwlock_init(&core->space.lock, NULL);
    core->seen = mmap(NULL, REACH, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (core->seen == MAP_FAILED) {
        perror("npu: 4 GiB of addresses");
        exit(1);
    }
}

int main(void)
{
    pthread_t threads[CORES];
    settings_from_environment();
    hardware = open("/dev/npuhw", O_RDWR | O_CLOEXEC);
    if (hardware < 0 || *settings_refused) {
        perror("npu: /dev/npuhw");
        return 1;
    }
    for (int i = 0; i < CORES; i++) {
        make_core(&cores[i], i);
    }
    for (int i = 0; i < CORES; i++) {
        if (pthread_create(&threads[i], NULL, serve, NULL)) {
            perror("npu: a thread");
            return 1;
        }
    }
    puts("ready");
    fflush(stdout);
    for (int i = 0; i < CORES; i++) {
        pthread_join(threads[i], NULL);
    }
    return 1;
}
