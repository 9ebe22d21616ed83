/*
 * y[rows][16] += x[rows][blocks * 32] . tile^T          int8 x 8-bit codes
 *
 * Arguments as in gemm__i8mm.c; vectors have 4 rows of weights (gemm_neon.h).
 * Needs   Armv8.2 dot products (sdot).
 * Exact   equal bit for bit to every other gemm.
 */
#include "gemm_neon.h"

void npurt_gemm__dotprod(const npurt_tile *w, const npurt_input *x, int64_t row, int rows,
                         int64_t block, float *y)
{
    gemm(w, x, row, rows, block, y);
}
