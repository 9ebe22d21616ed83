/*
 * Checks the stages of the DPU after a sum, and the output cube, in the registers of DPU and
 * DPU_RDMA.
 *
 * The stages are, in this order: BS (bias), BN (scale), EW (an operand, or the LUT), OUT_CVT. Five
 * combinations ran on silicon: no stage; a scale for integers; an operand for each float16; a LUT
 * on float16; bias and requantisation to int8.  The registers of an enabled stage have checks here;
 * all other registers must have the constants of registers.inc.  Facts: rocket-userspace and its
 * notes, Mesa.
 */
#include "npu.h"

#include <string.h>

#define EQUAL(reg, expected, reason) CHECK(reg, VALUE(reg) == (uint32_t) (expected), reason)

/* DPU_EW_CFG for an operand with 16 bits per pixel.  Source: rocket-userspace, npu_dpu.h. */
static const uint32_t COMBINATIONS[] = {
    [ADD] = 0x108202C0,
    [MULTIPLY] = 0x108003C4,
    [MAXIMUM] = 0x108002C0,
    [MINIMUM] = 0x108102C0,
};
enum { OPERAND_16_BITS = 0x40000008 }; /* RDMA_ERDMA_CFG */
enum { BURST = 0x7800, READ_NOTHING = 0x10, HALF_TO_SINGLE = 0x08, DEPTHWISE = 0x06 };
enum { READ_OPERAND = 0x17D40 }; /* RDMA_FEATURE_MODE_CFG */
enum { BN_SCALES = 0x20040, EW_LOOKS_UP = 0x300, BS_ADDS_BIAS = 0x20150, READ_BIASES = 2 };
enum { MIN_OPERAND_PIXELS = 12 };
enum { WEIGHT_OFFSET_OF_FLOATS = 0x80 };
enum { MAX_SHIFT = 63, CVT_TYPE_AND_EXPONENT = 0x800FF000 }; /* no effect on integers */

/* Checks an operand of the output's shape: MRDMA reads its even surfaces, ERDMA the odd ones. */
static bool check_operand(struct run *run, struct matmul *mm)
{
    const uint32_t pixels = mm->out_width * mm->out_height, stride = VALUE(RDMA_EW_SURF_STRIDE);
    struct operand *operand = &mm->stages.operand;
    CHECK(DPU_EW_CFG, mm->in == FP16 && mm->out == TO_FP16,
          "an operand is known to work with float16 in and out alone");
    CHECK(RDMA_EW_SURF_STRIDE, pixels >= MIN_OPERAND_PIXELS,
          "with fewer than 12 pixels the NPU reads wrong surfaces of the operand");
    EQUAL(RDMA_EW_SURF_STRIDE, ATOM * pixels, "not the pixels of a surface");
    EQUAL(RDMA_SURF_NOTCH, stride, "not the size of the surface between two");
    EQUAL(RDMA_EW_SURF_NOTCH, stride, "not the size of the surface between two");
    EQUAL(RDMA_ERDMA_CFG, OPERAND_16_BITS, "not the value for an operand with 16 bits per pixel");
    EQUAL(RDMA_EW_BASE_ADDR, VALUE(RDMA_SRC_BASE_ADDR) + ATOM * pixels, "not the second surface");
    CHECK(RDMA_SRC_BASE_ADDR, VALUE(RDMA_SRC_BASE_ADDR) % ATOM == 0, "not a multiple of 16");
    operand->first[0] = VALUE(RDMA_SRC_BASE_ADDR);
    operand->first[1] = VALUE(RDMA_EW_BASE_ADDR);
    operand->pitch = 2 * (uint64_t) ATOM * pixels;
    run->judged[DPU_EW_CFG] = run->judged[RDMA_SRC_BASE_ADDR] = run->judged[RDMA_ERDMA_CFG] = true;
    run->judged[RDMA_EW_BASE_ADDR] = run->judged[RDMA_EW_SURF_STRIDE] = true;
    run->judged[RDMA_SURF_NOTCH] = run->judged[RDMA_EW_SURF_NOTCH] = true;
    return true;
}

static bool check_lut(struct run *run, struct matmul *mm)
{
    CHECK(DPU_BN_CFG, mm->in == FP16 && mm->out == TO_FP16 && !mm->depthwise,
          "a LUT is known to work with float16 in and out alone");
    EQUAL(DPU_EW_CFG, EW_LOOKS_UP, "BN scales, but nothing is looked up");
    run->judged[DPU_BN_CFG] = run->judged[DPU_EW_CFG] = true;
    run->judged[DPU_OUT_CVT_OFFSET] = run->judged[DPU_OUT_CVT_SHIFT] = true;
    for (int reg = DPU_BN_ALU_CFG; reg <= DPU_BN_MUL_CFG; reg++) {
        run->judged[reg] = true;
    }
    for (int reg = DPU_LUT_ACCESS_CFG; reg <= DPU_LUT_LE_SLOPE_SHIFT; reg++) {
        run->judged[reg] = true;
    }
    return activation_check(run, &mm->stages.activation);
}

