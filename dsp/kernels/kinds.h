/* The kernels, one file for each kind of weights; multiply.c chooses a kernel. */
#ifndef NPURT_KINDS_H
#define NPURT_KINDS_H

#include "product.h"

typedef void kernel(const job *job);

typedef struct {
    kernel *rows; /* for NPURT_PANEL rows */
    kernel *row;  /* for one row */
} kernels;

extern const kernels npurt_kernels_q4, npurt_kernels_q4_offset, npurt_kernels_lut, npurt_kernels_q8,
    npurt_kernels_q8_offset, npurt_kernels_q8_g16, npurt_kernels_q8_g16_offset, npurt_kernels_q16,
    npurt_kernels_per_channel;

#endif
