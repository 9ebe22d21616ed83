/*
 * Checks whether the registers of CNA and CORE describe a product that is known to work, and reads
 * the product's parameters.
 *
 * A product is a convolution.  C[M, N] = A[M, K] . B[N, K]^T is a convolution of M pixels with K
 * channels by N kernels of 1x1.  A refused product hangs the hardware, gives wrong numbers, or is
 * not known to work.  Facts: mtx512/rk3588-npu, rocket-userspace, happyme531/rknpu2_matmul_open and
 * Mesa, as run on silicon; the CBUF rule agrees with 173 published points.
 */
#include "npu.h"

enum { BANKS = 12, BANK_BYTES = 32768, ENTRY_BYTES = 64 };
enum { MAX_GRAINS = 1023, MESA_GRAINS = 51 }; /* rkt_regcmd.c: 50 + stride + 1 */
enum { DEPTHWISE = 3 };                       /* CONV_MODE */

const struct format formats[] = {
    [INT8] = {"int8", 0, 32, 32, 8},  [FP16] = {"fp16", 2, 16, 32, 16},
    [BF16] = {"bf16", 3, 16, 32, 16}, [TF32] = {"tf32", 7, 16, 16, 32},
    [INT4] = {"int4", 6, 64, 32, 4},
};

/* Values of register DPU 0x4010, and of bit 16 of 0x4084, which rounds to a 16-bit float. */
static const struct {
    uint32_t format, to_half, bytes;
    enum input in;
    enum output out;
} CONVERSIONS[] = {
    {0x80000000, 0, 4, INT8, TO_INT32}, {0xA0000000, 0, 4, INT8, TO_FP32},
    {0x40000000, 1, 2, INT8, TO_FP16},  {0xA8000002, 0, 4, FP16, TO_FP32},
    {0x48000002, 1, 2, FP16, TO_FP16},  {0x6C000003, 1, 2, BF16, TO_BF16},
    {0xAC000003, 0, 4, BF16, TO_FP32},  {0xB4000005, 0, 4, TF32, TO_FP32},
    {0x38000006, 0, 2, INT4, TO_INT16}, {0x00000000, 0, 1, INT8, TO_INT8},
};

#define EQUAL(reg, expected, reason) CHECK(reg, VALUE(reg) == (uint32_t) (expected), reason)

static bool check_conversion(struct run *run, struct matmul *mm)
{
    for (size_t i = 0; i < sizeof(CONVERSIONS) / sizeof(*CONVERSIONS); i++) {
        if (CONVERSIONS[i].format == VALUE(DPU_DATA_FORMAT)) {
            mm->in = CONVERSIONS[i].in;
            mm->out = CONVERSIONS[i].out;
            mm->format = &formats[mm->in];
            mm->out_bytes = CONVERSIONS[i].bytes;
            mm->depthwise = (VALUE(CNA_CONV_CON1) & 0xF) == DEPTHWISE;
            mm->group = mm->format->group << mm->depthwise;
            CHECK(DPU_OUT_CVT_SCALE, VALUE(DPU_OUT_CVT_SCALE) >> 16 == CONVERSIONS[i].to_half,
                  "FP32TOFP16_EN is for 16-bit floats");
            return true;
        }
    }
    return refuse_register(run->why, DPU_DATA_FORMAT, VALUE(DPU_DATA_FORMAT),
                           "no pair of input and output types with this value is known to work");
}

/* --- sizes ------------------------------------------------------------------------------------ */

/* Checks the windows over a cube: strides, dilation, and padding at the left and the top.  The
 * padding at the right and the bottom follows from the sizes. */
