/*
 * The tasks of a segment, one after the other, as each driver has the hardware run them.
 *
 * rocket: the interrupt handler programs the PC unit for each task, so lists are not chained.
 * rknpu: the driver starts the first of up to 4095 tasks, and the tail of each list leads to the
 * next; of the other tasks' entries the kernel uses only the last one's int_mask.
 */
#include "npu.h"

enum {
    MAX_CHAIN = 4095,
    TAIL = 4
}; /* tasks of one start; commands that regcfg_amount leaves out */

/* Register PC 0x14: 128-bit beats less one. */
static uint32_t amount_of(uint32_t commands)
{
    return (commands + 1) / 2 - 1;
}

static uint32_t commands_of(uint32_t amount)
{
    return 2 * (amount + 1);
}

struct walk {
    struct segment *segment;
    struct worker *worker;
    struct matmul last; /* of this chain: what CBUF holds */
    bool has_last;
};

static bool execute(struct run *run, struct walk *walk, const struct program *program)
{
    struct matmul mm;
    const struct job *job = run->job;
    if (program->enable == ENABLE_FLYING) {
        return flying_run(run);
    }
    if (!matmul_check(run, program->enable, &mm) ||
        !matmul_reuse(run, &mm, walk->has_last ? &walk->last : NULL) || !matmul_run(run, &mm)) {
        return false;
    }
    cost_matmul(&mm, job->driver, job->cores, run->chained, &run->cost);
    walk->last = mm;
    walk->has_last = job->driver == RKNPU;
    return true;
}

static void flip_bit(const struct run *run)
{
    run->out[run->out_size / 2] ^= 0x10;
}

static bool run_task(struct walk *walk, uint32_t address, uint32_t commands, bool chained,
                     struct program *program)
{
    struct worker *worker = walk->worker;
    struct segment *segment = walk->segment;
    struct job *job = segment->job;
    struct space *space = job->file->space;
    struct run run = {.space = space,
                      .job = job,
                      .worker = worker,
                      .why = &worker->why,
                      .chained = chained,
                      .write = job->fault.effect != STALE};
    pthread_rwlock_rdlock(&space->lock);
    bool done = program_read(&run, address, commands, program) && execute(&run, walk, program);
    if (done && job->fault.effect == FLIP && !segment->done) {
        flip_bit(&run);
    }
    pthread_rwlock_unlock(&space->lock);
    if (done) {
        pthread_mutex_lock(&sim_lock);
        report_task(job->driver, worker->index, program->length, &run.cost);
        pthread_mutex_unlock(&sim_lock);
        segment->ns += run.cost.ns;
        segment->done++;
    }
    return done;
}

/* Puts "task N: " before a reason. */
static bool in_task(struct walk *walk, bool done)
{
    if (!done) {
        const struct why reason = walk->worker->why;
        refuse(&walk->worker->why, "task %u: %.200s", walk->segment->first + walk->segment->done,
               reason.text);
    }
    return done;
}

static bool rocket_task(struct walk *walk, const struct rocket_task *task)
{
    struct program program;
    const uint32_t commands = commands_of(amount_of(task->regcmd_count));
    if (task->regcmd_count > 2 * 0x10000) {
        return refuse(&walk->worker->why, "regcmd_count %u does not fit PC 0x14",
                      task->regcmd_count);
    }
    if (!run_task(walk, task->regcmd, commands, false, &program)) {
        return false;
    }
    return !program.next ||
           refuse(&walk->worker->why, "the list is chained: the mainline driver starts each task");
}

/* What strict=1 wants of an entry: the kernel reads few of its fields, and believes them. */
static bool check_entry(struct walk *walk, const struct rknpu_task *task, uint64_t address,
                        const struct program *program)
{
    struct why *why = &walk->worker->why;
    if (task->int_mask != INT_DPU) {
        return refuse(why, "int_mask %#x is not 0x300: done is when the DPU has written",
                      task->int_mask);
    }
    if (settings.strict && task->regcmd_addr != address) {
        return refuse(why, "regcmd_addr %#llx, but the chain leads to %#llx",
                      (unsigned long long) task->regcmd_addr, (unsigned long long) address);
    }
    if (settings.strict && task->enable_mask != program->enable) {
        return refuse(why, "enable_mask %#x, but the list enables %#x", task->enable_mask,
                      program->enable);
    }
    return true;
}

static bool check_link(struct walk *walk, const struct program *program, uint32_t amount,
                       bool is_last)
{
    struct why *why = &walk->worker->why;
    if (settings.strict && amount != amount_of(program->length)) {
        return refuse(why, "amount %u fetches %u commands, but the list has %u", amount,
                      commands_of(amount), program->length);
    }
    if (!is_last && !program->next) {
        return refuse(why, "the chain ends here, but task_number says it goes on");
    }
    if (is_last && program->next) {
        return refuse(why, "the chain goes on, but task_number ends it");
    }
    return true;
}

/* One start of the PC unit. */
static bool rknpu_chain(struct walk *walk, const struct rknpu_task *tasks, uint32_t count)
{
    struct program program;
    uint64_t address = tasks[0].regcmd_addr;
    uint32_t amount = amount_of(tasks[0].regcfg_amount + TAIL);
    walk->has_last = false;
    if (address >> 32 || amount > 0xFFFF) {
        return refuse(&walk->worker->why, "regcmd_addr %#llx or regcfg_amount %u does not fit",
                      (unsigned long long) address, tasks[0].regcfg_amount);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!run_task(walk, (uint32_t) address, commands_of(amount), count > 1, &program)) {
            return false;
        }
        if (!check_entry(walk, &tasks[i], address, &program) ||
            !check_link(walk, &program, amount, i + 1 == count)) {
            walk->segment->done--;
            return false;
        }
        address = program.next;
        amount = program.next_amount;
    }
    return true;
}

static bool rknpu_segment(struct walk *walk)
{
    const struct segment *segment = walk->segment;
    const struct job *job = segment->job;
    if (!segment->count) {
        return refuse(&walk->worker->why, "the slot of core %d has no tasks", segment->core);
    }
    for (uint32_t i = 0; i < segment->count; i += MAX_CHAIN) {
        const uint32_t left = segment->count - i;
        if (!rknpu_chain(walk, job->rknpu_tasks + segment->first + i,
                         left < MAX_CHAIN ? left : MAX_CHAIN)) {
            return in_task(walk, false);
        }
    }
    return true;
}

bool segment_run(struct segment *segment, struct worker *worker)
{
    struct walk walk = {.segment = segment, .worker = worker};
    const struct job *job = segment->job;
    segment->ns = cost_submit_ns(job->driver);
    pthread_mutex_lock(&sim_lock);
    report_overhead(job->driver, worker->index, segment->ns);
    pthread_mutex_unlock(&sim_lock);
    if (job->driver == RKNPU) {
        return rknpu_segment(&walk);
    }
    for (uint32_t i = 0; i < segment->count; i++) {
        if (!in_task(&walk, rocket_task(&walk, &job->rocket_tasks[i]))) {
            return false;
        }
    }
    return true;
}
