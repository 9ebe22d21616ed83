/*
 * Reads the feature cube as CNA does, as one row of numbers for each pixel of the result.
 *
 * A row of a matmul has K numbers.  A row of a convolution is a window, in the order of kernels in
 * memory: [tile of channels][y][x][channel].  A window's cells outside the cube have the pad value.
 */
#include "npu.h"

#include <string.h>

/* Returns the address of a line's first atom in a surface; the atoms of its other pixels follow. */
static uint32_t feature_address(const struct matmul *mm, uint32_t line, uint32_t surface)
{
    const int64_t width = mm->width, stride = mm->line_stride;
    const int64_t pitch = (mm->group_line_off ? width : 4 * width) + mm->surface_stride;
    const int64_t start = mm->group_line_off ? line * stride : line / 4 * stride + line % 4 * width;
    return mm->features + ATOM * (uint32_t) (start + surface * pitch);
}

static uint32_t surfaces_of(const struct matmul *mm)
{
    return mm->k * mm->format->bits / 8 / ATOM;
}

static const uint8_t *fetch(struct run *run, const struct matmul *mm, uint32_t line,
                            uint32_t surface, uint64_t size)
{
    const uint8_t *from = dma(run, feature_address(mm, line, surface), size, "features");
    return from && apart(run, from, size, "features") ? from : NULL;
}

static void spread_atoms(uint8_t *to, const uint8_t *from, uint32_t pixels, size_t row)
{
    for (uint32_t w = 0; w < pixels; w++) {
        memcpy(to + w * row, from + w * ATOM, ATOM);
    }
}

/* Copies all pixels to rows; surfaces that are adjacent in memory are copied together. */
static bool gather_pixels(struct run *run, const struct matmul *mm, uint8_t *rows)
{
    const size_t row = depth_of(mm) * mm->format->bits / 8;
    const uint32_t surfaces = surfaces_of(mm);
    const bool one = mm->width == 1 && mm->group_line_off && mm->surface_stride == 0;
    for (uint32_t h = 0; h < mm->height; h++, rows += mm->width * row) {
        for (uint32_t s = 0; s < surfaces; s += one ? surfaces : 1) {
            const uint64_t size = one ? (uint64_t) surfaces * ATOM : (uint64_t) mm->width * ATOM;
            const uint8_t *from = fetch(run, mm, h, s, size);
            if (!from) {
                return false;
            }
            if (one) {
                memcpy(rows, from, size);
            } else {
                spread_atoms(rows + s * ATOM, from, mm->width, row);
            }
        }
    }
    return true;
}

/*
 * Fills an atom with the padding of int8.  PAD_CON1 has one value for even channels and one for odd
 * channels.  In a depthwise convolution the second 32 channels of each group of 64 all use the
 * value of even channels, as in the one capture where the two values differ (rocket-userspace,
 * tests/data/teflon-dw-capture).
 */
static void pad_atom(uint8_t *to, const struct matmul *mm, uint32_t surface)
{
    const bool second_half = mm->depthwise && surface % 4 >= 2;
    for (int c = 0; c < ATOM; c++) {
        to[c] = (uint8_t) mm->pad[c % 2 && !second_half];
    }
}

/* Copies atoms from a line of the cube to the rows of a line of results: in each window, the atom
 * in one column of the window. */
static void place(const struct matmul *mm, const uint8_t *line, uint32_t column, uint32_t surface,
                  uint8_t *to, size_t row)
{
    for (uint32_t x = 0; x < mm->pixels_x; x++, to += row) {
        const int64_t at = (int64_t) x * mm->stride_x + column * mm->dilation_x - mm->pad_left;
        if (line && at >= 0 && at < mm->width) {
            memcpy(to, line + at * ATOM, ATOM);
        } else {
            pad_atom(to, mm, surface);
        }
    }
}

static bool gather_windows(struct run *run, const struct matmul *mm, uint8_t *rows)
{
    const size_t tile = (size_t) mm->format->k_tile * mm->format->bits / 8;
    const size_t row = depth_of(mm) * mm->format->bits / 8;
    const uint32_t atoms = (uint32_t) (tile / ATOM);
    const uint32_t taps = mm->kernel_height * mm->kernel_width;
    for (uint32_t y = 0; y < mm->pixels_y; y++, rows += mm->pixels_x * row) {
        for (uint32_t ky = 0; ky < mm->kernel_height; ky++) {
            const int64_t h = (int64_t) y * mm->stride_y + ky * mm->dilation_y - mm->pad_top;
            const bool inside = h >= 0 && h < mm->height;
            for (uint32_t s = 0; s < surfaces_of(mm); s++) {
                const uint64_t size = (uint64_t) mm->width * ATOM;
                const uint8_t *line = inside ? fetch(run, mm, (uint32_t) h, s, size) : NULL;
                if (inside && !line) {
                    return false;
                }
                for (uint32_t kx = 0; kx < mm->kernel_width; kx++) {
                    const size_t tap = s / atoms * taps + ky * mm->kernel_width + kx;
                    place(mm, line, kx, s, rows + tap * tile + s % atoms * ATOM, row);
                }
            }
        }
    }
    return true;
}

bool features_gather(struct run *run, const struct matmul *mm, uint8_t *rows)
{
    if (mm->k % mm->format->k_tile) { /* zeros in the rest of the last tile */
        const size_t pixels = (size_t) mm->pixels_x * mm->pixels_y;
        memset(rows, 0, pixels * depth_of(mm) * mm->format->bits / 8);
    }
    return mm->plain ? gather_pixels(run, mm, rows) : gather_windows(run, mm, rows);
}
