/* The variants of the two inner loops. */
#ifndef RKNPU_SIM_KERNELS_H
#define RKNPU_SIM_KERNELS_H

#include "npu.h"

dot_fn dot__scalar, dot__avx2, dot__avx512vnni, dot__dotprod;
extern const struct floats floats__base, floats__avx2, floats__avx512, floats__fp16;

#endif
