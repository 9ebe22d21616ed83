/*
 * Pooling: PPU_RDMA reads a cube of float16, and PPU reduces each window (enable 0x60).
 *
 * The maximum or minimum of a window is exact; cells outside the cube do not change it.  A mean is
 * sum * recip_w * recip_h * 2^-32 with the reciprocals float16(65536 / k); it includes the cells
 * outside the cube, as 0.  The simulator rounds a mean once; the precision inside the hardware is
 * unknown.  Facts: rocket-userspace, gen_pool_fp16, as run on silicon.
 */
#include "npu.h"

#include <math.h>
#include <string.h>

enum method { MEAN, LARGEST, SMALLEST };
enum { FLYING = 0x10, FP16_CODE = 2, HALVES = ATOM / 2 };
enum { MINUS_INFINITY = 0xFC00, SIXTEEN_BITS = 0xFFFF };

struct pool {
    enum method method;
    uint32_t in_width, in_height, width, height, surfaces;
    uint32_t kernel_width, kernel_height, stride_x, stride_y, left, top, right, bottom;
    uint64_t line, surface; /* bytes, of the input */
    double share;           /* factor of each cell in a mean */
    const uint8_t *from;
};

#define EQUAL(reg, expected, reason) CHECK(reg, VALUE(reg) == (uint32_t) (expected), reason)

static bool check_sizes(struct run *run, struct pool *pool)
{
    const uint32_t channels = VALUE(PPU_DATA_CUBE_IN_CHANNEL) + 1;
    pool->in_width = VALUE(PPU_DATA_CUBE_IN_WIDTH) + 1;
    pool->in_height = VALUE(PPU_DATA_CUBE_IN_HEIGHT) + 1;
    pool->width = VALUE(PPU_DATA_CUBE_OUT_WIDTH) + 1;
    pool->height = VALUE(PPU_DATA_CUBE_OUT_HEIGHT) + 1;
    pool->surfaces = (uint32_t) div_up(channels, HALVES);
    EQUAL(PPU_DATA_CUBE_OUT_CHANNEL, channels - 1, "a pooling keeps the channels");
    EQUAL(PPU_RDMA_CUBE_IN_WIDTH, pool->in_width - 1, "not the cube that is pooled");
    EQUAL(PPU_RDMA_CUBE_IN_HEIGHT, pool->in_height - 1, "not the cube that is pooled");
    EQUAL(PPU_RDMA_CUBE_IN_CHANNEL, channels - 1, "not the cube that is pooled");
    return true;
}

/* Checks that every window contains a part of the cube, and that none reaches beyond the padding.
 * */
static bool check_windows(struct run *run, struct pool *pool)
{
    const uint32_t kernel = VALUE(PPU_POOLING_KERNEL_CFG), pads = VALUE(PPU_POOLING_PADDING_CFG);
    pool->kernel_width = (kernel & 0xF) + 1;
    pool->kernel_height = (kernel >> 8 & 0xF) + 1;
    pool->stride_x = (kernel >> 16 & 0xF) + 1;
    pool->stride_y = (kernel >> 20 & 0xF) + 1;
    pool->left = pads & 7;
    pool->top = pads >> 4 & 7;
    pool->right = pads >> 8 & 7;
    pool->bottom = pads >> 12;
    CHECK(PPU_POOLING_PADDING_CFG,
          pool->left < pool->kernel_width && pool->right < pool->kernel_width &&
              pool->top < pool->kernel_height && pool->bottom < pool->kernel_height,
          "a window lies beside the cube");
    CHECK(PPU_DATA_CUBE_OUT_WIDTH,
          (pool->width - 1) * pool->stride_x + pool->kernel_width <=
              pool->left + pool->in_width + pool->right,
          "windows reach beyond the padding");
    CHECK(PPU_DATA_CUBE_OUT_HEIGHT,
          (pool->height - 1) * pool->stride_y + pool->kernel_height <=
              pool->top + pool->in_height + pool->bottom,
          "windows reach beyond the padding");
    return true;
}

static bool check_method(struct run *run, struct pool *pool)
{
    const uint32_t mode = VALUE(PPU_OPERATION_MODE_CFG), beside = VALUE(PPU_PADDING_VALUE_1_CFG);
    const uint32_t recip_w = VALUE(PPU_RECIP_KERNEL_WIDTH);
    const uint32_t recip_h = VALUE(PPU_RECIP_KERNEL_HEIGHT);
    pool->method = mode & 3;
    CHECK(PPU_OPERATION_MODE_CFG, mode == (FLYING | pool->method) && pool->method <= SMALLEST,
          "not a mean, maximum or minimum of the cube that PPU_RDMA reads");
    if (pool->method == MEAN) {
        CHECK(PPU_RECIP_KERNEL_WIDTH, recip_w && recip_w <= SIXTEEN_BITS, "not a float16");
        CHECK(PPU_RECIP_KERNEL_HEIGHT, recip_h && recip_h <= SIXTEEN_BITS, "not a float16");
        EQUAL(PPU_PADDING_VALUE_1_CFG, 0, "a mean counts cells beside the cube as 0");
        pool->share = (double) half_to_float((uint16_t) recip_w) *
                      half_to_float((uint16_t) recip_h) * 0x1p-32;
        return true;
    }
    EQUAL(PPU_RECIP_KERNEL_WIDTH, 0, "for a mean alone");
    EQUAL(PPU_RECIP_KERNEL_HEIGHT, 0, "for a mean alone");
    if (VALUE(PPU_POOLING_PADDING_CFG)) {
        CHECK(PPU_POOLING_PADDING_CFG, pool->method == LARGEST,
              "padding is not known to work with a minimum");
        EQUAL(PPU_PADDING_VALUE_1_CFG, MINUS_INFINITY, "the one value known to work");
        return true;
    }
    CHECK(PPU_PADDING_VALUE_1_CFG, !beside, "a padding value without padding");
    return true;
}

