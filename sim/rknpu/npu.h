/* A core of the NPU: commands, registers, arithmetic, time.  The map is in sim.h. */
#ifndef RKNPU_SIM_NPU_H
#define RKNPU_SIM_NPU_H

#include "driver.h"

/* --- program.c ----------------------------------------------------------------------------- */
enum block { CNA, CORE, DPU, RDMA, PPU, PPU_RDMA };
enum operation { PRODUCT, ADDITION, ACTIVATION, POOLING, OPERATIONS };
enum reg {
#define REGISTER(block, offset, name, defined, product, addition, activation, pooling) name,
#include "registers.inc"
#undef REGISTER
    REGISTERS
};
struct registers {
    uint32_t value[REGISTERS];
    bool written[REGISTERS]; /* by this list */
};
enum { LUT_ENTRIES = 513 };
enum { NEGATIVE, POSITIVE, TABLES };
struct lut { /* the memory of tables behind LUT_ACCESS_DATA */
    uint16_t entries[TABLES][LUT_ENTRIES];
    uint32_t loaded[TABLES]; /* entries that this list wrote */
    uint32_t table, next;
    bool writing;
};
struct scratch {
    uint8_t *bytes;
    size_t size;
};
struct worker { /* what a core keeps from task to task */
    enum driver driver;
    int index;
    struct registers registers;
    struct lut lut;
    bool warm; /* the registers have been given values */
    struct scratch scratch;
    struct why why;
};
struct program {
    uint32_t enable;
    uint32_t next, next_amount; /* of the chain; 0, 0: it ends here */
    uint32_t length;            /* commands, with the enable */
};
enum { ENABLE_SHORT = 0x0D, ENABLE_FULL = 0x1D, ENABLE_FLYING = 0x18, ENABLE_POOLING = 0x60 };

/* The work of one task, and the model's estimate of its time. */
struct cost {
    uint64_t macs, mac_cycles;           /* useful products; cycles of the MAC array */
    uint64_t features, weights, outputs; /* bytes moved */
    double ns;                           /* the model's, not a measurement */
    char shape[64];
};

struct run { /* one task on one core */
    const struct space *space;
    uint32_t list; /* address of the commands */
    struct job *job;
    struct worker *worker;
    struct why *why;
    bool chained, first, write;
    bool judged[REGISTERS]; /* by a stage that is on: the table's constant does not count */
    struct cost cost;
    uint8_t *out; /* what it writes, first to last byte */
    uint64_t out_size;
};

/* Reads a list of `words` commands into the worker's registers. */
bool program_read(struct run *run, uint32_t address, uint32_t words, struct program *program);
/* Whether every register of an operation was written. */
bool program_complete(const struct run *run, enum operation operation, bool rdma);
/* Whether all registers without another check have the only value that works. */
bool program_constants(const struct run *run, enum operation operation, bool rdma);
bool refuse_register(struct why *why, enum reg reg, uint32_t value, const char *reason);
/* The value of a register in `run`.  Checks run in order; the first failed one is the reason. */
#define VALUE(reg) (run->worker->registers.value[reg])
#define CHECK(reg, good, reason)                                                                   \
    do {                                                                                           \
        if (!(good)) {                                                                             \
            return refuse_register(run->why, reg, VALUE(reg), reason);                             \
        }                                                                                          \
    } while (0)
/* At least `size` bytes, aligned to 64, that last until the next call. */
uint8_t *scratch_get(struct scratch *scratch, size_t size);

/* --- dma.c --------------------------------------------------------------------------------- */
/* The bytes at an address, as the NPU sees them, or NULL and a reason. */
uint8_t *dma(struct run *run, uint32_t address, uint64_t size, const char *what);
/* Whether a task of this job may write there. */
bool dma_may_write(struct run *run, uint32_t address);
/* Gives memory what the task wrote: run->out. */
bool dma_flush(struct run *run);

/* --- chain.c ------------------------------------------------------------------------------- */
/* Runs the tasks of a segment; false: the hardware would hang, and worker->why says where. */
bool segment_run(struct segment *segment, struct worker *worker);

/* --- check.c, cube.c, stages.c ------------------------------------------------------------- */
enum { ATOM = 16 }; /* bytes of a pixel of a surface */
enum input { INT8, FP16, BF16, TF32, INT4 };
struct format { /* of both operands */
    const char *name;
    uint32_t precision; /* code */
    uint32_t group;     /* output channels at a time */
    uint32_t k_tile;    /* input channels at a time: K is a multiple */
    uint32_t bits;
};
extern const struct format formats[];
enum output { TO_INT32, TO_INT16, TO_INT8, TO_FP32, TO_FP16, TO_BF16 };

/* An operand that the DPU combines with each sum: a cube like the output's, of float16. */
enum combination { NO_OPERAND, ADD, MULTIPLY, MAXIMUM, MINIMUM };
struct operand {
    enum combination with;
    uint32_t first[2]; /* addresses of the first even and the first odd surface */
    uint64_t pitch;    /* bytes from a surface to the next but one */
};
/* Two tables and what leads to them and from them: index = x * scale + bias, see lut.c. */
struct activation {
    const struct lut *lut; /* NULL: none */
    float scale, bias;
    uint32_t slope, slope_shift; /* below the tables */
    int32_t offset;
    int minus_exponent;
};
/* The conversion of an int32 sum to a narrower type (convert.c). */
struct requantisation {
    uint32_t biases;               /* address of an int32 a channel */
    int32_t weight_offset, offset; /* added to each weight; to each result */
    uint32_t scale, shift;
};
struct stages { /* of the DPU, between the MAC array and the output */
    struct operand operand;
    struct activation activation;
    struct requantisation requantisation;
};

