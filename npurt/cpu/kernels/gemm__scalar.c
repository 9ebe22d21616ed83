/*
 * y[rows][16] += x[rows][blocks * 32] . tile^T     portable C: the reference for all other gemms
 *
 * Exact   as stated in gemv__avx512vnni.c.
 */
#include "kernels.h"
#include <math.h>

static float one(const npurt_tile *w, const npurt_row *x, int n, float y)
{
    const int per_block = BLOCK / w->group;
    const int bias = w->shift < 0 ? 0 : 1 << w->shift;
    for (int g = 0; g < w->blocks * per_block; g++) {
        const npurt_block *b = x->blocks + g / per_block;
        int32_t dot = 0;
        for (int e = g * w->group; e < (g + 1) * w->group; e++) {
            const int code = w->codes[e / BLOCK][e % BLOCK / 4][n * 4 + e % 4];
            dot += (code - bias) * npurt_number(x, e);
        }
        y = fmaf((float) dot, w->scales[g][n] * b->scale, y);
        if (w->offset) {
            y = fmaf(w->offsets[g][n], w->group == 32 ? b->sum : b->sums[g % 2], y);
        }
    }
    return y;
}

void npurt_gemm__scalar(const npurt_tile *w, const npurt_input *x, int64_t row, int rows,
                        int64_t block, float *y)
{
    for (int r = 0; r < rows; r++) {
        const npurt_row of_x = npurt_row_of(x, row + r, block);
        for (int n = 0; n < ROWS; n++) {
            y[r * ROWS + n] = one(w, &of_x, n, y[r * ROWS + n]);
        }
    }
}
