/*
 * One matmul task: features and weights in, the exact sums, the output cube out.
 *
 * Integers: the sums are exact and saturate to the output type.  int8 -> fp32 or fp16 rounds the
 * sum once.  Floats: products and sums are made in double and rounded once at the end; what
 * hardware keeps inside is of single precision, so its results differ from these by about 1e-7 of
 * the sum of the products' magnitudes.  Subnormals and NaN are not certified on hardware; here
 * they are kept.
 */
#include "npu.h"

#include <string.h>

enum { ATOM = 16, DOT_GROUP = 32, TILE = 32, FLOAT_GROUP = 16, MAX_GROUP_BYTES = 256 };

/* --- features: the address generator of CNA, into rows of K --------------------------------- */

/* The atom of (line, surface); those of a line's pixels follow each other. */
static uint32_t feature_address(const struct matmul *mm, uint32_t line, uint32_t surface)
{
    const int64_t width = mm->width, stride = mm->line_stride;
    const int64_t pitch = (mm->group_line_off ? width : 4 * width) + mm->surface_stride;
    const int64_t start = mm->group_line_off ? line * stride : line / 4 * stride + line % 4 * width;
    return mm->features + ATOM * (uint32_t) (start + surface * pitch);
}

static void spread_atoms(uint8_t *to, const uint8_t *from, uint32_t pixels, size_t row)
{
    for (uint32_t w = 0; w < pixels; w++) {
        memcpy(to + w * row, from + w * ATOM, ATOM);
    }
}

/* Fills rows[M][bytes of K].  Neighbouring surfaces that also are neighbours in memory are one. */
static bool gather(struct run *run, const struct matmul *mm, uint8_t *rows)
{
    const size_t row = (size_t) mm->k * mm->format->bits / 8;
    const uint32_t surfaces = (uint32_t) (row / ATOM);
    const bool plain = mm->width == 1 && mm->group_line_off && mm->surface_stride == 0;
    for (uint32_t h = 0; h < mm->height; h++, rows += mm->width * row) {
        for (uint32_t s = 0; s < surfaces; s += plain ? surfaces : 1) {
            const uint64_t size = plain ? row : (uint64_t) mm->width * ATOM;
            const uint8_t *from = dma(run, feature_address(mm, h, s), size, "features");
            if (!from || !apart(run, from, size, "features")) {
                return false;
            }
            if (plain) {
                memcpy(rows, from, row);
            } else {
                spread_atoms(rows + s * ATOM, from, mm->width, row);
            }
        }
    }
    return true;
}

/* --- output: the address generator of the DPU ------------------------------------------------ */

struct dimension {
    uint64_t stride;
    uint32_t count;
};

/* Whether each stride steps over all that the smaller ones reach: then no unit is written twice. */
static bool nests(struct dimension *d, int count)
{
    uint64_t extent = ATOM;
    for (int i = 1; i < count; i++) {
        for (int j = i; j > 0 && d[j].stride < d[j - 1].stride; j--) {
            const struct dimension swap = d[j];
            d[j] = d[j - 1];
            d[j - 1] = swap;
        }
    }
    for (int i = 0; i < count; i++) {
        if (d[i].count > 1 && d[i].stride < extent) {
            return false;
        }
        extent += d[i].stride * (d[i].count - 1);
    }
    return true;
}

/* Whether a task of this job may write into a buffer. */
static bool may_write(struct run *run, const struct bo *bo)
{
    const struct job *job = run->job;
    bool listed = job->driver == RKNPU; /* which has no lists */
    for (uint32_t i = job->in_count; i < job->bo_count; i++) {
        listed |= job->bos[i] == bo;
    }
    if (settings.strict && bo == run->list) {
        return refuse(run->why, "output goes into buffer %u, which holds the commands", bo->handle);
    }
    if (settings.strict && !listed) {
        return refuse(run->why,
                      "output goes into buffer %u, which the job does not list as one: "
                      "nothing would wait for it",
                      bo->handle);
    }
    return true;
}

bool apart(struct run *run, const uint8_t *bytes, uint64_t size, const char *what)
{
    return bytes + size <= run->out || run->out + run->out_size <= bytes ||
           refuse(run->why, "output overlaps the %s", what);
}

