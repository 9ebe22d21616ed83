/*
 * s = W^T r, and sum((r |w|)^2): what verifying products with W needs (Freivalds).
 *
 * Works on one record column of the image: 256 elements of s, all panels.  In double, so that the
 * check adds no error of its own worth counting.
 */
#include "kernels.h"

INLINE void add_tile(const npurt_tile *t, const double *r, int rows, double *s, double *squares)
{
    const int bias = t->shift < 0 ? 0 : 1 << t->shift;
    for (int e = 0; e < t->blocks * BLOCK; e++) {
        const int g = e / t->group;
        double sum = 0, square = 0;
        for (int n = 0; n < rows; n++) {
            const double scaled = (double) t->scales[g][n] *
                                  (t->codes[e / BLOCK][e % BLOCK / 4][4 * n + e % 4] - bias);
            const double offset = t->offset ? (double) t->offsets[g][n] : 0;
            const double most = __builtin_fabs(scaled) + __builtin_fabs(offset);
            sum += r[n] * (scaled + offset);
            square += r[n] * most * r[n] * most;
        }
        s[e] += sum;
        *squares += square;
    }
}

static void spread_dense(const npurt_spreading *op, int64_t record)
{
    const npurt_weight *w = &op->w;
    const size_t bytes = w->type == 0 ? 4 : 2;
    const int64_t first = record * RECORD, left = w->k - first;
    for (int64_t k = first; k < first + (left < RECORD ? left : RECORD); k++) {
        double sum = 0, square = 0;
        for (int64_t n = 0; n < w->n; n++) {
            const uint8_t *at = w->image + (size_t) ((n / ROWS * w->k + k) * ROWS + n % ROWS) * bytes;
            float v;
            if (w->type == 0) {
                memcpy(&v, at, 4);
            } else if (w->type == 1) {
                _Float16 h;
                memcpy(&h, at, 2);
                v = (float) h;
            } else {
                const uint32_t wide = (uint32_t) (at[0] | at[1] << 8) << 16;
                memcpy(&v, &wide, 4);
            }
            sum += w->check_r[n] * (double) v;
            square += w->check_r[n] * (double) v * w->check_r[n] * (double) v;
        }
        op->s[k] = sum;
        op->norms[record] += square;
    }
}

void AT_LEVEL(npurt_spread)(const npurt_spreading *op, int64_t record);

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

void AT_LEVEL(npurt_spread)(const npurt_spreading *op, int64_t record)
{
    const npurt_weight *w = &op->w;
    const npurt_format *f = npurt_find_format(w->type);
    op->norms[record] = 0;
    if (!f) {
        spread_dense(op, record);
        return;
    }
    const int64_t left = w->k - record * RECORD;
    const int blocks = (int) (left < RECORD ? left : RECORD) / BLOCK;
    const size_t stride = panel_bytes(f, w->k);
    const uint8_t *at = w->image + (size_t) record * record_bytes(f, RECORD_BLOCKS);
    double s[RECORD] = {0};
    double squares = 0;
    for (int64_t n = 0; n < w->n; n += ROWS, at += stride) {
        npurt_tile tile;
        expander(w->type)(at, blocks, &tile);
        add_tile(&tile, w->check_r + n, w->n - n < ROWS ? (int) (w->n - n) : ROWS, s, &squares);
    }
    memcpy(op->s + record * RECORD, s, (size_t) (blocks * BLOCK) * sizeof *s);
    op->norms[record] = squares;
}
