/*
 * Computes one product: features and weights, exact sums, the stages of the DPU, the output cube.
 *
 * Sums of integers are exact and saturate to the output type.  Products and sums of floats are
 * computed in double and rounded once at the end.  Hardware sums in single precision, so its
 * results differ by about 1e-7 of the sum of the products' magnitudes.  A stage after the sum
 * receives the sum as float32.  The simulator keeps subnormals and NaN; how hardware treats them is
 * not confirmed.
 */
#include "npu.h"

#include <string.h>

enum { DOT_GROUP = 32, TILE = 32, FLOAT_GROUP = 16, MAX_GROUP_BYTES = 256 };
enum { HALVES = ATOM / 2 };
enum { UNKNOWN = 0x5A }; /* output of a channel without a kernel */

struct product {
    struct run *run;
    const struct matmul *mm;
    struct writer writer;
    const uint8_t *weights, *biases; /* in the NPU's memory */
    const uint8_t *operand[2];       /* its even and its odd surfaces */
    /* features in the type that memory holds, [M][bytes of depth] */
    uint8_t *packed;
    void *rows;      /* features as int8 or double, [M][depth] */
    void *room;      /* for the converted kernels of a group */
    void *sums;      /* sums of a group, [M][channels]; integers: [channels / 32][M][32] */
    int64_t *totals; /* sum of each row times the weights' offset */
    uint8_t *line;   /* one pixel's outputs of one group */
    size_t pixels, depth;
};

/* --- integers --------------------------------------------------------------------------------- */

static int64_t bias_of(const struct product *p, uint32_t channel)
{
    int32_t bias;
    memcpy(&bias, p->biases + channel * sizeof(bias), sizeof(bias));
    return bias;
}

static void store_ints(struct product *p, uint32_t pixel, uint32_t group)
{
    const struct matmul *mm = p->mm;
    const int32_t *sums = (const int32_t *) p->sums + (size_t) pixel * DOT_GROUP;
    if (mm->out == TO_INT32) {
        writer_store(&p->writer, pixel, group, (const uint8_t *) sums);
        return;
    }
    for (uint32_t n = 0; n < mm->group; n++) {
        const uint32_t channel = group * mm->group + n;
        const int64_t sum = sums[n / DOT_GROUP * p->pixels * DOT_GROUP + n % DOT_GROUP];
        if (channel >= mm->real_n) {
            p->line[n] = UNKNOWN; /* int8: other outputs have no such channels */
        } else if (mm->out == TO_INT8) {
            convert_int(p->line + n, mm, sum + p->totals[pixel] + bias_of(p, channel));
        } else {
            convert_int(p->line + n * mm->out_bytes, mm, sum);
        }
    }
    writer_store(&p->writer, pixel, group, p->line);
}

static void store_group(struct product *p, uint32_t group)
{
    for (uint32_t pixel = 0; pixel < p->pixels; pixel++) {
        store_ints(p, pixel, group);
    }
}

/* Computes the contribution of the weights' offset to each sum of a pixel. */
static void add_up_rows(struct product *p)
{
    const int32_t offset = p->mm->stages.requantisation.weight_offset;
    const int8_t *row = p->rows;
    for (size_t m = 0; m < p->pixels; m++, row += p->depth) {
        int64_t total = 0;
        for (size_t k = 0; k < p->depth; k++) {
            total += row[k];
        }
        p->totals[m] = total * offset;
    }
}

static void multiply_ints(struct product *p)
{
    const struct matmul *mm = p->mm;
    const size_t tiles = p->depth / TILE, part = tiles * DOT_GROUP * TILE;
    const uint32_t parts = mm->group / DOT_GROUP; /* 1, or 2 for int4 */
    if (mm->in == INT4) {
        expand_nibbles(p->rows, p->packed, p->pixels * p->depth / 2);
    }
    if (mm->out == TO_INT8) {
        add_up_rows(p);
    }
    for (uint32_t group = 0; group < p->writer.groups; group++) {
        const int8_t *kernels = weights_of(mm, p->weights, group, p->room);
        for (uint32_t i = 0; i < parts; i++) {
            dot_best(p->rows, p->pixels, p->depth, kernels + i * part, tiles,
                     (int32_t *) p->sums + i * p->pixels * DOT_GROUP);
        }
        store_group(p, group);
    }
}

/* --- floats ----------------------------------------------------------------------------------- */

