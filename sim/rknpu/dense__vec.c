/*
 * out[rows][16] = a[rows][k] . w[k][16]         double
 *
 * The sums run over k one after the other in every variant, and products of 11-bit mantissas are
 * exact in double, so all variants give the same bits.
 */
#include "kernels.h"

#include <string.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
enum { COLUMNS = 16, ROWS = 4 };

static inline void few_rows(const double *a, size_t rows, size_t k, const double *w, double *out)
{
    double sums[ROWS][COLUMNS] = {{0}};
    for (size_t i = 0; i < k; i++) {
        for (size_t r = 0; r < rows; r++) {
            const double value = a[r * k + i];
            for (size_t n = 0; n < COLUMNS; n++) {
                sums[r][n] += value * w[i * COLUMNS + n];
            }
        }
    }
    memcpy(out, sums, rows * sizeof(sums[0]));
}

void JOIN(dense__, NPURT_LEVEL)(const double *a, size_t rows, size_t k, const double *w,
                                double *out)
{
    size_t done = 0;
    for (; done + ROWS <= rows; done += ROWS) {
        few_rows(a + done * k, ROWS, k, w, out + done * COLUMNS);
    }
    for (; done < rows; done++) {
        few_rows(a + done * k, 1, k, w, out + done * COLUMNS);
    }
}
