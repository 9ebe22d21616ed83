/*
 * Operations of the DPU that bypass the MAC array, called "flying" (enable 0x18).
 *
 * C = A + B in int32: MRDMA reads A, ERDMA reads B, both as surfaces of four channels; C may be the
 * memory of A. The sum saturates here; no public source describes overflow in hardware.
 * Facts: happyme531's register list, which is used with RK_NPU_I8_NPU_REDUCE only.  Other
 * projects doubt these facts, so try the addition on a board first.
 *
 * C = f(A) in float16, by the LUT (lut.c), for one surface.  Lists for this operation omit
 * registers without effect.  Facts: rocket-userspace, gen_lut_activation_fp16, as run on silicon.
 */
#include "npu.h"

#include <string.h>

enum { LANES = 4, MAX_CHANNELS = 1024 };
enum { SUM_INT32 = 0x90000004, SUM_FP32 = 0xB0000004 };

/* --- C = A + B -------------------------------------------------------------------------------- */

static bool check(struct run *run)
{
    const uint32_t last_row = VALUE(DPU_DATA_CUBE_WIDTH), pitch = (last_row + 1) * ATOM;
    const uint32_t last = VALUE(DPU_WDMA_SIZE_0);
    const uint32_t format = VALUE(DPU_DATA_FORMAT);
    CHECK(DPU_DATA_FORMAT, format == SUM_INT32 || format == SUM_FP32, "not an int32 addition");
    CHECK(DPU_WDMA_SIZE_0, last < MAX_CHANNELS && last % LANES == LANES - 1,
          "channels are a multiple of 4, at most 1024");
    CHECK(DPU_DATA_CUBE_CHANNEL, VALUE(DPU_DATA_CUBE_CHANNEL) == (last << 16 | last),
          "not the channels of WDMA_SIZE_0");
    CHECK(RDMA_DATA_CUBE_CHANNEL, VALUE(RDMA_DATA_CUBE_CHANNEL) == last,
          "not the channels of WDMA_SIZE_0");
    CHECK(DPU_WDMA_SIZE_1, VALUE(DPU_WDMA_SIZE_1) == last_row, "not the cube's width");
    CHECK(RDMA_DATA_CUBE_WIDTH, VALUE(RDMA_DATA_CUBE_WIDTH) == last_row, "not the cube's width");
    CHECK(DPU_DST_SURF_STRIDE, VALUE(DPU_DST_SURF_STRIDE) == pitch, "not rows of 16 bytes");
    CHECK(DPU_SURFACE_ADD, VALUE(DPU_SURFACE_ADD) == pitch, "not rows of 16 bytes");
    CHECK(RDMA_EW_SURF_STRIDE, VALUE(RDMA_EW_SURF_STRIDE) == pitch, "not rows of 16 bytes");
    CHECK(DPU_DST_BASE_ADDR, VALUE(DPU_DST_BASE_ADDR) % ATOM == 0, "not a multiple of 16");
    CHECK(RDMA_SRC_BASE_ADDR, VALUE(RDMA_SRC_BASE_ADDR) % ATOM == 0, "not a multiple of 16");
    CHECK(RDMA_EW_BASE_ADDR, VALUE(RDMA_EW_BASE_ADDR) % ATOM == 0, "not a multiple of 16");
    return true;
}

static void add(uint8_t *to, const uint8_t *a, const uint8_t *b, bool to_float)
{
    int32_t x, y;
    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    const int64_t wide = (int64_t) x + y;
    const int32_t sum = (int32_t) (wide > INT32_MAX   ? INT32_MAX
                                   : wide < INT32_MIN ? INT32_MIN
                                                      : wide);
    const float single = (float) sum;
    if (to_float) {
        memcpy(to, &single, sizeof(single));
    } else {
        memcpy(to, &sum, sizeof(sum));
    }
}

