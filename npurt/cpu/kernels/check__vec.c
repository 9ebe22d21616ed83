/*
 * Verifies products (Freivalds): computes s = W^T r once per weight, then compares r.y with s.x.
 *
 * s       is summed over rows in float32 for at most 64 panels, then in double; npurt/device/verify.py
 *         includes the rounding errors in the bound.  Float weights, and codes whose scale is any
 *         power of two, are summed in double: float32 cannot represent their sums or squares.
 *         Other scales are a float16 times 8 bits, so numbers are within 2^-24..2^35.
 * squares is sum((r a)^2) over the record, a = |scale * code| + |offset|; it bounds the rounding
 *         errors of a kernel.
 * Why     64 codes of a tile are four vectors of four rows by four columns.  Rows are added up at
 *         the end, so the inner loop only converts, multiplies and adds.
 */
#include "kernels.h"

enum { LANES = 16, PANELS = 64 };

typedef double f64x16 __attribute__((ext_vector_type(16)));

typedef struct {
    float sums[RECORD][LANES];  /* [block, quad, four rows][4 rows x 4 columns] */
    double wide[RECORD][LANES]; /* same layout in double; for float weights [column][row] */
    double s[RECORD];
    double squares;
} npurt_sums;

INLINE f64x16 load_f64(const double *p)
{
    f64x16 v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store_f64(double *p, f64x16 v)
{
    memcpy(p, &v, sizeof v);
}

INLINE f64x16 widened(f32x16 v)
{
    return __builtin_convertvector(v, f64x16);
}

INLINE double sum_f64(f64x16 v)
{
    double sum = 0;
    for (int i = 0; i < LANES; i++) {
        sum += v[i];
    }
    return sum;
}

INLINE f32x16 load_codes(const uint8_t *p)
{
    u8x16 v;
    memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, f32x16);
}

/* Returns lanes 4j..4j+3 of v, each four times. */
INLINE f32x16 four_rows(f32x16 v, int j)
{
    float out[LANES];
    for (int i = 0; i < LANES; i++) {
        out[i] = v[4 * j + i / 4];
    }
    return load_f32(out);
}

INLINE void add_group(const npurt_tile *t, int g, f32x16 r, npurt_sums *sums)
{
    const int quads = t->group / 4, b = g * t->group / BLOCK;
    const float bias = t->shift < 0 ? 0.0f : (float) (1 << t->shift);
    const f32x16 scale = load_f32(t->scales[g]) * r;
    const f32x16 offset = t->offset ? load_f32(t->offsets[g]) * r : (f32x16) (0.0f);
    f32x16 squares = 0.0f;
#pragma clang loop unroll(full)
    for (int j = 0; j < 4; j++) {
        const f32x16 sj = four_rows(scale, j), oj = four_rows(offset, j);
        for (int i = 0; i < quads; i++) {
            const int q = g * quads % 8 + i;
            float *sum = sums->sums[(b * 8 + q) * 4 + j];
            const f32x16 scaled = (load_codes(t->codes[b][q] + LANES * j) - bias) * sj;
            const f32x16 most = __builtin_elementwise_abs(scaled) + __builtin_elementwise_abs(oj);
            store_f32(sum, load_f32(sum) + (scaled + oj));
            squares = fma16(most, most, squares);
        }
    }
    sums->squares += (double) sum16(squares);
}

/* Does the same as add_group in double, for formats without offsets. */
INLINE void add_wide_group(const npurt_tile *t, int g, f32x16 r, npurt_sums *sums)
{
    const float bias = (float) (1 << t->shift);
    double scales[LANES];
    store_f64(scales, widened(load_f32(t->scales[g])) * widened(r));
    f64x16 squares = 0.0;
    for (int j = 0; j < 4; j++) {
        double four[LANES];
        for (int i = 0; i < LANES; i++) {
            four[i] = scales[4 * j + i / 4];
        }
        for (int q = 0; q < 8; q++) {
            double *sum = sums->wide[(g * 8 + q) * 4 + j];
            const f32x16 codes = load_codes(t->codes[g][q] + LANES * j) - bias;
            const f64x16 scaled = widened(codes) * load_f64(four);
            store_f64(sum, load_f64(sum) + scaled);
            squares += scaled * scaled;
        }
    }
    sums->squares += sum_f64(squares);
}

/* Adds the sums to s and clears them; `wide` uses the sums in double, `by_column` their layout for
 * float weights. */
static void flush(npurt_sums *sums, int wide, int by_column)
{
    for (int e = 0; e < RECORD; e++) {
        for (int n = 0; n < ROWS; n++) {
            const int lane = by_column ? n : n % 4 * 4 + e % 4;
            const int vector = by_column ? e : (e / 4) * 4 + n / 4;
            if (wide) {
                sums->s[e] += sums->wide[vector][lane];
                sums->wide[vector][lane] = 0;
            } else {
                sums->s[e] += (double) sums->sums[vector][lane];
                sums->sums[vector][lane] = 0;
            }
        }
    }
}