/* Checks the bias, the weights' zero point and the int8 output, as in all of Mesa's convolutions.
 * */
static bool check_requantisation(struct run *run, struct matmul *mm)
{
    struct requantisation *to = &mm->stages.requantisation;
    const uint32_t pad = VALUE(CNA_PAD_CON1);
    to->biases = VALUE(RDMA_BS_BASE_ADDR);
    to->weight_offset = (int16_t) VALUE(DPU_BS_OW_OP);
    to->offset = (int32_t) VALUE(DPU_OUT_CVT_OFFSET);
    to->scale = VALUE(DPU_OUT_CVT_SCALE) & 0xFFFF;
    to->shift = VALUE(DPU_OUT_CVT_SHIFT);
    EQUAL(DPU_BS_CFG, BS_ADDS_BIAS, "int8 out is known to work with a bias alone");
    EQUAL(RDMA_BRDMA_CFG, READ_BIASES, "the biases are not read");
    CHECK(RDMA_BS_BASE_ADDR, to->biases % ATOM == 0, "not a multiple of 16");
    CHECK(DPU_OUT_CVT_SHIFT, to->shift && to->shift <= MAX_SHIFT, "bits besides a shift");
    CHECK(CORE_MISC_CFG, VALUE(CORE_MISC_CFG) & 1, "int8 out needs QD_EN");
    CHECK(CNA_PAD_CON1, mm->plain || mm->depthwise || (pad & 0xFF) == (pad >> 8 & 0xFF),
          "in a direct convolution the channels of the second byte are unknown");
    mm->pad[0] = (int8_t) pad;
    mm->pad[1] = (int8_t) (pad >> 8);
    run->judged[DPU_BS_CFG] = run->judged[RDMA_BRDMA_CFG] = run->judged[RDMA_BS_BASE_ADDR] = true;
    run->judged[DPU_BS_OW_OP] = run->judged[CNA_PAD_CON1] = true;
    run->judged[DPU_OUT_CVT_OFFSET] = run->judged[DPU_OUT_CVT_SHIFT] = true;
    return true;
}

/* Checks the scale of integer sums: (sum * scale) >> shift. */
static bool check_scale(struct run *run, struct matmul *mm)
{
    const bool free = mm->in == INT8 && mm->out != TO_INT32;
    struct requantisation *to = &mm->stages.requantisation;
    to->scale = VALUE(DPU_OUT_CVT_SCALE) & 0xFFFF;
    to->shift = free ? VALUE(DPU_OUT_CVT_SHIFT) & ~CVT_TYPE_AND_EXPONENT : 0;
    CHECK(DPU_OUT_CVT_SCALE, to->scale && (free || to->scale == 1),
          "not the identity of this output type");
    CHECK(DPU_OUT_CVT_SHIFT, to->shift <= MAX_SHIFT, "bits besides a shift");
    run->judged[DPU_OUT_CVT_SHIFT] = free;
    return true;
}

static bool check_stages(struct run *run, struct matmul *mm)
{
    for (int i = ADD; i <= MINIMUM; i++) {
        if (VALUE(DPU_EW_CFG) == COMBINATIONS[i]) {
            mm->stages.operand.with = (enum combination) i;
            return check_operand(run, mm) && check_scale(run, mm);
        }
    }
    if (mm->out == TO_INT8) {
        return check_requantisation(run, mm);
    }
    return check_scale(run, mm) && (VALUE(DPU_BN_CFG) != BN_SCALES || check_lut(run, mm));
}

/* --- the output cube -------------------------------------------------------------------------- */

/* Checks the output cube: it has as many pixels as the result, in the same order, but perhaps in
 * lines of another length. */