static float combine(enum combination with, float sum, float operand)
{
    switch (with) {
    case ADD:
        return sum + operand;
    case MULTIPLY:
        return sum * operand;
    case MAXIMUM:
        return sum > operand ? sum : operand;
    default:
        return sum < operand ? sum : operand;
    }
}

static float operand_at(const struct product *p, uint32_t pixel, uint32_t channel)
{
    const uint32_t surface = channel / HALVES;
    const size_t at = surface / 2 * p->mm->stages.operand.pitch + (size_t) pixel * ATOM;
    uint16_t half;
    memcpy(&half, p->operand[surface % 2] + at + channel % HALVES * sizeof(half), sizeof(half));
    return half_to_float(half);
}

static void store_floats(struct product *p, uint32_t pixel, uint32_t group)
{
    const struct matmul *mm = p->mm;
    const struct stages *stages = &mm->stages;
    const double *sums = (const double *) p->sums + (size_t) pixel * mm->group;
    for (uint32_t n = 0; n < mm->group; n++) {
        uint8_t *to = p->line + n * mm->out_bytes;
        if (stages->activation.lut) {
            const uint16_t half = activate(&stages->activation, (float) sums[n]);
            memcpy(to, &half, sizeof(half));
        } else if (stages->operand.with) {
            const float other = operand_at(p, pixel, group * mm->group + n);
            convert_float(to, mm->out, combine(stages->operand.with, (float) sums[n], other));
        } else {
            convert_float(to, mm->out, sums[n]);
        }
    }
    writer_store(&p->writer, pixel, group, p->line);
}

static void multiply_floats(struct product *p)
{
    const struct matmul *mm = p->mm;
    floats_best->widen(mm->in, p->packed, p->pixels * p->depth, p->rows);
    for (uint32_t group = 0; group < p->writer.groups; group++) {
        const double *kernels = weights_of(mm, p->weights, group, p->room);
        floats_best->multiply(p->rows, p->pixels, p->depth, kernels, p->sums);
        for (uint32_t pixel = 0; pixel < p->pixels; pixel++) {
            store_floats(p, pixel, group);
        }
    }
}

/* --- depthwise: one filter per channel, [group of channels][y][x][channel] ------------------- */

/* Returns the index of a channel's value in a row, for tap 0.  The value for the next tap is one
 * tile further. */
static size_t window_at(const struct product *p, uint32_t channel)
{
    return (size_t) (channel / TILE) * p->mm->kernel_height * p->mm->kernel_width * TILE +
           channel % TILE;
}

/* Returns the number of channels of a group, and the offset of its first filter. */
static uint32_t filters(const struct product *p, uint32_t group, size_t *first)
{
    const struct matmul *mm = p->mm;
    const uint32_t start = group * mm->group, left = mm->k - start;
    *first = (size_t) start * mm->kernel_height * mm->kernel_width;
    return left < mm->group ? left : mm->group;
}

static void filter_ints(struct product *p, uint32_t group)
{
    const uint32_t taps = p->mm->kernel_height * p->mm->kernel_width;
    const int32_t offset = p->mm->stages.requantisation.weight_offset;
    size_t first;
    const uint32_t channels = filters(p, group, &first);
    const int8_t *filter = (const int8_t *) p->weights + first, *rows = p->rows;
    int32_t *sums = p->sums;
    for (size_t m = 0; m < p->pixels; m++) {
        for (uint32_t n = 0; n < channels; n++) {
            const int8_t *window = rows + m * p->depth + window_at(p, group * p->mm->group + n);
            int32_t sum = 0;
            for (uint32_t tap = 0; tap < taps; tap++) {
                sum += window[tap * TILE] * (filter[tap * channels + n] + offset);
            }
            sums[(n / DOT_GROUP * p->pixels + m) * DOT_GROUP + n % DOT_GROUP] = sum;
        }
    }
}

static void filter_floats(struct product *p, uint32_t group)
{
    const uint32_t taps = p->mm->kernel_height * p->mm->kernel_width;
    size_t first;
    const uint32_t channels = filters(p, group, &first);
    double *filter = p->room, *sums = p->sums;
    const double *rows = p->rows;
    floats_best->widen(p->mm->in, p->weights + 2 * first, (size_t) taps * channels, filter);
    for (size_t m = 0; m < p->pixels; m++) {
        for (uint32_t n = 0; n < channels; n++) {
            const double *window = rows + m * p->depth + window_at(p, group * p->mm->group + n);
            double sum = 0;
            for (uint32_t tap = 0; tap < taps; tap++) {
                sum += window[tap * TILE] * filter[tap * channels + n];
            }
            sums[m * p->mm->group + n] = sum;
        }
    }
}

