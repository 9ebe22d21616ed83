/* The table of formats, and products of all rows with a range of tiles. */
#include "epilogue.h"
#include "kinds.h"

struct npurt_format {
    uint32_t number;
    const kernels *kernels;
    uint16_t vectors; /* of a step of a tile */
    uint16_t heads;   /* before a tile's first step */
    uint16_t arch;
    uint16_t per_row; /* 1: x has one scale a row, and w too: HEAD_OTHER */
};

#define PER_ROW(kernel) (&npurt_kernels_##kernel == &npurt_kernels_chan)
#define NPURT_FORMAT(name, number, kernel, codes, scales, offsets, heads, arch)                    \
    {number, &npurt_kernels_##kernel, (codes) + (scales) + (offsets), heads, arch, PER_ROW(kernel)},

static const npurt_format formats[] = {
#include "../formats.inc"
};

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

/* --- results ------------------------------------------------------------------------------------ */

enum { RESULTS = 4 }; /* that are finished together: rows of a tile, or tiles of a row */

/*
 * y = sum * mantissa of w * mantissa of x * 2^exponents: the sums are normalised, multiplied, and
 * what normalising and multiplying (by Q15) shifted out goes into the exponents.
 */
static void scale_rows(result *of, const vec *heads, uint32_t x_scale)
{
    vec shift = Q6_Vw_vnormamt_Vw(of->sum);
    vec sum = Q6_Vw_vasl_VwVw(of->sum, shift);
    sum = Q6_Vw_vmpyo_VwVh_s1_rnd_sat(sum, heads[HEAD_OTHER]);
    of->sum = Q6_Vw_vmpyo_VwVh_s1_rnd_sat(sum, splat(x_scale));
    of->lanes = Q6_Vw_vsub_VwVw(of->lanes, Q6_Vw_vasl_VwR(shift, 23));
}

/* Write the first n of 32 lanes. */
static void write(float *y, vec bits, uint32_t n)
{
    if (n >= NPURT_TILE) {
        *(unaligned_vec *) y = bits;
        return;
    }
    lanes all = {.all = bits};
    for (uint32_t i = 0; i < n; i++) {
        ((uint32_t *) y)[i] = (uint32_t) all.lane[i];
    }
}

/* ceil(log2(steps)): what sums of G are shifted by to fit, see product.h. */
static uint32_t shift_of(uint32_t steps)
{
    return steps > 1 ? 32 - (uint32_t) __builtin_clz(steps - 1) : 0;
}

typedef struct {
    const npurt_product *p;
    call call;
    int32_t exponent; /* of what the kernel's units are, whatever the row and the tile */
} job;

/* Finish sums[i] of row + i (rows = 1) or of tile + i (rows = 0), i < count. */
static void finish(const job *job, const vec sums[], uint32_t count, uint32_t row, uint32_t tile,
                   uint32_t rows)
{
    const npurt_product *p = job->p;
    result of[RESULTS];
    int normal = 1;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t r = rows ? i : 0, t = rows ? 0 : i;
        const vec *heads = (const vec *) (job->call.tile + t * job->call.tile_bytes);
        char *y = (char *) p->y + (row + r) * p->y_stride;
        of[i].sum = sums[i];
        of[i].lanes = heads[HEAD_EXPONENT];
        of[i].exponent = job->exponent + job->call.x.exponent[r];
        of[i].y = (float *) y + (tile + t) * NPURT_TILE;
        normal &= all_normal(&of[i], (const int32_t *) &heads[HEAD_RANGE]);
        if (p->format->per_row) {
            scale_rows(&of[i], heads, job->call.x.record[r * RECORD + SCALE]);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t n = p->n - (tile + (rows ? 0 : i)) * NPURT_TILE;
        write(of[i].y, normal ? to_float(&of[i]) : to_float_slowly(&of[i]), n);
    }
}

/* --- products ----------------------------------------------------------------------------------- */

static void multiply_rows(job *job, uint32_t row, uint32_t first, uint32_t last)
{
    vec sums[NPURT_PANEL];
    for (uint32_t tile = first; tile < last; tile++) {
        job->p->format->kernels->rows(&job->call, sums);
        finish(job, sums, NPURT_PANEL, row, tile, 1);
        job->call.tile += job->call.tile_bytes;
    }
}

static void multiply_row(job *job, uint32_t row, uint32_t first, uint32_t last)
{
    vec sums[TILES];
    for (uint32_t tile = first; tile < last;) {
        uint32_t count = last - tile < TILES ? 1 : TILES;
        const kernels *kernels = job->p->format->kernels;
        (count == 1 ? kernels->tile : kernels->tiles)(&job->call, sums);
        finish(job, sums, count, row, tile, 0);
        job->call.tile += count * job->call.tile_bytes;
        tile += count;
    }
}

void npurt_multiply(const npurt_product *p, const void *tiles, uint32_t first, uint32_t last)
{
    job job = {.p = p};
    job.call.tile_bytes = npurt_tile_bytes(p->format, p->k);
    job.call.steps = steps_of(p->k);
    job.call.shift = shift_of(job.call.steps);
    job.exponent = p->format->per_row ? 30 : (int32_t) job.call.shift + 15;
    for (uint32_t row = 0, rows; row < p->m; row += rows) {
        rows = panel_rows(row, p->m);
        job.call.tile = tiles;
        job.call.x = panel_at(p->activations, row, rows, p->k);
        (rows == 1 ? multiply_row : multiply_rows)(&job, row, first, last);
    }
}
