/* Runs the gated delta net under qemu-hexagon; tests/hexagon/delta_kernel.py is the other side. */
#include "driver.h"
#include "kernels/delta.h"

typedef struct {
    uint32_t tokens, sequences, k_heads, heads, width, grouped, gates, scale;
    uint32_t split; /* heads of all sequences that the first call does; another the rest */
} job;

typedef struct {
    uint32_t failed, packets; /* they follow: y, states */
} answer;

static void run(const job *job)
{
    npurt_delta op = {.tokens = job->tokens,
                      .sequences = job->sequences,
                      .k_heads = job->k_heads,
                      .heads = job->heads,
                      .width = job->width,
                      .share = job->heads / job->k_heads,
                      .grouped = job->grouped,
                      .gates = job->gates,
                      .scale = job->scale};
    op.x_stride = npurt_delta_x_bytes(&op);
    op.y_stride = npurt_delta_y_bytes(&op);
    uint32_t rows = job->tokens * job->sequences, heads = job->heads * job->sequences;
    size_t of_head = npurt_delta_state_bytes(job->width);
    memory x = allocate(rows * op.x_stride), y = allocate(rows * op.y_stride);
    memory state = allocate(heads * of_head), scratch = allocate(npurt_delta_scratch());
    receive(x.at, rows * op.x_stride);
    receive(state.at, heads * of_head);
    op.x = x.at;
    op.y = y.at;
    uint32_t start = packets();
    int failed = job->split ? npurt_delta_run(&op, 0, job->split, state.at, scratch.at) : 0;
    char *rest = state.at + job->split * of_head;
    failed |= npurt_delta_run(&op, job->split, heads, rest, scratch.at);
    answer answer = {.failed = (uint32_t) failed, .packets = packets() - start};
    answer_with(&answer, sizeof(answer));
    answer_with(y.at, rows * op.y_stride);
    answer_with(state.at, heads * of_head);
    release(x);
    release(y);
    release(state);
    release(scratch);
}

void work(void)
{
    job next;
    while (receive(&next, sizeof(next))) {
        run(&next);
    }
    leave(0);
}
