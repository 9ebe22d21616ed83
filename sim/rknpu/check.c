/*
 * Whether the registers describe a matmul that is known to work, and which one.
 *
 * C[M, N] = A[M, K] . B[N, K]^T as a 1x1 convolution: M pixels of K channels, N kernels.  What is
 * refused here hangs the hardware, gives wrong numbers on it, or was never seen to work.  Facts:
 * mtx512/rk3588-npu, rocket-userspace, happyme531/rknpu2_matmul_open and Mesa, as run on silicon;
 * the CBUF rule agrees with 173 published points.
 */
#include "npu.h"

enum { BANKS = 12, BANK_BYTES = 32768, ENTRY_BYTES = 64, ATOM = 16 };
enum { MAX_GRAINS = 1023 };

const struct format formats[] = {
    [INT8] = {"int8", 0, 32, 32, 8},  [FP16] = {"fp16", 2, 16, 32, 16},
    [BF16] = {"bf16", 3, 16, 32, 16}, [TF32] = {"tf32", 7, 16, 16, 32},
    [INT4] = {"int4", 6, 64, 32, 4},
};

/* DPU 0x4010, and 0x4084: bit 16 rounds to a 16-bit float. */
static const struct {
    uint32_t format, scale, bytes;
    enum input in;
    enum output out;
} CONVERSIONS[] = {
    {0x80000000, 0x00001, 4, INT8, TO_INT32}, {0xA0000000, 0x00001, 4, INT8, TO_FP32},
    {0x40000000, 0x10001, 2, INT8, TO_FP16},  {0xA8000002, 0x00001, 4, FP16, TO_FP32},
    {0x48000002, 0x10001, 2, FP16, TO_FP16},  {0x6C000003, 0x10001, 2, BF16, TO_BF16},
    {0xAC000003, 0x00001, 4, BF16, TO_FP32},  {0xB4000005, 0x00001, 4, TF32, TO_FP32},
    {0x38000006, 0x00001, 2, INT4, TO_INT16},
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
            EQUAL(DPU_OUT_CVT_SCALE, CONVERSIONS[i].scale, "not the identity of this output type");
            return true;
        }
    }
    return refuse_register(run->why, DPU_DATA_FORMAT, VALUE(DPU_DATA_FORMAT),
                           "no such pair of input and output types is known to work");
}

/* Sizes of the two operands. */
static bool check_sizes(struct run *run, struct matmul *mm)
{
    const struct format *f = mm->format;
    const uint32_t size = VALUE(CNA_DATA_SIZE0);
    mm->width = size >> 16;
    mm->height = size & 0x7FF;
    mm->k = VALUE(CNA_DATA_SIZE1) & 0xFFFF;
    mm->n = VALUE(CNA_WEIGHT_SIZE2) & 0x3FFF;
    const uint32_t kernel = mm->k * f->bits / 8;
    CHECK(CNA_DATA_SIZE1, mm->k && mm->k % f->k_tile == 0, "K is not a multiple of its tile");
    CHECK(CNA_WEIGHT_SIZE2, mm->n % f->group == 0, "N is not a multiple of its group");
    EQUAL(CNA_WEIGHT_SIZE2, 0x01010000 | mm->n, "kernels are 1x1");
    EQUAL(CNA_DATA_SIZE2, mm->width, "a 1x1 convolution keeps the width");
    EQUAL(CNA_DATA_SIZE3, mm->width * mm->height, "output pixels are input pixels");
    EQUAL(CNA_WEIGHT_SIZE1, kernel, "bytes of a kernel");
    EQUAL(CNA_WEIGHT_SIZE0, (uint64_t) kernel * mm->n, "bytes of all kernels");
    EQUAL(CNA_FC_DATA_SIZE0, size, "the DMA's size is not the cube's");
    EQUAL(CNA_FC_DATA_SIZE1, mm->k, "the DMA's channels are not the cube's");
    EQUAL(CORE_DATAOUT_SIZE_0, (mm->height - 1) << 16 | (mm->width - 1), "not the cube's size");
    EQUAL(CORE_DATAOUT_SIZE_1, mm->n - 1, "not the number of kernels");
    return true;
}

static bool check_modes(struct run *run, struct matmul *mm)
{
    const uint32_t precision = mm->format->precision;
    const uint32_t grains = VALUE(CNA_CONV_CON2) >> 4 & 0x3FF;
    mm->group_line_off = VALUE(CNA_CONV_CON1) >> 29 & 1;
    EQUAL(CNA_CONV_CON1, (uint32_t) mm->group_line_off << 29 | precision << 7 | precision << 4,
          "not a plain convolution of the type in DPU_DATA_FORMAT");
    EQUAL(CNA_CONV_CON2, grains << 4, "bits besides FEATURE_GRAINS");
    CHECK(CNA_CONV_CON2, grains > mm->height || !settings.strict,
          "FEATURE_GRAINS at or below the height gives wrong sums for some K");
    CHECK(CNA_CONV_CON2, mm->height < MAX_GRAINS, "more lines than FEATURE_GRAINS can say");
    CHECK(CORE_MISC_CFG, (VALUE(CORE_MISC_CFG) & ~1u) == precision << 8,
          "not the type in DPU_DATA_FORMAT");
    return true;
}