static void filter_channels(struct product *p)
{
    const bool is_float = p->mm->in != INT8;
    if (is_float) {
        floats_best->widen(p->mm->in, p->packed, p->pixels * p->depth, p->rows);
    } else {
        memset(p->totals, 0, p->pixels * sizeof(*p->totals)); /* the sums include the offset */
    }
    for (uint32_t group = 0; group < p->writer.groups; group++) {
        if (is_float) {
            filter_floats(p, group);
            for (uint32_t pixel = 0; pixel < p->pixels; pixel++) {
                store_floats(p, pixel, group);
            }
        } else {
            filter_ints(p, group);
            store_group(p, group);
        }
    }
}

/* --- the task --------------------------------------------------------------------------------- */

/* Allocates memory for the operands of a task, in the scratch block of the core. */
static bool allocate(struct product *p)
{
    const struct matmul *mm = p->mm;
    const bool is_float = mm->format->group == FLOAT_GROUP;
    const size_t value = is_float ? sizeof(double) : sizeof(int8_t);
    const size_t sum = is_float ? sizeof(double) : sizeof(int32_t);
    const size_t packed = round_up(p->pixels * p->depth * mm->format->bits / 8, 64);
    const size_t rows = mm->in == INT8 ? 0 : round_up(p->pixels * p->depth * value, 64);
    const size_t room = round_up(p->depth * mm->group * value, 64);
    const size_t sums = round_up(p->pixels * mm->group * sum, 64);
    const size_t totals = mm->out == TO_INT8 ? round_up(p->pixels * sizeof(*p->totals), 64) : 0;
    uint8_t *bytes = scratch_get(&p->run->worker->scratch,
                                 packed + rows + room + sums + totals + MAX_GROUP_BYTES);
    if (!bytes) {
        return refuse(p->run->why, "the host has no memory for the simulation");
    }
    p->packed = bytes;
    p->rows = rows ? bytes + packed : bytes;
    p->room = bytes + packed + rows;
    p->sums = bytes + packed + rows + room;
    p->totals = (int64_t *) (bytes + packed + rows + room + sums);
    p->line = bytes + packed + rows + room + sums + totals;
    return true;
}

static const uint8_t *source(struct run *run, uint32_t address, uint64_t size, const char *what)
{
    const uint8_t *bytes = dma(run, address, size, what);
    return bytes && apart(run, bytes, size, what) ? bytes : NULL;
}

/* Finds the biases, or the surfaces of the operand, that the DPU reads. */
static bool open_sources(struct product *p)
{
    const struct matmul *mm = p->mm;
    const struct operand *operand = &mm->stages.operand;
    const uint64_t surface = (uint64_t) ATOM * p->pixels, pairs = mm->n / (2 * HALVES);
    if (mm->out == TO_INT8) {
        p->biases = source(p->run, mm->stages.requantisation.biases, mm->real_n * sizeof(int32_t),
                           "biases");
        return p->biases;
    }
    for (int odd = 0; odd < 2 && operand->with; odd++) {
        const uint64_t size = (pairs - 1) * operand->pitch + surface;
        p->operand[odd] = source(p->run, operand->first[odd], size, "operand");
        if (!p->operand[odd]) {
            return false;
        }
    }
    return true;
}

bool matmul_run(struct run *run, const struct matmul *mm)
{
    struct product p = {
        .run = run,
        .mm = mm,
        .pixels = (size_t) mm->pixels_x * mm->pixels_y,
        .depth = depth_of(mm),
        .writer = {.row = (uint64_t) ATOM * (mm->out_width + mm->notch),
                   .rows = mm->out_height,
                   .column = ATOM,
                   .columns = mm->out_width,
                   .surface = mm->surface_pitch,
                   .surfaces = mm->surfaces,
                   .group = mm->group_pitch,
                   .groups = mm->n / mm->group},
    };
    p.weights = dma(run, mm->weights, mm->weight_bytes, "weights");
    if (!p.weights || !writer_open(run, mm->output, &p.writer) ||
        !apart(run, p.weights, mm->weight_bytes, "weights") || !open_sources(&p) || !allocate(&p) ||
        !features_gather(run, mm, p.packed)) {
        return false;
    }
    if (!run->write) {
        return true;
    }
    if (mm->depthwise) {
        filter_channels(&p);
    } else if (mm->format->group == FLOAT_GROUP) {
        multiply_floats(&p);
    } else {
        multiply_ints(&p);
    }
    return true;
}