static bool addition_run(struct run *run)
{
    if (!program_complete(run, ADDITION, true) || !program_constants(run, ADDITION, true) ||
        !check(run)) {
        return false;
    }
    const uint32_t rows = VALUE(DPU_DATA_CUBE_WIDTH) + 1;
    const uint32_t surfaces = (VALUE(DPU_WDMA_SIZE_0) + 1) / LANES;
    const uint64_t size = (uint64_t) surfaces * rows * ATOM;
    struct writer w = {.row = size,
                       .rows = 1,
                       .column = ATOM,
                       .columns = rows,
                       .surface = size,
                       .surfaces = 1,
                       .group = (uint64_t) rows * ATOM,
                       .groups = surfaces};
    const uint8_t *a = dma(run, VALUE(RDMA_SRC_BASE_ADDR), size, "first operand");
    const uint8_t *b = a ? dma(run, VALUE(RDMA_EW_BASE_ADDR), size, "second operand") : NULL;
    if (!b || !writer_open(run, VALUE(DPU_DST_BASE_ADDR), &w) ||
        (a != w.bytes && !apart(run, a, size, "first operand")) ||
        !apart(run, b, size, "second operand")) {
        return false;
    }
    cost_moved("int32 add", size / 4, 2 * size, size, run);
    for (uint64_t at = 0; at < size && run->write; at += 4) {
        add(w.bytes + at, a + at, b + at, VALUE(DPU_DATA_FORMAT) == SUM_FP32);
    }
    return true;
}

/* --- C = f(A) --------------------------------------------------------------------------------- */

enum { MAX_COLUMNS = 4096 }; /* 4,096 gave right results; the last 54 of 8,191 were wrong */

static bool check_flat(struct run *run)
{
    const uint32_t last = VALUE(DPU_DATA_CUBE_WIDTH), pitch = (last + 1) * ATOM;
    CHECK(DPU_DATA_CUBE_WIDTH, last < MAX_COLUMNS, "more than 4096 columns are not known to work");
    CHECK(DPU_WDMA_SIZE_1, VALUE(DPU_WDMA_SIZE_1) == last, "not the cube's width");
    CHECK(RDMA_DATA_CUBE_WIDTH, VALUE(RDMA_DATA_CUBE_WIDTH) == last, "not the cube's width");
    CHECK(DPU_DST_SURF_STRIDE, VALUE(DPU_DST_SURF_STRIDE) == pitch, "not the cube's surface");
    CHECK(DPU_SURFACE_ADD, VALUE(DPU_SURFACE_ADD) == pitch, "not the cube's surface");
    CHECK(DPU_DST_BASE_ADDR, VALUE(DPU_DST_BASE_ADDR) % ATOM == 0, "not a multiple of 16");
    CHECK(RDMA_SRC_BASE_ADDR, VALUE(RDMA_SRC_BASE_ADDR) % ATOM == 0, "not a multiple of 16");
    return true;
}

static bool activation_run(struct run *run)
{
    struct activation activation;
    if (!program_complete(run, ACTIVATION, true) || !check_flat(run) ||
        !activation_check(run, &activation) || !program_constants(run, ACTIVATION, true)) {
        return false;
    }
    const uint32_t columns = VALUE(DPU_DATA_CUBE_WIDTH) + 1;
    struct writer w = {.row = (uint64_t) columns * ATOM,
                       .rows = 1,
                       .column = ATOM,
                       .columns = columns,
                       .surfaces = 1,
                       .groups = 1};
    const uint64_t size = (uint64_t) columns * ATOM;
    const uint8_t *from = dma(run, VALUE(RDMA_SRC_BASE_ADDR), size, "operand");
    if (!from || !writer_open(run, VALUE(DPU_DST_BASE_ADDR), &w) ||
        (from != w.bytes && !apart(run, from, size, "operand"))) {
        return false;
    }
    cost_moved("LUT", size / 2, size, size, run);
    for (uint64_t at = 0; at < size && run->write; at += 2) {
        uint16_t half;
        memcpy(&half, from + at, sizeof(half));
        half = activate(&activation, half_to_float(half));
        memcpy(w.bytes + at, &half, sizeof(half));
    }
    return true;
}

bool flying_run(struct run *run)
{
    enum { EW_LUT_BYPASS = 0x80 };
    return VALUE(DPU_EW_CFG) & EW_LUT_BYPASS ? addition_run(run) : activation_run(run);
}
