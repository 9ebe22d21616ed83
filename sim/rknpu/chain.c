/*
 * Runs the tasks of a segment in order, as the hardware does under each driver.
 *
 * rocket: the interrupt handler programs the PC unit for each task, to run one task.  So lists need
 * not be chained, but Mesa chains each list to the next list of the job. rknpu: the driver starts
 * the first of up to 4095 tasks, and the tail of each list leads to the next list.  The kernel uses
 * only the entry of the first task and the int_mask of the last.
 */
#include "npu.h"

enum { MAX_CHAIN = 4095 }; /* tasks of one start */
enum { TAIL = 4 };         /* commands that regcfg_amount leaves out */

/* Register PC 0x14: 128-bit beats less one. */
enum { MAX_AMOUNT = 0xFFFF };
static uint32_t amount_of(uint32_t commands)
{
    return (commands + 1) / 2 - 1;
}

static uint32_t commands_of(uint32_t amount)
{
    return 2 * (amount + 1);
}

/* The position of the PC unit: a task's list, and its link to the next. */
struct step {
    const struct rknpu_task *entry; /* NULL on rocket */
    uint64_t address, following;    /* on rocket: the address of the job's next task, or 0 */
    uint32_t amount;
    bool is_last, chained;
};
struct walk {
    struct segment *segment;
    struct worker *worker;
    struct matmul last; /* previous matmul of this chain or job; CBUF holds its operands */
    bool has_last;
};

/* Checks a task's entry.  The kernel reads few of its fields and does not check them; strict=1
 * does. */
static bool check_entry(struct why *why, const struct step *step, const struct program *program)
{
    const struct rknpu_task *task = step->entry;
    const uint32_t done = program->enable == ENABLE_POOLING ? INT_PPU : INT_DPU;
    if ((settings.strict || step->is_last) && task->int_mask != done) {
        return refuse(
            why, "int_mask %#x is not %#x, the interrupt at the end of the last block's writes",
            task->int_mask, done);
    }
    if (settings.strict && task->regcmd_addr != step->address) {
        return refuse(why, "regcmd_addr %#llx, but the chain leads to %#llx",
                      (unsigned long long) task->regcmd_addr, (unsigned long long) step->address);
    }
    if (settings.strict && task->enable_mask != program->enable) {
        return refuse(why, "enable_mask %#x, but the list enables %#x", task->enable_mask,
                      program->enable);
    }
    return true;
}

static bool check_step(struct why *why, const struct step *step, const struct program *program)
{
    if (!step->entry) {
        return !program->next || program->next == step->following ||
               refuse(why, "the tail leads to %#x, but the job's next task is at %#llx",
                      program->next, (unsigned long long) step->following);
    }
    if (!check_entry(why, step, program)) {
        return false;
    }
    if (settings.strict && step->amount != amount_of(program->length)) {
        return refuse(why, "amount %u fetches %u commands, but the list has %u", step->amount,
                      commands_of(step->amount), program->length);
    }
    if (!step->is_last && !program->next) {
        return refuse(why, "the chain ends here, but task_number counts further tasks");
    }
    return !step->is_last || !program->next ||
           refuse(why, "the chain continues, but task_number counts no further task");
}

/* Refuses a job of rocket whose estimated time exceeds the driver's timeout: such a job ends like a
 * hung job. */
static bool in_time(const struct run *run, const struct segment *segment)
{
    return run->job->driver != ROCKET || segment->ns + run->cost.ns <= JOB_TIMEOUT_MS * 1e6 ||
           refuse(run->why, "%s: by the model the job takes more than %d ms at %.0f MHz",
                  run->cost.shape, JOB_TIMEOUT_MS, settings.mhz[ROCKET]);
}

static bool product_run(struct run *run, struct walk *walk, const struct program *program)
{
    struct matmul mm;
    const struct job *job = run->job;
    if (!matmul_check(run, program->enable, &mm) ||
        !matmul_reuse(run, &mm, walk->has_last ? &walk->last : NULL)) {
        return false;
    }
    cost_matmul(&mm, job->driver, job->cores, run->chained, run->first, &run->cost);
    if (!in_time(run, walk->segment) || !matmul_run(run, &mm)) {
        return false;
    }
    walk->last = mm;
    walk->has_last = true;
    return true;
}

