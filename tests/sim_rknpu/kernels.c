/*
 * Every variant of the inner loops that this machine can run gives the same bits as the plain one.
 * Prints the names of those that were compared.
 */
#include "kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 5, MAX_TILES = 121, MAX_K = 32 * MAX_TILES };

static int8_t a[MAX_ROWS * MAX_K], w[32 * MAX_K];
static int32_t want[MAX_ROWS * 32], got[MAX_ROWS * 32];
static double x[MAX_ROWS * 512], y[16 * 512], sums[2][MAX_ROWS * 16], wide[2][65536];
static uint16_t narrow[65536];

static int compare_dot(dot_fn *dot, const char *name)
{
    for (int edge = 0; edge < 2; edge++) {
        for (size_t i = 0; i < sizeof(a); i++) {
            a[i] = (int8_t) (edge ? -128 : rand());
        }
        for (size_t i = 0; i < sizeof(w); i++) {
            w[i] = (int8_t) (edge ? -128 : rand());
        }
        for (size_t rows = 1; rows <= MAX_ROWS; rows++) {
            for (size_t tiles = 1; tiles <= MAX_TILES; tiles = tiles * 3 + 1) {
                memset(got, 0x55, sizeof(got));
                dot__scalar(a, rows, MAX_K, w, tiles, want);
                dot(a, rows, MAX_K, w, tiles, got);
                if (memcmp(want, got, rows * 32 * sizeof(*got))) {
                    printf("%s differs: %zu rows, %zu tiles\n", name, rows, tiles);
                    return 1;
                }
            }
        }
    }
    printf("%s\n", name);
    return 0;
}

static double half(void)
{
    narrow[0] = (uint16_t) (rand() & 0x7BFF) | (uint16_t) (rand() & 0x8000);
    floats_best->widen(FP16, (const uint8_t *) narrow, 1, wide[0]);
    return wide[0][0];
}

static int compare_floats(const struct floats *floats, const struct floats *plain, const char *name)
{
    for (size_t i = 0; i < sizeof(x) / sizeof(*x); i++) {
        x[i] = half();
    }
    for (size_t i = 0; i < sizeof(y) / sizeof(*y); i++) {
        y[i] = half();
    }
    for (uint32_t i = 0; i < 65536; i++) {
        narrow[i] = (uint16_t) i;
    }
    for (enum input type = FP16; type <= TF32; type++) {
        const size_t count = type == TF32 ? 32768 : 65536;
        floats->widen(type, (const uint8_t *) narrow, count, wide[0]);
        plain->widen(type, (const uint8_t *) narrow, count, wide[1]);
        if (memcmp(wide[0], wide[1], count * sizeof(double))) {
            printf("%s widens differently\n", name);
            return 1;
        }
    }
    for (size_t rows = 1; rows <= MAX_ROWS; rows++) {
        floats->multiply(x, rows, 512, y, sums[0]);
        plain->multiply(x, rows, 512, y, sums[1]);
        if (memcmp(sums[0], sums[1], rows * 16 * sizeof(double))) {
            printf("%s differs: %zu rows\n", name, rows);
            return 1;
        }
    }
    printf("%s\n", name);
    return 0;
}

int main(void)
{
    int bad = 0;
#if defined(__x86_64__)
    if (dot_best != dot__scalar) {
        bad |= compare_dot(dot__avx2, "dot__avx2");
        bad |= compare_floats(&floats__avx2, &floats__base, "floats__avx2");
    }
    if (dot_best == dot__avx512vnni) {
        bad |= compare_dot(dot__avx512vnni, "dot__avx512vnni");
        bad |= compare_floats(&floats__avx512, &floats__base, "floats__avx512");
    }
#else
    bad |= compare_dot(dot__dotprod, "dot__dotprod");
    bad |= compare_floats(&floats__fp16, &floats__base, "floats__fp16");
#endif
    return bad;
}
