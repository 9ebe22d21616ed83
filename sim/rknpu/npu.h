/* A core of the NPU: commands, registers, arithmetic, time. sim.h lists the files. */
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
    bool written[REGISTERS]; /* the current list has written it */
};
enum { LUT_ENTRIES = 513 };
enum { NEGATIVE, POSITIVE, TABLES };
struct lut { /* the tables that LUT_ACCESS_DATA writes */
    uint16_t entries[TABLES][LUT_ENTRIES];
    uint32_t loaded[TABLES]; /* entries that the current list wrote */
    uint32_t table, next;
    bool writing;
};
struct scratch {
    uint8_t *bytes;
    size_t size;
};
struct worker { /* a core's state, which lasts from task to task */
    enum driver driver;
    int index;
    struct registers registers;
    struct lut lut;
    bool warm; /* the registers have their initial values */
    struct scratch scratch;
    struct why why;
};
struct program {
    uint32_t enable;
    uint32_t next, next_amount; /* the chain's next list; 0, 0: the chain ends here */
    uint32_t length;            /* commands, including the enable */
};
enum { ENABLE_SHORT = 0x0D, ENABLE_FULL = 0x1D, ENABLE_FLYING = 0x18, ENABLE_POOLING = 0x60 };

/* The work of one task, and the model's estimate of its time. */
struct cost {
    uint64_t macs, mac_cycles;           /* useful products; cycles of the MAC array */
    uint64_t features, weights, outputs; /* bytes moved */
    double ns;                           /* estimated by the model, not measured */
    char shape[64];
};

struct run { /* one task on one core */
    const struct space *space;
    uint32_t list; /* address of the commands */
    struct job *job;
    struct worker *worker;
    struct why *why;
    bool chained, first, write;
    bool judged[REGISTERS]; /* checked by an enabled stage, not against the table's constant */
    struct cost cost;
    uint8_t *out; /* memory that the task writes, first to last byte */
    uint64_t out_size;
};

/* Reads a list of `words` commands into the worker's registers. */
bool program_read(struct run *run, uint32_t address, uint32_t words, struct program *program);
/* Returns whether the list writes every register of an operation. */
bool program_complete(const struct run *run, enum operation operation, bool rdma);
/* Returns whether all registers that no other check covers have the constants of the table. */
bool program_constants(const struct run *run, enum operation operation, bool rdma);
bool refuse_register(struct why *why, enum reg reg, uint32_t value, const char *reason);
/* VALUE is a register's value in `run`.  CHECK ends a checking function with `reason` if `good` is
 * false. */
#define VALUE(reg) (run->worker->registers.value[reg])
#define CHECK(reg, good, reason)                                                                   \
    do {                                                                                           \
        if (!(good)) {                                                                             \
            return refuse_register(run->why, reg, VALUE(reg), reason);                             \
        }                                                                                          \
    } while (0)
/* Returns at least `size` bytes, aligned to 64, which stay valid until the next call; NULL: no
 * memory. */
uint8_t *scratch_get(struct scratch *scratch, size_t size);

/* --- dma.c --------------------------------------------------------------------------------- */
/* Returns the NPU's view of the bytes at an address, or NULL with a reason. */
uint8_t *dma(struct run *run, uint32_t address, uint64_t size, const char *what);
/* Returns whether a task of this job may write at an address. */
bool dma_may_write(struct run *run, uint32_t address);
/* Completes the task's writes to memory (run->out). */
bool dma_flush(struct run *run);

/* --- chain.c ------------------------------------------------------------------------------- */
/* Runs the tasks of a segment; false: the hardware would hang, and worker->why has the reason. */
bool segment_run(struct segment *segment, struct worker *worker);

/* --- check.c, cube.c, stages.c ------------------------------------------------------------- */
enum { ATOM = 16 }; /* bytes of a pixel of a surface */
enum input { INT8, FP16, BF16, TF32, INT4 };
struct format { /* number format of both operands */
    const char *name;
    uint32_t precision; /* code in registers */
    uint32_t group;     /* output channels that are computed together */
    uint32_t k_tile;    /* input channels of a tile; K is a multiple */
    uint32_t bits;
};
extern const struct format formats[];
enum output { TO_INT32, TO_INT16, TO_INT8, TO_FP32, TO_FP16, TO_BF16 };

/* An operand that the DPU combines with each sum: a float16 cube of the output's shape. */
enum combination { NO_OPERAND, ADD, MULTIPLY, MAXIMUM, MINIMUM };
struct operand {
    enum combination with;
    uint32_t first[2]; /* addresses of the first even and the first odd surface */
    uint64_t pitch;    /* bytes between two even (or two odd) surfaces */
};
/* The two tables of the LUT, and the parameters of index (x * scale + bias) and result; see lut.c.
 * */