static bool check_output(struct run *run, struct matmul *mm)
{
    const uint32_t notch = VALUE(DPU_DATA_CUBE_NOTCH), size_e = VALUE(DPU_BS_OW_CFG) >> 2 & 7;
    const bool weight_offset = mm->out == TO_INT8 || mm->depthwise;
    mm->out_width = VALUE(DPU_DATA_CUBE_WIDTH) + 1;
    mm->out_height = (VALUE(DPU_DATA_CUBE_HEIGHT) & 0x1FFF) + 1;
    mm->real_n = mm->out == TO_INT8 ? (VALUE(DPU_DATA_CUBE_CHANNEL) >> 16) + 1 : mm->n;
    mm->surfaces = mm->group * mm->out_bytes / ATOM;
    mm->surface_pitch = VALUE(DPU_DST_SURF_STRIDE);
    mm->group_pitch = VALUE(DPU_SURFACE_ADD);
    mm->notch = notch & 0x1FFF;
    EQUAL(DPU_DATA_CUBE_HEIGHT, mm->out_height - 1, "bits besides HEIGHT");
    CHECK(DPU_DATA_CUBE_WIDTH,
          (uint64_t) mm->out_width * mm->out_height == (uint64_t) mm->pixels_x * mm->pixels_y,
          "not the pixels of the result");
    EQUAL(DPU_DATA_CUBE_NOTCH, mm->notch << 16 | mm->notch, "the two notches differ");
    EQUAL(DPU_DATA_CUBE_CHANNEL, (mm->real_n - 1) << 16 | (mm->n - 1), "not the number of kernels");
    CHECK(DPU_DATA_CUBE_CHANNEL,
          mm->real_n <= mm->n && (mm->depthwise || mm->real_n <= mm->kernels),
          "more channels than kernels");
    EQUAL(DPU_WDMA_SIZE_0, mm->n - 1, "not the number of kernels");
    EQUAL(DPU_WDMA_SIZE_1, (mm->out_height - 1) << 16 | (mm->out_width - 1), "not the cube's size");
    CHECK(DPU_BS_OW_CFG,
          size_e == mm->surfaces - 1 &&
              (VALUE(DPU_BS_OW_CFG) & ~2u) == (size_e << 8 | size_e << 5 | size_e << 2),
          "SIZE_E must be the number of 16-byte surfaces of a group of channels, less one");
    CHECK(DPU_BS_OW_CFG, !weight_offset || !(VALUE(DPU_BS_OW_CFG) & 2),
          "OD_BYPASS, but the weights have an offset");
    EQUAL(DPU_SURFACE_ADD, (uint64_t) mm->surfaces * mm->surface_pitch,
          "groups of surfaces do not follow each other");
    return true;
}

/* Checks the modes of a depthwise convolution; float kernels have a weight offset without effect.
 * */
static bool check_depthwise(struct run *run, const struct matmul *mm)
{
    const bool is_float = mm->in == FP16;
    CHECK(CNA_CONV_CON1, is_float || mm->out == TO_INT8,
          "depthwise convolutions are known to work with float16, and with int8 in and out, alone");
    EQUAL(DPU_FEATURE_MODE_CFG, 0x1E4 | 3 << 3, "not the mode in CONV_CON1");
    run->judged[DPU_FEATURE_MODE_CFG] = true;
    if (is_float) {
        EQUAL(DPU_BS_OW_OP, WEIGHT_OFFSET_OF_FLOATS, "the one value known to work with floats");
        run->judged[DPU_BS_OW_OP] = true;
    }
    return true;
}

/* Checks DPU_RDMA, the block that reads operands; it may be enabled without an operand. */
static bool check_rdma(struct run *run, const struct matmul *mm)
{
    const uint32_t mode = VALUE(RDMA_FEATURE_MODE_CFG);
    const uint32_t idle = BURST | READ_NOTHING | (mm->depthwise ? DEPTHWISE : 0);
    EQUAL(RDMA_DATA_CUBE_WIDTH, mm->out_width - 1, "not the output cube's");
    EQUAL(RDMA_DATA_CUBE_HEIGHT, mm->out_height - 1, "not the output cube's");
    EQUAL(RDMA_DATA_CUBE_CHANNEL, mm->n - 1, "not the output cube's");
    if (mm->stages.operand.with) {
        EQUAL(RDMA_FEATURE_MODE_CFG, READ_OPERAND, "not the value for an operand of float16");
        return true;
    }
    CHECK(RDMA_FEATURE_MODE_CFG, mode & READ_NOTHING,
          "MRDMA_DISABLE is clear: the DPU waits for an operand that never comes");
    CHECK(RDMA_FEATURE_MODE_CFG,
          mode == idle ||
              (mode == (idle | HALF_TO_SINGLE) && (mm->out == TO_FP16 || mm->out == TO_BF16)),
          "another value is not known to work");
    return true;
}

bool stages_check(struct run *run, struct matmul *mm, bool rdma)
{
    if (!check_output(run, mm) || (mm->depthwise && !check_depthwise(run, mm)) ||
        !check_stages(run, mm)) {
        return false;
    }
    if (!rdma && (mm->stages.operand.with || mm->out == TO_INT8)) {
        return refuse(run->why, "the DPU needs data of DPU_RDMA, which is not enabled");
    }
    return !rdma || check_rdma(run, mm);
}