static bool execute(struct run *run, struct walk *walk, const struct program *program)
{
    if (program->enable == ENABLE_FULL || program->enable == ENABLE_SHORT) {
        return product_run(run, walk, program);
    }
    walk->has_last = false; /* no public source states what other operations leave in CBUF */
    const bool done = program->enable == ENABLE_POOLING ? pool_run(run) : flying_run(run);
    return done && in_time(run, walk->segment);
}

static void flip_bit(const struct run *run)
{
    run->out[run->out_size / 2] ^= 0x10;
}

static bool run_task(struct walk *walk, const struct step *step, struct program *program)
{
    struct worker *worker = walk->worker;
    struct segment *segment = walk->segment;
    struct job *job = segment->job;
    struct space *space = job->space;
    struct run run = {.space = space,
                      .job = job,
                      .worker = worker,
                      .why = &worker->why,
                      .chained = step->chained,
                      .first = !segment->done,
                      .write = job->fault.effect != STALE};
    pthread_rwlock_rdlock(&space->lock);
    bool done = program_read(&run, (uint32_t) step->address, commands_of(step->amount), program) &&
                check_step(run.why, step, program) && execute(&run, walk, program);
    if (done && job->fault.effect == FLIP && !segment->done) {
        flip_bit(&run);
    }
    done = done && dma_flush(&run);
    pthread_rwlock_unlock(&space->lock);
    if (!done) {
        const struct why reason = worker->why;
        return refuse(&worker->why, "task %u: %.200s", segment->first + segment->done, reason.text);
    }
    pthread_mutex_lock(&sim_lock);
    report_task(job->driver, worker->index, program->length, &run.cost);
    pthread_mutex_unlock(&sim_lock);
    segment->ns += run.cost.ns;
    segment->done++;
    return true;
}

static bool rocket_segment(struct walk *walk)
{
    struct program program;
    const struct segment *segment = walk->segment;
    for (uint32_t i = 0; i < segment->count; i++) {
        const struct rocket_task *task = &segment->job->rocket_tasks[i];
        const struct step step = {.address = task->regcmd,
                                  .following = i + 1 < segment->count ? task[1].regcmd : 0,
                                  .amount = amount_of(task->regcmd_count)};
        if (step.amount > MAX_AMOUNT) {
            return refuse(&walk->worker->why, "task %u: regcmd_count %u does not fit PC 0x14", i,
                          task->regcmd_count);
        }
        if (!run_task(walk, &step, &program)) {
            return false;
        }
    }
    return true;
}

/* Runs the tasks of one start of the PC unit. */
static bool rknpu_chain(struct walk *walk, const struct rknpu_task *tasks, uint32_t count)
{
    struct program program;
    struct step step = {.address = tasks->regcmd_addr,
                        .amount = amount_of(tasks->regcfg_amount + TAIL),
                        .chained = count > 1};
    if (step.address >> 32 || step.amount > MAX_AMOUNT) {
        return refuse(&walk->worker->why, "regcmd_addr %#llx or regcfg_amount %u does not fit",
                      (unsigned long long) step.address, tasks->regcfg_amount);
    }
    walk->has_last = false;
    for (uint32_t i = 0; i < count; i++) {
        step.entry = &tasks[i];
        step.is_last = i + 1 == count;
        if (!run_task(walk, &step, &program)) {
            return false;
        }
        step.address = program.next;
        step.amount = program.next_amount;
    }
    return true;
}

static bool rknpu_segment(struct walk *walk)
{
    const struct segment *segment = walk->segment;
    const struct rknpu_task *tasks = segment->job->rknpu_tasks + segment->first;
    for (uint32_t i = 0; i < segment->count; i += MAX_CHAIN) {
        const uint32_t left = segment->count - i;
        if (!rknpu_chain(walk, tasks + i, left < MAX_CHAIN ? left : MAX_CHAIN)) {
            return false;
        }
    }
    return segment->count ||
           refuse(&walk->worker->why, "the slot of core %d has no tasks", segment->core);
}

bool segment_run(struct segment *segment, struct worker *worker)
{
    struct walk walk = {.segment = segment, .worker = worker};
    const enum driver driver = segment->job->driver;
    segment->ns = cost_submit_ns(driver);
    pthread_mutex_lock(&sim_lock);
    report_overhead(driver, worker->index, segment->ns);
    pthread_mutex_unlock(&sim_lock);
    return driver == ROCKET ? rocket_segment(&walk) : rknpu_segment(&walk);
}