bool writer_open(struct run *run, uint32_t address, struct writer *w)
{
    struct dimension d[] = {{w->row, w->rows},
                            {w->column, w->columns},
                            {w->surface, w->surfaces},
                            {w->group, w->groups}};
    w->size = ATOM;
    for (int i = 0; i < 4; i++) {
        w->size += d[i].stride * (d[i].count - 1);
    }
    w->bytes = dma(run, address, w->size, "output");
    if (!w->bytes) {
        return false;
    }
    if (!nests(d, 4)) {
        return refuse(run->why, "output at %#x: surfaces overlap", address);
    }
    run->out = w->bytes;
    run->out_size = w->size;
    return may_write(run, space_find(run->space, address));
}

/* Stores the surfaces of one group of one pixel. */
static void store(const struct writer *w, uint32_t pixel, uint32_t group, const uint8_t *from)
{
    uint8_t *to =
        w->bytes + pixel / w->columns * w->row + pixel % w->columns * w->column + group * w->group;
    for (uint32_t s = 0; s < w->surfaces; s++) {
        memcpy(to + s * w->surface, from + s * ATOM, ATOM);
    }
}

/* --- conversion of sums to the output type --------------------------------------------------- */

static void put(uint8_t *to, enum output type, double value)
{
    if (type == TO_FP32) {
        const float single = (float) value;
        memcpy(to, &single, sizeof(single));
    } else {
        const uint16_t half = type == TO_FP16 ? double_to_half(value) : double_to_bfloat(value);
        memcpy(to, &half, sizeof(half));
    }
}

static void put_int(uint8_t *to, enum output type, int32_t value)
{
    const int16_t small = (int16_t) (value > INT16_MAX   ? INT16_MAX
                                     : value < INT16_MIN ? INT16_MIN
                                                         : value);
    if (type == TO_INT16) {
        memcpy(to, &small, sizeof(small));
    } else {
        put(to, type, value);
    }
}

/* --- integers ---------------------------------------------------------------------------------- */

static void expand_nibbles(int8_t *to, const uint8_t *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        to[2 * i] = (int8_t) ((from[i] & 0xF) ^ 8) - 8;
        to[2 * i + 1] = (int8_t) ((from[i] >> 4) ^ 8) - 8;
    }
}

/* [tiles][64][32] nibbles -> two groups of [tiles][32][32] bytes. */
static void expand_weights(int8_t *to, const uint8_t *from, size_t tiles)
{
    const size_t half = DOT_GROUP * TILE;
    for (size_t t = 0; t < tiles; t++, from += half) {
        expand_nibbles(to + t * half, from, half / 2);
        expand_nibbles(to + (tiles + t) * half, from + half / 2, half / 2);
    }
}

struct operands {
    uint8_t *packed;        /* features as they lie in memory, [M][bytes of K] */
    void *rows;             /* the same as int8 or double, [M][K] */
    const uint8_t *weights; /* in the NPU's memory */
    void *kernels;          /* one group of them, unpacked: int4 and floats */
    void *sums;             /* of one group: int32 or double, [M][group] */
    uint8_t *line;          /* one pixel's outputs of one group */
    size_t pixels;
};

static void store_ints(const struct matmul *mm, const struct writer *w, const struct operands *o,
                       uint32_t group)
{
    const uint32_t channels = mm->format->group;
    const int32_t *sums = o->sums;
    for (uint32_t m = 0; m < o->pixels; m++) {
        if (mm->out == TO_INT32) {
            store(w, m, group, (const uint8_t *) (sums + (size_t) m * DOT_GROUP));
            continue;
        }
        for (uint32_t n = 0; n < channels; n++) {
            const size_t part = n / DOT_GROUP * o->pixels + m;
            put_int(o->line + n * mm->out_bytes, mm->out, sums[part * DOT_GROUP + n % DOT_GROUP]);
        }
        store(w, m, group, o->line);
    }
}

static void multiply_ints(const struct matmul *mm, const struct writer *w, struct operands *o)
{
    const size_t tiles = mm->k / TILE, part = tiles * DOT_GROUP * TILE;
    const uint32_t parts = mm->format->group / DOT_GROUP; /* 1, or 2 for int4 */
    const size_t bytes = part * parts * mm->format->bits / 8;
    if (mm->in == INT4) {
        expand_nibbles(o->rows, o->packed, o->pixels * mm->k / 2);
    }
    for (uint32_t group = 0; group < w->groups; group++) {
        const int8_t *kernels = (const int8_t *) o->weights + group * bytes;
        if (mm->in == INT4) {
            expand_weights(o->kernels, o->weights + group * bytes, tiles);
            kernels = o->kernels;
        }
        for (uint32_t p = 0; p < parts; p++) {
            dot_best(o->rows, o->pixels, mm->k, kernels + p * part, tiles,
                     (int32_t *) o->sums + p * o->pixels * DOT_GROUP);
        }
        store_ints(mm, w, o, group);
    }
}

