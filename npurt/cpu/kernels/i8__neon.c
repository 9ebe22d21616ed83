/*
 * y[rows][0..16) = x[rows][4 * quads] . w^T          int8 x int8 -> int32, exact
 *
 * Arguments as npurt_i8_fn in kernels.h.  Sums wrap modulo 2^32, so the caller must limit k.
 * The algorithm is that of i8__avx512vnni.c, with 4 rows of w per vector (i8_neon.h).
 * Needs   Armv8.0.
 */
#include "i8_neon.h"

void npurt_i8__neon(const uint8_t *w, int64_t quads, const int8_t *x, const int32_t *minus,
                    int rows, int32_t *y, int64_t stride)
{
    (void) minus;
    multiply(w, quads, x, rows, y, stride);
}
