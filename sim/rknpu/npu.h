/* A core of the NPU: commands, registers, arithmetic, time.  The map is in sim.h. */
#ifndef RKNPU_SIM_NPU_H
#define RKNPU_SIM_NPU_H

#include "driver.h"

/* --- program.c ----------------------------------------------------------------------------- */
enum block { CNA, CORE, DPU, RDMA };
enum reg {
#define REGISTER(block, offset, name, defined, matmul, flying) name,
#include "registers.inc"
#undef REGISTER
    REGISTERS
};
struct registers {
    uint32_t value[REGISTERS];
    bool written[REGISTERS];
};
struct scratch {
    uint8_t *bytes;
    size_t size;
};
struct worker { /* what a core keeps from task to task */
    enum driver driver;
    int index;
    struct registers registers;
    bool warm; /* the registers have been given values */
    struct scratch scratch;
    struct why why;
};
struct program {
    uint32_t enable;
    uint32_t next, next_amount; /* of the chain; 0, 0: it ends here */
    uint32_t length;            /* commands, with the enable */
};
enum { ENABLE_SHORT = 0x0D, ENABLE_FULL = 0x1D, ENABLE_FLYING = 0x18 };

/* What one task did, and the model's estimate of what it costs. */
struct cost {
    uint64_t macs, mac_cycles;           /* useful products; cycles of the MAC array */
    uint64_t features, weights, outputs; /* bytes moved */
    double ns;                           /* the model's, not a measurement */
    char shape[64];
};

struct run { /* one task on one core */
    const struct space *space;
    const struct bo *list; /* that holds the commands */
    struct job *job;
    struct worker *worker;
    struct why *why;
    bool chained, first, write;
    struct cost cost;
    uint8_t *out; /* what it writes, first to last byte */
    uint64_t out_size;
};

/* Reads a list of `words` commands into the worker's registers. */
bool program_read(struct run *run, uint32_t address, uint32_t words, struct program *program);
/* Whether every register of an operation was written, with the only value that works. */
bool program_constants(const struct run *run, bool flying, bool rdma);
bool refuse_register(struct why *why, enum reg reg, uint32_t value, const char *reason);
/* What `run` has in a register; checks of it run in order, the first that fails is the reason. */
#define VALUE(reg) (run->worker->registers.value[reg])
#define CHECK(reg, good, reason)                                                                   \
    do {                                                                                           \
        if (!(good)) {                                                                             \
            return refuse_register(run->why, reg, VALUE(reg), reason);                             \
        }                                                                                          \
    } while (0)
/* The bytes of a buffer at an address, as the NPU sees them, or NULL and a reason. */
uint8_t *dma(struct run *run, uint32_t address, uint64_t size, const char *what);
/* At least `size` bytes, aligned to 64, that last until the next call. */
uint8_t *scratch_get(struct scratch *scratch, size_t size);

/* --- chain.c ------------------------------------------------------------------------------- */
/* Runs the tasks of a segment; false: the hardware would hang, and worker->why says where. */
bool segment_run(struct segment *segment, struct worker *worker);

/* --- check.c, matmul.c --------------------------------------------------------------------- */
enum input { INT8, FP16, BF16, TF32, INT4 };
struct format { /* of both operands */
    const char *name;
    uint32_t precision; /* code */
    uint32_t group;     /* output channels at a time */
    uint32_t k_tile;    /* input channels at a time: K is a multiple */
    uint32_t bits;
};
extern const struct format formats[];
enum output { TO_INT32, TO_INT16, TO_FP32, TO_FP16, TO_BF16 };
struct matmul {
    enum input in;
    enum output out;
    const struct format *format;
    uint32_t out_bytes;
    uint32_t k, n;          /* channels, padded */
    uint32_t width, height; /* of the feature cube: its product is M */
    uint32_t out_width, out_height;
    bool group_line_off;
    uint32_t line_stride; /* atoms of 16 bytes */
    int32_t surface_stride;
    uint32_t features, weights, output; /* addresses */
    uint32_t surfaces;                  /* of 16 bytes that a group of channels makes */
    uint32_t surface_pitch, group_pitch, notch;
    bool weight_reuse, data_reuse;
    uint32_t banks; /* register value */
};
bool matmul_check(struct run *run, uint32_t enable, struct matmul *mm);
/* `last` is the matmul before in the same chain, or NULL. */
bool matmul_reuse(struct run *run, const struct matmul *mm, const struct matmul *last);
bool matmul_run(struct run *run, const struct matmul *mm);
bool flying_run(struct run *run);

/* Where the DPU writes: the 16 bytes of (row, column, surface). */
struct writer {
    uint8_t *bytes;                       /* the first of the cube */
    uint64_t size;                        /* to its last */
    uint64_t row, column, surface, group; /* strides */
    uint32_t rows, columns, surfaces, groups;
};
bool writer_open(struct run *run, uint32_t address, struct writer *writer);
/* Whether what a task reads is not what it writes. */
bool apart(struct run *run, const uint8_t *bytes, uint64_t size, const char *what);

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
void cost_flying(uint64_t elements, enum driver driver, int cores, bool first, struct cost *cost);
double cost_submit_ns(enum driver driver);

#endif