INLINE f32x16 load_dense(const uint8_t *p, int type)
{
    u16x16 half;
    f32x16 v;
    if (type == 0) {
        return load_f32((const float *) (const void *) p);
    }
    if (type == 1) {
        return load_f16(p);
    }
    memcpy(&half, p, sizeof half);
    const u32x16 wide = __builtin_convertvector(half, u32x16) << 16;
    memcpy(&v, &wide, sizeof v);
    return v;
}

/* Adds one panel of float weights with `columns` columns. */
INLINE void add_dense(const uint8_t *at, int type, int columns, f32x16 r, npurt_sums *sums)
{
    f64x16 squares = 0.0;
    for (int e = 0; e < columns; e++) {
        double *sum = sums->wide[e];
        const f64x16 scaled =
            widened(load_dense(at + e * (type == 0 ? 64 : 32), type)) * widened(r);
        store_f64(sum, load_f64(sum) + scaled);
        squares += scaled * scaled;
    }
    sums->squares += sum_f64(squares);
}

#define NPURT_FORMAT(name, ...) npurt_expand_fn AT_LEVEL(npurt_expand_##name);
#include "formats.inc"

static npurt_expand_fn *expander(int type)
{
    switch (type) {
#define NPURT_FORMAT(name, number, ...)                                                            \
    case number:                                                                                   \
        return AT_LEVEL(npurt_expand_##name);
#include "formats.inc"
    }
    return NULL;
}

void AT_LEVEL(npurt_transposed_matvec)(const npurt_transposed *op, int64_t record)
{
    const npurt_weight *w = &op->w;
    const npurt_format *f = npurt_find_format(w->type);
    const int64_t left = w->k - record * RECORD;
    const int columns = left < RECORD ? (int) left : RECORD;
    const size_t line = w->type == 0 ? 64 : 32; /* bytes of a column of a panel, float weights */
    const size_t stride = f ? panel_bytes(f, w->k) : line * (size_t) w->k;
    const size_t before = f ? record_bytes(f, RECORD_BLOCKS) : line * RECORD;
    const uint8_t *at = w->image + (size_t) record * before;
    const int wide = !f || f->scale == EXP;
    npurt_sums sums = {0};
    for (int64_t n = 0; n < w->n; n += ROWS, at += stride) {
        float r[ROWS] = {0};
        for (int64_t i = n; i < w->n && i < n + ROWS; i++) {
            r[i - n] = (float) w->check_r[i];
        }
        if (f) {
            npurt_tile tile;
            expander(w->type)(at, columns / BLOCK, &tile);
            for (int g = 0; g < columns / tile.group; g++) {
                if (wide) {
                    add_wide_group(&tile, g, load_f32(r), &sums);
                } else {
                    add_group(&tile, g, load_f32(r), &sums);
                }
            }
        } else {
            add_dense(at, w->type, columns, load_f32(r), &sums);
        }
        if (n / ROWS % PANELS == PANELS - 1) {
            flush(&sums, wide, !f);
        }
    }
    flush(&sums, wide, !f);
    memcpy(op->s + record * RECORD, sums.s, (size_t) columns * sizeof *sums.s);
    op->norms[record] = sums.squares;
}

/* Returns the sum of r * (y - bias). */
static double dot_result(const double *r, const float *y, const float *bias, int64_t n)
{
    f64x16 sum = 0.0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        f64x16 v = __builtin_convertvector(load_f32(y + i), f64x16);
        if (bias) {
            v -= __builtin_convertvector(load_f32(bias + i), f64x16);
        }
        sum += load_f64(r + i) * v;
    }
    double total = sum_f64(sum);
    for (; i < n; i++) {
        total += r[i] * ((double) y[i] - (bias ? (double) bias[i] : 0));
    }
    return total;
}

int AT_LEVEL(npurt_row_is_right)(const npurt_matmul *m, const npurt_weight *w, int64_t row)
{
    const npurt_input *x = &m->in;
    const int integer = npurt_find_format(w->type) != NULL;
    const double have = dot_result(w->check_r, m->y + row * m->stride + w->column, w->bias, w->n);
    f64x16 want = 0.0, squares = 0.0;
    int64_t k = 0;
    for (; k + LANES <= w->k; k += LANES) {
        const int64_t at = row * x->k + k;
        f64x16 v;
        if (integer) {
            f32x16 number = load_i8(x->codes + at);
            if (x->remainders) {
                number = number * (float) REMAINDER_STEPS + load_i8(x->remainders + at);
            }
            v = __builtin_convertvector(number, f64x16) * (double) x->blocks[at / BLOCK].scale;
        } else {
            v = __builtin_convertvector(load_f32(x->values + at), f64x16);
        }
        want += load_f64(w->check_s + k) * v;
        squares += v * v;
    }
    double expected = sum_f64(want), norm = sum_f64(squares);
    for (; k < w->k; k++) { /* columns after the last whole vector, only with float weights */
        const double v = (double) x->values[row * x->k + k];
        expected += w->check_s[k] * v;
        norm += v * v;
    }
    const double bound = w->check_bound * __builtin_sqrt(norm) + w->check_floor;
    return __builtin_fabs(have - expected) <= bound;
}