static bool check_windows(struct run *run, struct matmul *mm)
{
    const uint32_t reach_x = (mm->kernel_width - 1) * mm->dilation_x + 1;
    const uint32_t reach_y = (mm->kernel_height - 1) * mm->dilation_y + 1;
    CHECK(CNA_CONV_CON3, mm->stride_x && mm->stride_y, "a stride is 0");
    CHECK(CNA_CONV_CON3, mm->kernel_width > 1 || mm->dilation_x == 1, "dilation of one column");
    CHECK(CNA_CONV_CON3, mm->kernel_height > 1 || mm->dilation_y == 1, "dilation of one line");
    CHECK(CNA_PAD_CON0, mm->pad_left < reach_x && mm->pad_top < reach_y,
          "a window lies beside the cube");
    CHECK(CORE_DATAOUT_SIZE_0, (mm->pixels_x - 1) * mm->stride_x < mm->width + mm->pad_left,
          "a window lies beside the cube");
    CHECK(CORE_DATAOUT_SIZE_0, (mm->pixels_y - 1) * mm->stride_y < mm->height + mm->pad_top,
          "a window lies below the cube");
    run->judged[CNA_CONV_CON3] = run->judged[CNA_PAD_CON0] = true;
    return true;
}

static bool check_cubes(struct run *run, struct matmul *mm)
{
    const uint32_t size = VALUE(CNA_DATA_SIZE0), kernel = VALUE(CNA_WEIGHT_SIZE2);
    const uint32_t steps = VALUE(CNA_CONV_CON3), pads = VALUE(CNA_PAD_CON0);
    mm->width = size >> 16;
    mm->height = size & 0x7FF;
    mm->kernel_width = kernel >> 24;
    mm->kernel_height = kernel >> 16 & 0x1F;
    mm->stride_x = steps & 7;
    mm->stride_y = steps >> 3 & 7;
    mm->dilation_x = (steps >> 16 & 0x1F) + 1;
    mm->dilation_y = (steps >> 21 & 0x1F) + 1;
    mm->pad_top = pads & 0xF;
    mm->pad_left = pads >> 4;
    mm->pixels_x = (VALUE(CORE_DATAOUT_SIZE_0) & 0xFFFF) + 1;
    mm->pixels_y = (VALUE(CORE_DATAOUT_SIZE_0) >> 16) + 1;
    CHECK(CNA_DATA_SIZE0, mm->width && mm->height, "an empty cube");
    CHECK(CNA_WEIGHT_SIZE2, mm->kernel_width && mm->kernel_height, "empty kernels");
    EQUAL(CNA_DATA_SIZE2, mm->pixels_x, "not the width of the result");
    EQUAL(CNA_DATA_SIZE3, (uint64_t) mm->pixels_x * mm->pixels_y, "not the pixels of the result");
    EQUAL(CNA_FC_DATA_SIZE0, size, "the DMA's size is not the cube's");
    CHECK(CNA_CONV_CON3, !(steps & ~0x03FF003Fu), "bits besides strides and dilation");
    /* program_constants() checks the rest of a plain convolution: strides 1, no padding. */
    mm->plain = mm->kernel_width == 1 && mm->kernel_height == 1 && mm->width == mm->pixels_x &&
                mm->height == mm->pixels_y && !mm->depthwise;
    return mm->plain || check_windows(run, mm);
}

/* Checks K in memory, and the part of K that is used. */
static bool check_channels(struct run *run, struct matmul *mm)
{
    const uint32_t real = (VALUE(CNA_DATA_SIZE1) >> 16) + 1;
    const bool narrow = mm->out == TO_INT8; /* Mesa's lists: K may end in half a tile */
    mm->k = VALUE(CNA_DATA_SIZE1) & 0xFFFF;
    CHECK(CNA_DATA_SIZE1, mm->k && mm->k % (narrow ? ATOM : mm->format->k_tile) == 0,
          "K is not a multiple of its tile");
    CHECK(CNA_DATA_SIZE1, !narrow || (real <= mm->k && real + ATOM > mm->k),
          "not the channels that K is rounded up from");
    CHECK(CNA_DATA_SIZE1,
          !narrow || real % ATOM == 0 || real < ATOM || (real > 32 && !mm->depthwise),
          "the kernels' layout is unknown for this number of channels");
    EQUAL(CNA_FC_DATA_SIZE1, mm->k, "the DMA's channels are not the cube's");
    return true;
}

/* Checks the filters of a depthwise convolution, one per channel; memory holds whole groups of
 * them, or exactly their number. */