/* --- floats -------------------------------------------------------------------------------------- */

/* [K / tile][16][tile] of a group -> double [16][K]. */
static void expand_kernels(const struct matmul *mm, const uint8_t *from, double *to)
{
    const uint32_t tile = mm->format->k_tile;
    const size_t bytes = (size_t) tile * mm->format->bits / 8;
    for (uint32_t k = 0; k < mm->k; k += tile) {
        for (uint32_t n = 0; n < FLOAT_GROUP; n++, from += bytes) {
            floats_best->widen(mm->in, from, tile, to + (size_t) n * mm->k + k);
        }
    }
}

static void multiply_floats(const struct matmul *mm, const struct writer *w, struct operands *o)
{
    const size_t bytes = (size_t) mm->k * FLOAT_GROUP * mm->format->bits / 8;
    const double *sums = o->sums;
    floats_best->widen(mm->in, o->packed, o->pixels * mm->k, o->rows);
    for (uint32_t group = 0; group < w->groups; group++) {
        expand_kernels(mm, o->weights + group * bytes, o->kernels);
        floats_best->multiply(o->rows, o->pixels, mm->k, o->kernels, o->sums);
        for (uint32_t m = 0; m < o->pixels; m++) {
            for (uint32_t n = 0; n < FLOAT_GROUP; n++) {
                put(o->line + n * mm->out_bytes, mm->out, sums[(size_t) m * FLOAT_GROUP + n]);
            }
            store(w, m, group, o->line);
        }
    }
}

/* --- the task ---------------------------------------------------------------------------------- */

/* Room for the operands of a task, in one piece that the core keeps. */
static bool allocate(struct run *run, const struct matmul *mm, struct operands *o)
{
    const bool is_float = mm->format->group == FLOAT_GROUP;
    const size_t value = is_float ? sizeof(double) : sizeof(int8_t);
    const size_t sum = is_float ? sizeof(double) : sizeof(int32_t);
    const size_t packed = round_up(o->pixels * mm->k * mm->format->bits / 8, 64);
    const size_t rows = mm->in == INT8 ? 0 : round_up(o->pixels * mm->k * value, 64);
    const size_t kernels =
        mm->in == INT8 ? 0 : round_up((size_t) mm->k * mm->format->group * value, 64);
    const size_t sums = round_up(o->pixels * mm->format->group * sum, 64);
    uint8_t *bytes =
        scratch_get(&run->worker->scratch, packed + rows + kernels + sums + MAX_GROUP_BYTES);
    if (!bytes) {
        return refuse(run->why, "the host has no memory for the simulation");
    }
    o->packed = bytes;
    o->rows = rows ? bytes + packed : bytes;
    o->kernels = bytes + packed + rows;
    o->sums = bytes + packed + rows + kernels;
    o->line = bytes + packed + rows + kernels + sums;
    return true;
}

bool matmul_run(struct run *run, const struct matmul *mm)
{
    struct operands o = {.pixels = (size_t) mm->width * mm->height};
    struct writer w = {
        .row = (uint64_t) ATOM * (mm->out_width + mm->notch),
        .rows = mm->out_height,
        .column = ATOM,
        .columns = mm->out_width,
        .surface = mm->surface_pitch,
        .surfaces = mm->surfaces,
        .group = mm->group_pitch,
        .groups = mm->n / mm->format->group,
    };
    const uint64_t weights = (uint64_t) mm->k * mm->n * mm->format->bits / 8;
    o.weights = dma(run, mm->weights, weights, "weights");
    if (!o.weights || !writer_open(run, mm->output, &w) ||
        !apart(run, o.weights, weights, "weights") || !allocate(run, mm, &o) ||
        !gather(run, mm, o.packed)) {
        return false;
    }
    if (!run->write) {
        return true;
    }
    if (mm->format->group == FLOAT_GROUP) {
        multiply_floats(mm, &w, &o);
    } else {
        multiply_ints(mm, &w, &o);
    }
    return true;
}