/* 64-byte entries that a line of pixels takes: the last atoms of its pixels share entries. */
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
    const uint64_t group = (uint64_t) mm->format->group * VALUE(CNA_WEIGHT_SIZE1);
    mm->banks = con0 & 0xFF;
    mm->data_reuse = con0 >> 12 & 1;
    mm->weight_reuse = con0 >> 13 & 1;
    CHECK(CNA_CBUF_CON0, !(con0 >> 8 & 7), "FC_DATA_BANK is not 0");
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

/* The output cube: as many pixels, in the same order, perhaps folded differently. */
static bool check_output(struct run *run, struct matmul *mm)
{
    const uint32_t notch = VALUE(DPU_DATA_CUBE_NOTCH), size_e = VALUE(DPU_BS_OW_CFG) >> 2 & 7;
    mm->out_width = VALUE(DPU_DATA_CUBE_WIDTH) + 1;
    mm->out_height = (VALUE(DPU_DATA_CUBE_HEIGHT) & 0x1FFF) + 1;
    mm->surfaces = mm->format->group * mm->out_bytes / ATOM;
    mm->surface_pitch = VALUE(DPU_DST_SURF_STRIDE);
    mm->group_pitch = VALUE(DPU_SURFACE_ADD);
    mm->notch = notch & 0x1FFF;
    EQUAL(DPU_DATA_CUBE_HEIGHT, mm->out_height - 1, "bits besides HEIGHT");
    CHECK(DPU_DATA_CUBE_WIDTH,
          (uint64_t) mm->out_width * mm->out_height == (uint64_t) mm->width * mm->height,
          "not as many output pixels as input pixels");
    EQUAL(DPU_DATA_CUBE_NOTCH, mm->notch << 16 | mm->notch, "the two notches differ");
    EQUAL(DPU_DATA_CUBE_CHANNEL, (mm->n - 1) << 16 | (mm->n - 1), "not the number of kernels");
    EQUAL(DPU_WDMA_SIZE_0, mm->n - 1, "not the number of kernels");
    EQUAL(DPU_WDMA_SIZE_1, (mm->out_height - 1) << 16 | (mm->out_width - 1), "not the cube's size");
    CHECK(DPU_BS_OW_CFG,
          size_e == mm->surfaces - 1 &&
              (VALUE(DPU_BS_OW_CFG) & ~2u) == (size_e << 8 | size_e << 5 | size_e << 2),
          "SIZE_E is surfaces of 16 bytes that a group of channels makes, less one");
    EQUAL(DPU_SURFACE_ADD, (uint64_t) mm->surfaces * mm->surface_pitch,
          "groups of surfaces do not follow each other");
    return true;
}

/* The block that reads operands is on, but has nothing to read. */
static bool check_rdma(struct run *run, const struct matmul *mm)
{
    const uint32_t mode = VALUE(RDMA_FEATURE_MODE_CFG);
    EQUAL(RDMA_DATA_CUBE_WIDTH, mm->out_width - 1, "not the output cube's");
    EQUAL(RDMA_DATA_CUBE_HEIGHT, mm->out_height - 1, "not the output cube's");
    EQUAL(RDMA_DATA_CUBE_CHANNEL, mm->n - 1, "not the output cube's");
    CHECK(RDMA_FEATURE_MODE_CFG, mode & 0x10,
          "MRDMA_DISABLE is clear: the DPU waits for an operand that never comes");
    CHECK(RDMA_FEATURE_MODE_CFG,
          mode == 0x7810 || (mode == 0x7818 && (mm->out == TO_FP16 || mm->out == TO_BF16)),
          "another value is not known to work");
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
    return program_constants(run, false, full) && check_conversion(run, mm) &&
           check_sizes(run, mm) && check_modes(run, mm) && check_cbuf(run, mm) &&
           check_addresses(run, mm) && check_output(run, mm) && (!full || check_rdma(run, mm));
}

/* Reuse is safe only after a task of the same chain that left the very same bytes in CBUF. */
bool matmul_reuse(struct run *run, const struct matmul *mm, const struct matmul *last)
{
    const bool same = last && last->in == mm->in && last->k == mm->k && last->banks == mm->banks;
    if (mm->weight_reuse) {
        CHECK(CNA_CBUF_CON0, same && last->weights == mm->weights && last->n == mm->n,
              "WEIGHT_REUSE, but the task before in this chain left no such weights");
        CHECK(CNA_CBUF_CON0, VALUE(CNA_WEIGHT_SIZE0) <= (mm->banks >> 4) * (uint32_t) BANK_BYTES,
              "WEIGHT_REUSE, but the banks do not hold all weights");
    }
    if (mm->data_reuse) {
        CHECK(CNA_CBUF_CON0,
              same && last->features == mm->features && last->width == mm->width &&
                  last->height == mm->height && last->line_stride == mm->line_stride &&
                  last->surface_stride == mm->surface_stride &&
                  last->group_line_off == mm->group_line_off,
              "DATA_REUSE, but the task before in this chain left no such features");
    }
    return true;
}