static bool check_filters(struct run *run, struct matmul *mm, uint32_t taps)
{
    const uint64_t whole = round_up(mm->k, mm->group) * taps * mm->format->bits / 8;
    CHECK(CNA_WEIGHT_SIZE2, mm->kernels == 1, "a depthwise convolution has one kernel");
    CHECK(CNA_WEIGHT_SIZE0,
          VALUE(CNA_WEIGHT_SIZE0) == mm->kernel_bytes || VALUE(CNA_WEIGHT_SIZE0) == whole,
          "bytes of the kernel");
    CHECK(CORE_DATAOUT_SIZE_1, mm->n == round_up(mm->k, mm->group), "not K, in whole groups");
    mm->weight_bytes = mm->kernel_bytes;
    return true;
}

static bool check_kernels(struct run *run, struct matmul *mm)
{
    const uint32_t taps = mm->kernel_width * mm->kernel_height;
    const bool whole = mm->out != TO_INT8; /* Mesa's lists: the last group may be smaller */
    mm->kernels = VALUE(CNA_WEIGHT_SIZE2) & 0x3FFF;
    mm->n = VALUE(CORE_DATAOUT_SIZE_1) + 1;
    mm->kernel_bytes = mm->k * taps * mm->format->bits / 8;
    EQUAL(CNA_WEIGHT_SIZE1, mm->kernel_bytes, "bytes of a kernel");
    if (mm->depthwise) {
        return check_filters(run, mm, taps);
    }
    CHECK(CNA_WEIGHT_SIZE2, mm->kernels && mm->kernels % (whole ? mm->group : 2) == 0,
          "N is not a multiple of its group");
    EQUAL(CNA_WEIGHT_SIZE0, (uint64_t) mm->kernel_bytes * mm->kernels, "bytes of all kernels");
    EQUAL(CORE_DATAOUT_SIZE_1, round_up(mm->kernels, mm->group) - 1, "not the number of kernels");
    mm->weight_bytes = VALUE(CNA_WEIGHT_SIZE0);
    return true;
}

static bool check_modes(struct run *run, struct matmul *mm)
{
    const uint32_t precision = mm->format->precision, mode = mm->depthwise ? DEPTHWISE : 0;
    const uint32_t grains = VALUE(CNA_CONV_CON2) >> 4 & 0x3FF;
    const bool mesas =
        (mm->out == TO_INT8 || mm->depthwise) && grains == MESA_GRAINS + mm->stride_y;
    mm->group_line_off = VALUE(CNA_CONV_CON1) >> 29 & 1;
    EQUAL(CNA_CONV_CON1,
          (uint32_t) mm->group_line_off << 29 | precision << 7 | precision << 4 | mode,
          "not a plain convolution of the type in DPU_DATA_FORMAT");
    EQUAL(CNA_CONV_CON2, grains << 4, "bits besides FEATURE_GRAINS");
    CHECK(CNA_CONV_CON2, grains > mm->height || mesas || !settings.strict,
          "FEATURE_GRAINS at or below the height gives wrong sums for some K");
    CHECK(CNA_CONV_CON2, mm->height < MAX_GRAINS, "more lines than FEATURE_GRAINS can hold");
    CHECK(CORE_MISC_CFG,
          (VALUE(CORE_MISC_CFG) & ~1u) == (precision << 8 | (uint32_t) mm->depthwise << 1),
          "not the type in DPU_DATA_FORMAT, or the mode in CONV_CON1");
    return true;
}

/* --- CBUF ------------------------------------------------------------------------------------- */

/* Returns the 64-byte entries of a line of pixels; the last atoms of several pixels share an entry.
 * */
static uint32_t line_entries(const struct matmul *mm)
{
    const uint32_t atoms = (uint32_t) div_up((uint64_t) mm->k * mm->format->bits / 8, ATOM);
    const uint32_t rest = atoms % 4;
    return atoms / 4 * mm->width + (rest == 3 ? mm->width : (uint32_t) div_up(rest * mm->width, 4));
}

