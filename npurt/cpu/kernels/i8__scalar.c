/*
 * y[rows][0..16) = x[rows][4 * quads] . w^T          int8 x int8 -> int32, exact, portable C
 *
 * Arguments as npurt_i8_fn in kernels.h.  Sums wrap modulo 2^32, so the caller must limit k.
 */
#include "kernels.h"

void npurt_i8__scalar(const uint8_t *w, int64_t quads, const int8_t *x, const int32_t *minus,
                      int rows, int32_t *y, int64_t stride)
{
    for (int r = 0; r < rows; r++) {
        for (int n = 0; n < ROWS; n++) {
            uint32_t sum = (uint32_t) minus[r];
            for (int64_t k = 0; k < 4 * quads; k++) {
                const int32_t code = w[(k / 4 * ROWS + n) * 4 + k % 4];
                sum += (uint32_t) (code * x[r * 4 * quads + k]);
            }
            y[r * stride + n] = (int32_t) sum;
        }
    }
}
