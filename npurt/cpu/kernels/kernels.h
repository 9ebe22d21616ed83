/*
 * The kernels, and the table of kernels for each instruction set.  Internal to the library.
 */
#ifndef NPURT_KERNELS_H
#define NPURT_KERNELS_H

#include "layout.h"
#include "npurt_cpu.h"
#include "vec.h"

/*
 * The numbers of an int16 input are REMAINDER_STEPS * code + remainder.  REMAINDER_STEPS is the
 * number of codes from -127 to 127.  A group's two dot products are combined as integers; times 255
 * is a shift and a subtraction, which a CPU executes in parallel with multiplications.
 */
enum { REMAINDER_STEPS = NPURT_REMAINDER_STEPS };

/* One quantised row of a matmul input. */
typedef struct {
    const int8_t *codes;
    const int8_t *remainders; /* NULL if the input is not int16 */
    const npurt_block *blocks;
    int64_t k;
} npurt_row;

/* Returns row `row` of an input, from a block on.  The next row is k codes and k / 32 blocks
 * further in memory. */
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

/* Returns element `at` of a row, in units of its block's scale. */
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

/* Sizes of a thread's scratch.  Repeatable matmuls put the copy of their input there, then results;
 * other ops use it in their own way. */
enum {
    COPY_BYTES = 256 << 10,
    RESULT_BYTES = 512 << 10,
    SCRATCH_BYTES = COPY_BYTES + RESULT_BYTES,
};

/* y[panels][rows][16] = up to GEMV_ROWS rows of x times the panels of an image. */
typedef void npurt_gemv_fn(const uint8_t *image, int panels, const npurt_row *x, int rows,
                           float *y);

/* Expands a record of `blocks` blocks. */
typedef void npurt_expand_fn(const uint8_t *record, int blocks, npurt_tile *tile);

/* y[rows][16] += x[first_row..][32 * block..] . tile^T */
typedef void npurt_gemm_fn(const npurt_tile *w, const npurt_input *x, int64_t first_row, int rows,
                           int64_t block, float *y);

/* Products with float weights: image [panel][k][16] of f32, f16 or bf16. */
typedef void npurt_dense_fn(const uint8_t *image, int panels, const float *x, int rows, int64_t k,
                            float *y, int64_t stride);

/*
 * Columns 0..15 of y[rows][stride] = x[rows][4 * quads] . w^T, exact.  w [quads][16][4] is b + 128,
 * unsigned; minus[row] is -128 times the sum of the row of x.
 */
typedef void npurt_i8_fn(const uint8_t *w, int64_t quads, const int8_t *x, const int32_t *minus,
                         int rows, int32_t *y, int64_t stride);

/* The kernels that do not multiply integers, compiled once for each vector level. */
typedef struct {
#define NPURT_KERNEL(name, parameters) void(*name) parameters;
#include "ops.inc"
    int (*row_is_right)(const npurt_matmul *m, const npurt_weight *w, int64_t row);
    npurt_dense_fn *dense[3]; /* f32, f16, bf16 */
    npurt_expand_fn *expand[FORMATS];
} npurt_level;

#ifdef NPURT_LEVEL /* defined in files that are compiled once for each vector level */
#define NPURT_KERNEL(name, parameters) void AT_LEVEL(npurt_##name) parameters;
#include "ops.inc"
int AT_LEVEL(npurt_row_is_right)(const npurt_matmul *m, const npurt_weight *w, int64_t row);
#endif

/* Does the same as npurt_best for the numbers in `ranges`; writes the number of NaNs to *nans. */
int64_t npurt_best_of(const float *x, const npurt_range *ranges, int64_t ranges_count, int64_t k,
                      int32_t *best, int64_t *nans);

/* One instruction set: its vector level and its kernels. */
typedef struct {
    const char *name;
    int (*works)(void);
    const npurt_level *level;
    npurt_gemv_fn *gemv[FORMATS];
    npurt_gemm_fn *gemm; /* for more than FEW_ROWS rows; NULL if gemv is always faster */
    npurt_i8_fn *i8;
} npurt_isa;

extern const npurt_isa npurt_isas[];
extern const int npurt_isas_count;

#endif
