/*
 * out[rows][32] = a[rows][32 * tiles] . w[tiles][32][32]^T int8 x int8 -> int32
 *
 * The variant of dot__*.c for any machine; tests compare the other variants with it.
 */
#include "kernels.h"

#include <string.h>

void dot__scalar(const int8_t *a, size_t rows, size_t stride, const int8_t *w, size_t tiles,
                 int32_t *out)
{
    memset(out, 0, rows * 32 * sizeof(*out));
    for (size_t r = 0; r < rows; r++, a += stride, out += 32) {
        for (size_t t = 0; t < tiles; t++) {
            for (size_t n = 0; n < 32; n++) {
                const int8_t *kernel = w + (t * 32 + n) * 32;
                int32_t sum = 0;
                for (size_t k = 0; k < 32; k++) {
                    sum += a[t * 32 + k] * kernel[k];
                }
                out[n] += sum;
            }
        }
    }
}
