/* The kernels, one file a kind of weights; multiply.c chooses. */
#ifndef NPURT_KINDS_H
#define NPURT_KINDS_H

#include "product.h"

enum { TILES = 4 }; /* that a gemv takes together */

typedef void product_kernel(const call *call, vec out[]);

typedef struct {
    product_kernel *rows;  /* NPURT_PANEL rows times a tile: out[row] */
    product_kernel *tiles; /* a row times TILES tiles: out[tile] */
    product_kernel *tile;  /* a row times a tile: out[0] */
} kernels;

extern const kernels npurt_kernels_nib, npurt_kernels_nibm, npurt_kernels_lut, npurt_kernels_byte,
    npurt_kernels_bytem, npurt_kernels_half, npurt_kernels_halfm, npurt_kernels_wide,
    npurt_kernels_chan;

#endif