static bool check_places(struct run *run, struct pool *pool)
{
    pool->line = VALUE(PPU_RDMA_SRC_LINE_STRIDE);
    pool->surface = VALUE(PPU_RDMA_SRC_SURF_STRIDE);
    EQUAL(PPU_DATA_FORMAT, VALUE(PPU_DST_SURF_STRIDE) | FP16_CODE,
          "float16, and the stride of the output's surfaces");
    CHECK(PPU_RDMA_SRC_BASE_ADDR, VALUE(PPU_RDMA_SRC_BASE_ADDR) % ATOM == 0,
          "not a multiple of 16");
    EQUAL(PPU_RDMA_SRC_LINE_STRIDE, pool->in_width * ATOM, "lines do not follow each other");
    CHECK(PPU_RDMA_SRC_SURF_STRIDE, pool->surface >= pool->line * pool->in_height,
          "surfaces overlap");
    return true;
}

/* --- the windows ------------------------------------------------------------------------------ */

static double cell(const struct pool *pool, uint32_t surface, int64_t y, int64_t x, uint32_t half)
{
    uint16_t bits;
    if (y < 0 || y >= pool->in_height || x < 0 || x >= pool->in_width) {
        return pool->method == LARGEST ? -INFINITY : 0;
    }
    memcpy(&bits,
           pool->from + surface * pool->surface + (uint64_t) y * pool->line + (uint64_t) x * ATOM +
               half * sizeof(bits),
           sizeof(bits));
    return half_to_float(bits);
}

static double reduce(const struct pool *pool, uint32_t surface, uint32_t y, uint32_t x,
                     uint32_t half)
{
    const int64_t from_y = (int64_t) y * pool->stride_y - pool->top;
    const int64_t from_x = (int64_t) x * pool->stride_x - pool->left;
    double result = cell(pool, surface, from_y, from_x, half);
    for (uint32_t i = 1; i < pool->kernel_height * pool->kernel_width; i++) {
        const double next = cell(pool, surface, from_y + i / pool->kernel_width,
                                 from_x + i % pool->kernel_width, half);
        if (pool->method == MEAN) {
            result += next;
        } else if (pool->method == LARGEST ? next > result : next < result) {
            result = next;
        }
    }
    return pool->method == MEAN ? result * pool->share : result;
}

static void reduce_all(const struct pool *pool, const struct writer *w)
{
    for (uint32_t s = 0; s < pool->surfaces; s++) {
        for (uint32_t pixel = 0; pixel < pool->width * pool->height; pixel++) {
            uint16_t halves[HALVES];
            for (uint32_t i = 0; i < HALVES; i++) {
                halves[i] =
                    double_to_half(reduce(pool, s, pixel / pool->width, pixel % pool->width, i));
            }
            writer_store(w, pixel, s, (const uint8_t *) halves);
        }
    }
}

bool pool_run(struct run *run)
{
    struct pool pool = {0};
    if (!program_complete(run, POOLING, false) || !check_sizes(run, &pool) ||
        !check_windows(run, &pool) || !check_method(run, &pool) || !check_places(run, &pool) ||
        !program_constants(run, POOLING, false)) {
        return false;
    }
    struct writer w = {.row = (uint64_t) pool.width * ATOM,
                       .rows = pool.height,
                       .column = ATOM,
                       .columns = pool.width,
                       .surfaces = 1,
                       .group = VALUE(PPU_DST_SURF_STRIDE),
                       .groups = pool.surfaces};
    const uint64_t size = (pool.surfaces - 1) * pool.surface + pool.in_height * pool.line;
    const uint64_t written = (uint64_t) pool.width * pool.height * pool.surfaces * ATOM;
    pool.from = dma(run, VALUE(PPU_RDMA_SRC_BASE_ADDR), size, "operand");
    if (!pool.from || !writer_open(run, VALUE(PPU_DST_BASE_ADDR), &w) ||
        !apart(run, pool.from, size, "operand")) {
        return false;
    }
    cost_moved("pooling", written / 2, size, written, run);
    if (run->write) {
        reduce_all(&pool, &w);
    }
    return true;
}
