/* Compute the NPU's sums on the host: see npurt_rk.h.  Clang vectorises the loops over lanes. */
#include "npurt_rk.h"

enum { LANES = 8 };

NPURT_API void npurt_rk_integer_sums(const int8_t *x, const int8_t *w, int m, int n, int k,
                                     int32_t *sums)
{
    for (int column = 0; column < n; column++) {
        for (int i = 0; i < m; i++) {
            const int8_t *a = x + (int64_t) i * k, *b = w + (int64_t) column * k;
            int32_t sum = 0;
            for (int j = 0; j < k; j++) {
                sum += a[j] * b[j];
            }
            sums[(int64_t) i * n + column] = sum;
        }
    }
}

static double sum_of(const float *a, const float *b, int k)
{
    double lanes[LANES] = {0};
    for (int j = 0; j < k; j += LANES) {
        for (int lane = 0; lane < LANES; lane++) {
            lanes[lane] += (double) a[j + lane] * (double) b[j + lane];
        }
    }
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
           ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

NPURT_API void npurt_rk_float_sums(const float *x, const float *w, int m, int n, int k,
                                   const int32_t *slices, int slice_count, double *sums)
{
    for (int column = 0; column < n; column++) {
        for (int i = 0; i < m; i++) {
            const float *a = x + (int64_t) i * k, *b = w + (int64_t) column * k;
            double sum = 0;
            for (int s = 0; s < slice_count; s++) {
                const int at = slices[s];
                sum += (float) sum_of(a + at, b + at, slices[s + 1] - at);
            }
            sums[(int64_t) i * n + column] = sum;
        }
    }
}
