/* The kernels, one file a kind of weights; multiply.c chooses. */
#ifndef NPURT_KINDS_H
#define NPURT_KINDS_H

#include "product.h"

typedef void kernel(const job *job);

typedef struct {
    kernel *rows; /* NPURT_PANEL rows */
    kernel *row;  /* a row */
} kernels;

extern const kernels npurt_kernels_nib, npurt_kernels_nibm, npurt_kernels_lut, npurt_kernels_byte,
    npurt_kernels_bytem, npurt_kernels_half, npurt_kernels_halfm, npurt_kernels_wide,
    npurt_kernels_chan;

#endif