struct activation {
    const struct lut *lut; /* NULL: no activation */
    float scale, bias;
    uint32_t slope, slope_shift; /* slope below the tables */
    int32_t offset;
    int minus_exponent;
};
/* The conversion of an int32 sum to a narrower type (convert.c). */
struct requantisation {
    uint32_t biases;               /* address; an int32 per channel */
    int32_t weight_offset, offset; /* added to each weight; to each result */
    uint32_t scale, shift;
};
struct stages { /* the DPU's stages between the MAC array and the output */
    struct operand operand;
    struct activation activation;
    struct requantisation requantisation;
};

struct matmul { /* a convolution; with 1x1 kernels it is a matmul */
    enum input in;
    enum output out;
    const struct format *format;
    uint32_t out_bytes;
    uint32_t k, n;                  /* channels, padded */
    uint32_t kernels, real_n;       /* kernels in memory; output channels without padding */
    uint32_t width, height;         /* size of the feature cube */
    uint32_t pixels_x, pixels_y;    /* size of the result; the product is M */
    uint32_t out_width, out_height; /* size of the output cube: as many pixels, in other lines */
    uint32_t kernel_width, kernel_height, stride_x, stride_y, dilation_x, dilation_y;
    uint32_t pad_left, pad_top;
    int8_t pad[2];         /* padding of even and of odd channels */
    bool depthwise, plain; /* one filter per channel; a 1x1 kernel at every pixel */
    uint32_t group;        /* output channels that are computed together */
    bool group_line_off;
    uint32_t line_stride; /* atoms */
    int32_t surface_stride;
    uint32_t features, weights, output; /* addresses */
    uint32_t kernel_bytes, weight_bytes;
    uint32_t surfaces; /* per group of output channels */
    uint32_t surface_pitch, group_pitch, notch;
    bool weight_reuse, data_reuse;
    uint32_t banks; /* register value */
    struct stages stages;
};
bool matmul_check(struct run *run, uint32_t enable, struct matmul *mm);
/* Checks the reuse of operands in CBUF. `last` is the previous matmul of the same chain, or NULL.
 * */
bool matmul_reuse(struct run *run, const struct matmul *mm, const struct matmul *last);
/* Reads the stages of the DPU, and checks the registers of enabled stages. */
bool stages_check(struct run *run, struct matmul *mm, bool rdma);

/* --- matmul.c, flying.c, pool.c ------------------------------------------------------------ */
bool matmul_run(struct run *run, const struct matmul *mm);
bool flying_run(struct run *run);
bool pool_run(struct run *run);

/* --- writer.c ------------------------------------------------------------------------------ */
/* The output cube of a task, in atoms of 16 bytes. */
struct writer {
    uint8_t *bytes;                       /* first byte of the cube */
    uint64_t size;                        /* bytes up to the cube's last byte */
    uint64_t row, column, surface, group; /* strides */
    uint32_t rows, columns, surfaces, groups;
};
bool writer_open(struct run *run, uint32_t address, struct writer *writer);
/* Stores the surfaces of one group of one pixel. */
void writer_store(const struct writer *writer, uint32_t pixel, uint32_t group, const uint8_t *from);
/* Returns whether an input of a task does not overlap the output. */
bool apart(struct run *run, const uint8_t *bytes, uint64_t size, const char *what);

/* --- features.c, weights.c ----------------------------------------------------------------- */
/* Returns the number of tiles of K, rounded up. */
static inline uint32_t tiles_of(const struct matmul *mm)
{
    return (mm->k + mm->format->k_tile - 1) / mm->format->k_tile;
}
/* Returns the length of a row of features, [tile][y][x][channel of the tile]: for a matmul, K in
 * whole tiles. */
static inline size_t depth_of(const struct matmul *mm)
{
    return (size_t) tiles_of(mm) * mm->format->k_tile * mm->kernel_height * mm->kernel_width;
}
/* Fills rows[M][bytes of depth] with features, in the type that memory holds. */
bool features_gather(struct run *run, const struct matmul *mm, uint8_t *rows);
/* Returns a group of kernels as int8 [tiles][32][32] or double [16][depth], converted in `room` or
 * in place. */
const void *weights_of(const struct matmul *mm, const uint8_t *weights, uint32_t group, void *room);
/* Converts int4, two per byte with the lower half first, to int8. */
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
/* Estimates a product.  `first`: the task is the first of its segment; the estimate for any other
 * task includes the time between the previous task and this one. */
void cost_matmul(const struct matmul *mm, enum driver driver, int cores, bool chained, bool first,
                 struct cost *cost);
/* Estimates an operation that only moves bytes; `what` names it. */
void cost_moved(const char *what, uint64_t numbers, uint64_t in, uint64_t out, struct run *run);
double cost_submit_ns(enum driver driver);

#endif
