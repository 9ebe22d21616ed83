/*
 * The interface of the HVX kernels, for the executor.
 *
 *   y[m][n] = x[m][k] . w[n][k]
 *
 * x is quantised once (npurt_quantise), then multiplied by tiles of 32 rows of w (npurt_multiply).
 * The executor divides rows and tiles among threads.  No kernel allocates, locks, logs or reads the
 * clock.  A kernel uses less than 16 KB of stack, and no other memory besides its arguments.
 *
 * All arithmetic uses integer instructions, also for the bit patterns of float32.  So all builds
 * give the same bits as tests/hexagon/model.py.
 */
#ifndef NPURT_KERNELS_H
#define NPURT_KERNELS_H

#include "npurt_msg.h"
#include <stddef.h>
#include <stdint.h>

#define NPURT_VECTOR 128u /* bytes; every pointer below is aligned to it unless stated otherwise */
#define NPURT_TILE 32u    /* rows of w that are multiplied together: columns of y */
#define NPURT_STEP 64u    /* columns of w in one step of a kernel; k is padded to it with zeros */
#define NPURT_PANEL 4u    /* rows of x that are multiplied together */

/* A row of dsp/formats.inc. */
typedef struct npurt_format npurt_format;

/* Return the format with this number, or NULL. */
const npurt_format *npurt_find_format(uint32_t number);

/* Return the lowest Hexagon version with a kernel for the format: 68 for v68. */
uint32_t npurt_format_arch(const npurt_format *format);

/* Return the bytes of a tile of w.  An image has ceil(n / NPURT_TILE) consecutive tiles. */
size_t npurt_tile_bytes(const npurt_format *format, uint32_t k);

/*
 * Return 1 if the format supports activations with this group: 32 or 128 columns per scale.  i8
 * supports only group 0, which is one scale per row.
 */
int npurt_takes_group(const npurt_format *format, uint32_t group);

/* Return the bytes of m quantised rows, and the bytes of scratch memory that npurt_quantise needs
 * in each thread. */
size_t npurt_activation_bytes(uint32_t m, uint32_t k);
size_t npurt_quantise_scratch(uint32_t k);

typedef struct {
    const float *x;    /* [m][k] */
    size_t x_stride;   /* bytes from row to row, a multiple of 128 */
    uint32_t m, k;     /* k a multiple of 32, at most NPURT_MAX_K */
    uint32_t group;    /* 32, 128, or 0: the whole row */
    void *activations; /* npurt_activation_bytes(m, k); the same for all formats with this group */
} npurt_quantisation;

/*
 * Quantise rows first..last-1.  first is a multiple of NPURT_PANEL; last is such a multiple or m.
 * Return 0, or 1 if a row holds NaN or infinity; the quantised rows are then invalid.
 */
int npurt_quantise(const npurt_quantisation *q, uint32_t first, uint32_t last, void *scratch);

typedef struct {
    const npurt_format *format;
    const void *activations; /* m rows of k columns from npurt_quantise */
    float *y;                /* [m][n], aligned to 4 */
    size_t y_stride;         /* bytes from row to row, a multiple of 4 */
    uint32_t m, k, n;
} npurt_product;

/*
 * Compute columns 32 * first .. 32 * last - 1 of y for all m rows, but no column beyond n.  `tiles`
 * points to tile `first`, in DDR or VTCM; the other tiles follow.  The tiles of one call should fit
 * into the cache or VTCM, because the kernel reads them again for each panel of rows.
 */
void npurt_multiply(const npurt_product *p, const void *tiles, uint32_t first, uint32_t last);

#endif
