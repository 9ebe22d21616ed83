/* The variants of the two inner loops, and how the best is found. */
#ifndef RKNPU_SIM_KERNELS_H
#define RKNPU_SIM_KERNELS_H

#include "sim.h"

dot_fn dot__scalar, dot__avx2, dot__avx512vnni, dot__dotprod;
dense_fn dense__base, dense__avx2, dense__avx512, dense__fp16;

#endif
