/*
 * y[panel][row][16] = x[row][0..k) . W^T          int8 x 4/5/6/8-bit codes
 *
 * Arguments as in gemv__avx512vnni.c; vectors have 4 rows (gemv_neon.h).
 * Needs   Armv8.0.
 * Exact   equal bit for bit to every other gemv.
 */
#include "gemv_neon.h"

#define NPURT_FORMAT(name, number, bits, book, shift, group, scale, offset)                        \
    npurt_gemv_fn npurt_gemv_##name##__neon;                                                       \
    void npurt_gemv_##name##__neon(const uint8_t *image, int panels, const npurt_row *x, int rows, \
                                   float *y)                                                       \
    {                                                                                              \
        gemv((npurt_format){number, bits, book, shift, group, scale, offset}, image, panels, x,    \
             rows, y);                                                                             \
    }
#include "formats.inc"