static bool check_cbuf(struct run *run, struct matmul *mm)
{
    const uint32_t con0 = VALUE(CNA_CBUF_CON0), entries = VALUE(CNA_CBUF_CON1);
    const uint32_t data = con0 & 0xF, weight = con0 >> 4 & 0xF;
    const uint32_t kernels = mm->kernels < mm->group ? mm->kernels : mm->group;
    const uint64_t group = (uint64_t) kernels * mm->kernel_bytes;
    mm->banks = con0 & 0xFF;
    mm->data_reuse = con0 >> 12 & 1;
    mm->weight_reuse = con0 >> 13 & 1;
    CHECK(CNA_CBUF_CON0, !(con0 >> 8 & 7),
          "FC_DATA_BANK is not 0: the NPU reads features from other banks");
    CHECK(CNA_CBUF_CON0, data + weight <= BANKS, "more than 12 banks");
    CHECK(CNA_CBUF_CON1, entries >= line_entries(mm), "a line of pixels takes more entries");
    CHECK(CNA_CBUF_CON0, data >= div_up((uint64_t) mm->height * entries * ENTRY_BYTES, BANK_BYTES),
          "the features need more data banks");
    CHECK(CNA_CBUF_CON0, weight >= div_up(group, BANK_BYTES),
          "one group of kernels needs more weight banks");
    return true;
}

static bool check_addresses(struct run *run, struct matmul *mm)
{
    const uint32_t stride = VALUE(CNA_DMA_CON2);
    mm->features = VALUE(CNA_FEATURE_DATA_ADDR);
    mm->weights = VALUE(CNA_DCOMP_ADDR0);
    mm->output = VALUE(DPU_DST_BASE_ADDR);
    mm->line_stride = VALUE(CNA_DMA_CON1);
    mm->surface_stride = (int32_t) (stride << 4) >> 4; /* 28 bits, signed */
    CHECK(CNA_FEATURE_DATA_ADDR, mm->features % ATOM == 0, "not a multiple of 16");
    CHECK(CNA_DCOMP_ADDR0, mm->weights % ATOM == 0, "not a multiple of 16");
    CHECK(DPU_DST_BASE_ADDR, mm->output % ATOM == 0, "not a multiple of 16");
    return true;
}

bool matmul_check(struct run *run, uint32_t enable, struct matmul *mm)
{
    const bool full = enable == ENABLE_FULL;
    *mm = (struct matmul){0};
    if (!full && settings.strict && run->job->driver == ROCKET &&
        !run->worker->registers.written[RDMA_S_POINTER]) {
        return refuse(run->why, "on rocket a list that writes no register of DPU_RDMA times out "
                                "(strict=0 allows it)");
    }
    return program_complete(run, PRODUCT, full) && check_conversion(run, mm) &&
           check_cubes(run, mm) && check_channels(run, mm) && check_kernels(run, mm) &&
           check_modes(run, mm) && check_cbuf(run, mm) && check_addresses(run, mm) &&
           stages_check(run, mm, full) && program_constants(run, PRODUCT, full);
}

/* Reuse is safe only if the previous task of the same chain left the same bytes in CBUF. */
bool matmul_reuse(struct run *run, const struct matmul *mm, const struct matmul *last)
{
    const bool same = last && last->in == mm->in && last->k == mm->k && last->banks == mm->banks;
    if (mm->weight_reuse) {
        CHECK(CNA_CBUF_CON0,
              same && last->weights == mm->weights && last->weight_bytes == mm->weight_bytes,
              "WEIGHT_REUSE, but the previous task of this chain left other weights");
        CHECK(CNA_CBUF_CON0, VALUE(CNA_WEIGHT_SIZE0) <= (mm->banks >> 4) * (uint32_t) BANK_BYTES,
              "WEIGHT_REUSE, but the banks do not hold all weights");
    }
    if (mm->data_reuse) {
        CHECK(CNA_CBUF_CON0,
              same && last->features == mm->features && last->width == mm->width &&
                  last->height == mm->height && last->line_stride == mm->line_stride &&
                  last->surface_stride == mm->surface_stride &&
                  last->group_line_off == mm->group_line_off,
              "DATA_REUSE, but the previous task of this chain left other features");
    }
    return true;
}
