/*
 * What the host does before and after a product on the RK3588 NPU: rotate and round rows to int8,
 * and give the exact sums their scales.  cffi reads this header.
 */
#ifndef NPURT_RK_H
#define NPURT_RK_H

#include <stdint.h>

#ifdef __GNUC__
#define NPURT_API __attribute__((visibility("default")))
#else
#define NPURT_API
#endif

/*
 * Round m rows of k floats, row i at x + i * pitch, to int8 with one scale a row.
 *
 * Each row is padded with zeros to kp, multiplied by signs (kp of +-1; NULL: left as it is) and
 * transformed by an unnormalised Walsh-Hadamard matrix in every block of columns (a power of two
 * that divides kp; 1: not at all).  Then, in float32: scale = amax / 127, code = rint(z * (127 /
 * amax)); with two passes the rest follows in row m + i, low = rint((z * (127 / amax) - code) * 254),
 * so that z is about scale * (code + low / 254).  A row whose 127 / amax is not finite is zero.
 *
 * codes: [passes * m][kp]; scales: [m]; scratch: kp floats.
 * Returns 0, or i + 1 when row i holds NaN or infinity or overflows in the transform.
 */
NPURT_API int npurt_rk_round(const float *x, int64_t pitch, int m, int k, int kp,
                             const int8_t *signs, int block, int passes, int8_t *codes,
                             float *scales, float *scratch);

/*
 * y[i][n] (+)= sum[i][n] * scales[i] * w[n], for m rows of n results; the sums are [passes * m]
 * [columns], and with two passes a sum is sum[i] + sum[m + i] / 254.  Computed in double, rounded
 * once; with add, once more.
 */
NPURT_API void npurt_rk_rescale(const int32_t *sums, int m, int n, int columns, int passes,
                                const float *scales, const float *w, float *y, int64_t pitch,
                                int add);

#endif
