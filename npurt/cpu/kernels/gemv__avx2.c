/*
 * y[panel][row][16] = x[row][0..k) . W^T          int8 x 4/5/6/8-bit codes
 *
 * Arguments as in gemv__avx512vnni.c; vectors have 8 rows (gemv_avx2.h).
 * Needs   AVX2, FMA, F16C.
 * Exact   equal bit for bit to every other gemv.
 */
#include "gemv_avx2.h"

#define NPURT_FORMAT(name, number, bits, book, shift, group, scale, offset)                        \
    npurt_gemv_fn npurt_gemv_##name##__avx2;                                                       \
    void npurt_gemv_##name##__avx2(const uint8_t *image, int panels, const npurt_row *x, int rows, \
                                   float *y)                                                       \
    {                                                                                              \
        gemv((npurt_format){number, bits, book, shift, group, scale, offset}, image, panels, x,    \
             rows, y);                                                                             \
    }
#include "formats.inc"
