/* Defines the table of formats, and multiplies all rows by a range of tiles. */
#include "epilogue.h"
#include "kinds.h"

struct npurt_format {
    uint32_t number;
    const kernels *kernels;
    uint16_t vectors; /* of a step of a tile */
    uint16_t heads;   /* before a tile's first step */
    uint16_t arch;
    uint16_t per_row; /* 1: x and w have one scale per row; w's are in HEAD_OTHER */
};

#define PER_ROW(kernel) (&npurt_kernels_##kernel == &npurt_kernels_per_channel)
#define NPURT_FORMAT(name, number, kernel, codes, scales, offsets, heads, arch, gain, centre)      \
    {number, &npurt_kernels_##kernel, (codes) + (scales) + (offsets), heads, arch, PER_ROW(kernel)},

static const npurt_format formats[] = {
#include "../formats.inc"
};

/* Check that product.h and formats.inc agree on every kind of weights. */
#define NPURT_KERNEL(name, kind, dropped, group, bits, zero, sums)                                 \
    KIND_##name = (kind), HAS_OFFSETS_##name = (sums) != 0,
enum {
#include "../formats.inc"
};
#define NPURT_KERNEL(name, kind, dropped, group, bits, zero, sums)                                 \
    _Static_assert((group) == 0 || NARROW_BITS(kind) == (dropped), #name);                         \
    _Static_assert(((kind) == PER_CHANNEL) == ((group) == 0), #name);                              \
    _Static_assert(((kind) == Q8_G16) == ((group) == 16), #name);
#define NPURT_FORMAT(name, number, kernel, codes, scales, offsets, heads, arch, gain, centre)      \
    _Static_assert(CODE_VECTORS(KIND_##kernel) == (codes), #name);                                 \
    _Static_assert(SCALE_VECTORS(KIND_##kernel) == (scales), #name);                               \
    _Static_assert(HAS_OFFSETS_##kernel * (scales) == (offsets), #name);                           \
    _Static_assert(HEADS(KIND_##kernel) == (heads), #name);
#include "../formats.inc"

const npurt_format *npurt_find_format(uint32_t number)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++) {
        if (formats[i].number == number) {
            return &formats[i];
        }
    }
    return NULL;
}

uint32_t npurt_format_arch(const npurt_format *format)
{
    return format->arch;
}

size_t npurt_tile_bytes(const npurt_format *format, uint32_t k)
{
    return (format->heads + (size_t) format->vectors * steps_of(k)) * NPURT_VECTOR;
}

int npurt_takes_group(const npurt_format *format, uint32_t group)
{
    return format->per_row ? group == 0 : group == 32 || group == 128;
}

/* --- conversion of single results ------------------------------------------------------------- */

/* Return the float32 bits of sum * 2^exponent, which may have any magnitude. */
static uint32_t float_bits(int32_t sum, int32_t exponent)
{
    if (sum == 0) {
        return 0;
    }
    uint32_t sign = sum < 0 ? 0x80000000u : 0;
    uint32_t magnitude = sum < 0 ? 0u - (uint32_t) sum : (uint32_t) sum;
    int32_t shift = __builtin_clz(magnitude) - 1;
    uint32_t bits = ((magnitude << shift) + 64) >> 7;
    int32_t biased = exponent + BIAS - shift + (int32_t) (bits >> 23);
    if (biased > 254) {
        return sign | 0x7f800000u;
    }
    return biased < 1 ? sign : sign | (uint32_t) biased << 23 | (bits & 0x7fffffu);
}

void npurt_write_slowly(float *y, uint32_t count, vec sum, vec exponent, int32_t of_row)
{
    lanes sums = {.all = sum}, exponents = {.all = exponent};
    for (uint32_t i = 0; i < count && i < NPURT_TILE; i++) {
        int32_t of_lane = (exponents.lane[i] >> 23) - BIAS;
        ((uint32_t *) y)[i] = float_bits(sums.lane[i], of_lane + of_row);
    }
}

/* --- products --------------------------------------------------------------------------------- */

/* Return ceil(log2(steps)), the shift that makes sums of G fit into 32 bits (product.h). */
static uint32_t shift_of(uint32_t steps)
{
    return steps > 1 ? 32 - (uint32_t) __builtin_clz(steps - 1) : 0;
}

enum { LEAST = -123, GREATEST = 96 }; /* exponents of sums whose float32 is normal */

/* Set the exponent of each row, and the limits for the exponents of lanes. */
INLINE void set_exponents(job *job, uint32_t rows)
{
    int32_t exponent[NPURT_PANEL], least = INT32_MAX, greatest = INT32_MIN;
    for (uint32_t r = 0; r < rows; r++) {
        exponent[r] = job->exponent + job->x.exponent[r];
        least = exponent[r] < least ? exponent[r] : least;
        greatest = exponent[r] > greatest ? exponent[r] : greatest;
    }
    for (uint32_t r = 0; r < rows; r++) {
        job->shifted_exponent[r] = splat((uint32_t) exponent[r] << 23);
    }
    job->least = LEAST - least;
    job->greatest = GREATEST - greatest;
}

/* Multiply all tiles by the next panels of `rows` rows; return the panel after them. */
INLINE const char *multiply_panels(job *job, const npurt_product *p, const char *activations,
                                   uint32_t panels, uint32_t rows)
{
    kernel *const multiply = rows == 1 ? p->format->kernels->row : p->format->kernels->rows;
    const uint32_t k = p->k, y_bytes = rows * p->y_stride; /* local: stores to job cannot alias */
    for (; panels > 0; panels--) {
        job->x = panel_there(activations, rows, k);
        set_exponents(job, rows);
        multiply(job);
        job->first.y = (float *) ((char *) job->first.y + y_bytes);
        activations += panel_bytes(rows, k);
    }
    return activations;
}

void npurt_multiply(const npurt_product *p, const void *tiles, uint32_t first, uint32_t last)
{
    job job; /* not zeroed: it is large */
    job.tile_bytes = npurt_tile_bytes(p->format, p->k);
    job.steps = steps_of(p->k);
    job.shift = shift_of(job.steps);
    job.y_stride = p->y_stride;
    job.exponent = p->format->per_row ? 30 : (int32_t) job.shift + 15;
    job.first.tile = tiles;
    job.first.tiles = last - first;
    job.first.y = p->y + first * NPURT_TILE;
    job.first.n = p->n - first * NPURT_TILE;
    const char *single = multiply_panels(&job, p, p->activations, p->m / NPURT_PANEL, NPURT_PANEL);
    multiply_panels(&job, p, single, p->m % NPURT_PANEL, 1);
}
