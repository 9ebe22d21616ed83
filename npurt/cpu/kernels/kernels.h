/*
 * The kernels and the table that chooses among them.  Internal to the library.
 */
#ifndef NPURT_KERNELS_H
#define NPURT_KERNELS_H

#include "layout.h"
#include "npurt_cpu.h"
#include "vec.h"

/*
 * The numbers of an int16 input are REMAINDER_STEPS * code + remainder: one step for each of the 255
 * codes from -127 to 127.  The sums of a group are added as integers; a product with 255 is a shift
 * and a subtraction, which run beside the products.
 */
enum { REMAINDER_STEPS = NPURT_REMAINDER_STEPS };

/* One quantised row of a matmul input. */
typedef struct {
    const int8_t *codes;
    const int8_t *remainders; /* NULL for all rows of a product, or for none */
    const npurt_block *blocks;
    int64_t k;
} npurt_row;

/* Row `row` of an input, from a block on; the next is k codes, k / 32 blocks further. */
static inline npurt_row npurt_row_of(const npurt_input *x, int64_t row, int64_t block)
{
    const int64_t at = row * x->k + block * BLOCK;
    return (npurt_row) {
        .codes = x->codes + at,
        .remainders = x->remainders ? x->remainders + at : NULL,
        .blocks = x->blocks + at / BLOCK,
        .k = x->k,
    };
}

/* Element `at` of a row, in units of its block's scale. */
static inline int32_t npurt_number(const npurt_row *x, int64_t at)
{
    return x->remainders ? x->codes[at] * REMAINDER_STEPS + x->remainders[at] : x->codes[at];
}

/* One record of one panel, expanded for use with many rows. */
typedef struct {
    _Alignas(64) uint8_t codes[RECORD_BLOCKS][8][64]; /* code + (1 << shift), unsigned */
    _Alignas(64) float scales[2 * RECORD_BLOCKS][ROWS];
    _Alignas(64) float offsets[2 * RECORD_BLOCKS][ROWS];
    int blocks, group, shift, offset;
} npurt_tile;

enum { GEMV_ROWS = 32, FEW_ROWS = 16 };
enum { DELTA_ROWS = 64 };

/* Memory of a thread: the copy of an input, then results.  Most ops use it as they like. */
enum {
    COPY_BYTES = 256 << 10,
    RESULT_BYTES = 512 << 10,
    SCRATCH_BYTES = COPY_BYTES + RESULT_BYTES,
};

/* y[panels][rows][16] = rows of x, at most GEMV_ROWS, times the panels of an image. */
typedef void npurt_gemv_fn(const uint8_t *image, int panels, const npurt_row *x, int rows,
                           float *y);

/* Expands a record of `blocks` blocks. */
typedef void npurt_expand_fn(const uint8_t *record, int blocks, npurt_tile *tile);

/* y[rows][16] += x[first_row..][32 * block..] . tile^T */
typedef void npurt_gemm_fn(const npurt_tile *w, const npurt_input *x, int64_t first_row, int rows,
                           int64_t block, float *y);

/* As gemv and gemm, for float weights: image [panel][k][16] of f32, f16 or bf16. */
typedef void npurt_dense_fn(const uint8_t *image, int panels, const float *x, int rows, int64_t k,
                            float *y, int64_t stride);

/*
 * y[rows][stride] columns 0..15 = x[rows][4 * quads] . w^T, exact.  w [quads][16][4] holds
 * b + 128, unsigned; minus[row] is -128 times the sum of the row of x.
 */
typedef void npurt_i8_fn(const uint8_t *w, int64_t quads, const int8_t *x, const int32_t *minus,
                         int rows, int32_t *y, int64_t stride);

/* What does not multiply integers, compiled once a vector level. */
typedef struct {
#define NPURT_KERNEL(name, parameters) void(*name) parameters;
#include "ops.inc"
    int (*row_is_right)(const npurt_matmul *m, const npurt_weight *w, int64_t row);
    npurt_dense_fn *dense[3]; /* f32, f16, bf16 */
    npurt_expand_fn *expand[FORMATS];
} npurt_level;

#ifdef NPURT_LEVEL /* in files that are compiled for each */
#define NPURT_KERNEL(name, parameters) void AT_LEVEL(npurt_##name) parameters;
#include "ops.inc"
int AT_LEVEL(npurt_row_is_right)(const npurt_matmul *m, const npurt_weight *w, int64_t row);
#endif

/* One instruction set: its vector level and its kernels. */
typedef struct {
    const char *name;
    int (*works)(void);
    const npurt_level *level;
    npurt_gemv_fn *gemv[FORMATS];
    npurt_gemm_fn *gemm; /* for more than FEW_ROWS; NULL where gemv is the faster for any number */
    npurt_i8_fn *i8;
} npurt_isa;

extern const npurt_isa npurt_isas[];
extern const int npurt_isas_count;

#endif
