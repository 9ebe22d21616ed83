/*
 * Converts float operands to double, and multiplies them.
 *
 * Each sum has eight lanes (k modulo 8), which are added as a tree.  Products of 11-bit mantissas
 * are exact in double, fused or not.  So every variant gives the same bits.
 */
#include "kernels.h"

#include <string.h>

#pragma clang fp contract(fast)

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
enum { COLUMNS = 16, LANES = 8, ROWS = 2, BLOCK = 4 }; /* a block: 2 rows by 4 columns of sums */

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Converts halves to doubles: the exponents' biases of half and float differ by 112, for subnormals
 * too. */
static void widen_halves(const uint16_t *from, size_t count, double *to)
{
    for (size_t i = 0; i < count; i++) {
        const uint32_t rest = (uint32_t) (from[i] & 0x7FFF) << 13;
        const uint32_t sign = (uint32_t) (from[i] & 0x8000) << 16;
        const float finite = float_of(sign | rest) * 0x1p112F;
        const float other = float_of(sign | rest | 0x70000000); /* infinity, NaN */
        to[i] = rest < 0x0F800000 ? finite : other;
    }
}

static void widen(enum input type, const uint8_t *from, size_t count, double *to)
{
    const uint16_t *narrow = (const uint16_t *) from;
    const uint32_t *wide = (const uint32_t *) from;
    if (type == FP16) {
        widen_halves(narrow, count, to);
        return;
    }
    for (size_t i = 0; i < count && type == BF16; i++) {
        to[i] = float_of((uint32_t) narrow[i] << 16);
    }
    for (size_t i = 0; i < count && type == TF32; i++) {
        to[i] = float_of(wide[i] & 0xFFFFE000); /* truncated, not rounded: npu-notes */
    }
}

static double total(const double *lanes)
{
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
           ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

static inline void block(const double *a, size_t rows, size_t k, const double *w, double *out)
{
    double sums[ROWS][BLOCK][LANES] = {{{0}}};
    for (size_t i = 0; i < k; i += LANES) {
        for (size_t r = 0; r < rows; r++) {
            for (size_t n = 0; n < BLOCK; n++) {
                for (size_t lane = 0; lane < LANES; lane++) {
                    sums[r][n][lane] += a[r * k + i + lane] * w[n * k + i + lane];
                }
            }
        }
    }
    for (size_t r = 0; r < rows; r++) {
        for (size_t n = 0; n < BLOCK; n++) {
            out[r * COLUMNS + n] = total(sums[r][n]);
        }
    }
}

static void multiply(const double *a, size_t rows, size_t k, const double *w, double *out)
{
    for (size_t n = 0; n < COLUMNS; n += BLOCK) {
        size_t r = 0;
        for (; r + ROWS <= rows; r += ROWS) {
            block(a + r * k, ROWS, k, w + n * k, out + r * COLUMNS + n);
        }
        for (; r < rows; r++) {
            block(a + r * k, 1, k, w + n * k, out + r * COLUMNS + n);
        }
    }
}

const struct floats JOIN(floats__, NPURT_LEVEL) = {widen, multiply};