struct matmul { /* a convolution; most are of 1x1 kernels, which is a matmul */
    enum input in;
    enum output out;
    const struct format *format;
    uint32_t out_bytes;
    uint32_t k, n;                  /* channels, padded */
    uint32_t kernels, real_n;       /* in memory; that the program wants */
    uint32_t width, height;         /* of the feature cube */
    uint32_t pixels_x, pixels_y;    /* of the result: their product is M */
    uint32_t out_width, out_height; /* as the DPU folds them */
    uint32_t kernel_width, kernel_height, stride_x, stride_y, dilation_x, dilation_y;
    uint32_t pad_left, pad_top;
    int8_t pad[2];         /* value beside the cube, of even and odd channels */
    bool depthwise, plain; /* a filter a channel; a 1x1 kernel that visits each pixel */
    uint32_t group;        /* output channels at a time */
    bool group_line_off;
    uint32_t line_stride; /* atoms */
    int32_t surface_stride;
    uint32_t features, weights, output; /* addresses */
    uint32_t kernel_bytes, weight_bytes;
    uint32_t surfaces; /* that a group of channels makes */
    uint32_t surface_pitch, group_pitch, notch;
    bool weight_reuse, data_reuse;
    uint32_t banks; /* register value */
    struct stages stages;
};
bool matmul_check(struct run *run, uint32_t enable, struct matmul *mm);
/* `last` is the matmul before in the same chain, or NULL. */
bool matmul_reuse(struct run *run, const struct matmul *mm, const struct matmul *last);
/* Reads the stages of the DPU, and checks the registers of those that are on. */
bool stages_check(struct run *run, struct matmul *mm, bool rdma);

/* --- matmul.c, flying.c, pool.c ------------------------------------------------------------ */
bool matmul_run(struct run *run, const struct matmul *mm);
bool flying_run(struct run *run);
bool pool_run(struct run *run);

/* --- writer.c ------------------------------------------------------------------------------ */
/* The destination of a block: the 16 bytes of (row, column, surface). */
struct writer {
    uint8_t *bytes;                       /* the first of the cube */
    uint64_t size;                        /* to its last */
    uint64_t row, column, surface, group; /* strides */
    uint32_t rows, columns, surfaces, groups;
};
bool writer_open(struct run *run, uint32_t address, struct writer *writer);
/* Stores the surfaces of one group of one pixel. */
void writer_store(const struct writer *writer, uint32_t pixel, uint32_t group, const uint8_t *from);
/* Whether the inputs and outputs of a task are disjoint. */
bool apart(struct run *run, const uint8_t *bytes, uint64_t size, const char *what);

/* --- features.c, weights.c ----------------------------------------------------------------- */
/* Channels of a row of features at a time: K in whole tiles. */
static inline uint32_t tiles_of(const struct matmul *mm)
{
    return (mm->k + mm->format->k_tile - 1) / mm->format->k_tile;
}
/* Numbers that a kernel has for one output: K, or for windows [tile][y][x][channel of the tile]. */
static inline size_t depth_of(const struct matmul *mm)
{
    return (size_t) tiles_of(mm) * mm->format->k_tile * mm->kernel_height * mm->kernel_width;
}
/* Fills rows[M][bytes of depth], as they lie in memory. */
bool features_gather(struct run *run, const struct matmul *mm, uint8_t *rows);
/* A group of kernels, as int8 [tiles][32][32] or double [16][depth]: in `room`, or where it lies. */
const void *weights_of(const struct matmul *mm, const uint8_t *weights, uint32_t group, void *room);
/* Two int4 a byte, the lower first, to int8. */
void expand_nibbles(int8_t *to, const uint8_t *from, size_t bytes);

/* --- convert.c, lut.c ---------------------------------------------------------------------- */
void convert_float(uint8_t *to, enum output type, double value);
void convert_int(uint8_t *to, const struct matmul *mm, int64_t sum);
uint16_t activate(const struct activation *activation, float x);
bool activation_check(struct run *run, struct activation *activation);
float half_to_float(uint16_t half);

/* --- dot*.c: out[rows][32] = a[rows][32 * tiles] . w[tiles][32][32]^T, exact ---------------- */
typedef void dot_fn(const int8_t *a, size_t rows, size_t stride, const int8_t *w, size_t tiles,
                    int32_t *out);
extern dot_fn *dot_best;

/* --- floats*.c, numbers.c -------------------------------------------------------------------- */
struct floats {
    void (*widen)(enum input type, const uint8_t *from, size_t count, double *to);
    /* out[rows][16] = a[rows][k] . w[16][k]^T; k a multiple of 8 */
    void (*multiply)(const double *a, size_t rows, size_t k, const double *w, double *out);
};
extern const struct floats *floats_best;
uint16_t double_to_half(double value);
uint16_t double_to_bfloat(double value);

/* --- cost.c -------------------------------------------------------------------------------- */
/* `first`: of its core's part of a job; the others wait until they are started. */
void cost_matmul(const struct matmul *mm, enum driver driver, int cores, bool chained, bool first,
                 struct cost *cost);
/* Of what only moves bytes: `what` it is, of how many numbers. */
void cost_moved(const char *what, uint64_t numbers, uint64_t in, uint64_t out, struct run *run);
double cost_submit_ns(enum driver driver);

#endif
