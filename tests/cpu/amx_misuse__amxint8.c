/*
 * Misuses AMX in one way per run, so that a test can see that the emulator refuses each misuse.
 * Run 0 uses AMX correctly; its status is 0 if the product is right.
 */
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint8_t config[64];
static int8_t a[16][64];
static uint8_t b[16][64];
static int32_t c[16][16];

enum { COLUMN_BYTES = 16, TILE_ROWS = 48 }; /* offsets in the configuration */

static void shape(int tile, int rows, int bytes)
{
    config[COLUMN_BYTES + 2 * tile] = (uint8_t) bytes;
    config[TILE_ROWS + tile] = (uint8_t) rows;
}

/* Tile 0: 5 x 7 sums of tile 1, 5 x 12, and tile 2, 12 x 7. */
static void fit(void)
{
    config[0] = 1;
    shape(0, 5, 28);
    shape(1, 5, 12);
    shape(2, 3, 28);
}

static int product_is_right(void)
{
    for (int m = 0; m < 5; m++) {
        for (int n = 0; n < 7; n++) {
            int32_t sum = 1000 * m + n;
            for (int k = 0; k < 12; k++) {
                sum += a[m][k] * b[k / 4][4 * n + k % 4];
            }
            if (c[m][n] != sum) {
                return 0;
            }
        }
    }
    return c[5][0] == 5000 && c[0][7] == 7; /* the rest is unchanged */
}

/* The ud2 in front of the instruction makes the emulator catch it on every machine. */
static void load_config(void)
{
    __asm__ volatile("ud2\n\tldtilecfg %0" : : "m"(config));
}

static void release(void)
{
    __asm__ volatile("ud2\n\ttilerelease");
}

static int multiply(void)
{
    for (int i = 0; i < 16 * 64; i++) {
        a[i / 64][i % 64] = (int8_t) (37 * i);
        b[i / 64][i % 64] = (uint8_t) (91 * i);
        c[i / 64][i % 16] = 1000 * (i / 64) + i % 16;
    }
    load_config();
    _tile_loadd(0, c, 64);
    _tile_loadd(1, a, 64);
    _tile_loadd(2, b, 64);
    _tile_dpbsud(0, 1, 2);
    _tile_stored(0, c, 64);
    release();
    return product_is_right() ? 0 : 1;
}

int main(int argc, char **argv)
{
    fit();
    switch (argc > 1 ? atoi(argv[1]) : 0) {
    case 1:
        _tile_zero(0);
        break;
    case 2:
        load_config();
        _tile_zero(3);
        break;
    case 3:
        shape(1, 5, 16);
        break;
    case 4:
        shape(1, 6, 12);
        break;
    case 5:
        shape(2, 3, 32);
        break;
    case 6:
        shape(4, 17, 64);
        break;
    case 7:
        shape(4, 16, 68);
        break;
    case 8:
        shape(4, 0, 64);
        break;
    case 9:
        config[0] = 2;
        break;
    case 10:
        config[5] = 1;
        break;
    case 11:
        shape(0, 5, 27);
        shape(2, 3, 27);
        break;
    case 12:
        load_config();
        release();
        _tile_zero(0);
        break;
    case 13:
        load_config();
        __asm__ volatile(".byte 0xC4, 0xE2, 0x72, 0x5E, 0xC1"); /* tdpbsud 0, 1, 1 */
        break;
    case 14:
        __asm__ volatile("ud2");
        break;
    }
    return multiply();
}
