/*
 * Runs the quantiser and products under qemu-hexagon; tests/hexagon/kernels.py is the other side.
 */
#include "driver.h"
#include "kernels/kernels.h"

typedef struct {
    uint32_t m, k, n, group, format;
    uint32_t x_stride, y_stride; /* bytes */
    uint32_t first, last;        /* tiles to multiply by; their image follows x */
    uint32_t split;              /* rows of x that the first call quantises; the rest is another */
} job;

typedef struct {
    uint32_t failed; /* npurt_quantise said so, and nothing was multiplied */
    uint32_t quantise_packets, multiply_packets;
    uint32_t activation_bytes; /* they follow, and then y: m * y_stride bytes */
} answer;

static uint32_t quantise(const job *job, const char *x, char *activations, char *scratch)
{
    npurt_quantisation q = {.x = (const float *) x,
                            .x_stride = job->x_stride,
                            .m = job->m,
                            .k = job->k,
                            .group = job->group,
                            .activations = activations};
    int failed = job->split ? npurt_quantise(&q, 0, job->split, scratch) : 0;
    return (uint32_t) (npurt_quantise(&q, job->split, job->m, scratch) | failed);
}

static void multiply(const job *job, const npurt_format *format, const char *activations,
                     const char *tiles, char *y)
{
    npurt_product p = {.format = format,
                       .activations = activations,
                       .y = (float *) y,
                       .y_stride = job->y_stride,
                       .m = job->m,
                       .k = job->k,
                       .n = job->n};
    npurt_multiply(&p, tiles, job->first, job->last);
}

static void run(const job *job)
{
    const npurt_format *format = npurt_find_format(job->format);
    if (!format || !npurt_takes_group(format, job->group)) {
        leave(5);
    }
    answer answer = {.activation_bytes = (uint32_t) npurt_activation_bytes(job->m, job->k)};
    memory x = allocate((size_t) job->m * job->x_stride);
    memory tiles = allocate((job->last - job->first) * npurt_tile_bytes(format, job->k));
    memory activations = allocate(answer.activation_bytes);
    memory scratch = allocate(npurt_quantise_scratch(job->k));
    memory y = allocate((size_t) job->m * job->y_stride);
    receive(x.at, (size_t) job->m * job->x_stride);
    receive(tiles.at, (job->last - job->first) * npurt_tile_bytes(format, job->k));
    uint32_t start = packets();
    answer.failed = quantise(job, x.at, activations.at, scratch.at);
    uint32_t middle = packets();
    if (!answer.failed) {
        multiply(job, format, activations.at, tiles.at, y.at);
    }
    answer.quantise_packets = middle - start;
    answer.multiply_packets = packets() - middle;
    answer_with(&answer, sizeof(answer));
    answer_with(activations.at, answer.activation_bytes);
    answer_with(y.at, (size_t) job->m * job->y_stride);
    release(x);
    release(tiles);
    release(activations);
    release(scratch);
    release(y);
}

void work(void)
{
    job next;
    while (receive(&next, sizeof(next))) {
        run(&next);
    }
    leave(0);
}
