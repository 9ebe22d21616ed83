/*
 * Quantises activations: quantises each row (quantise_row.h), then assembles panels of rows.
 */
#include "quantise_row.h"

enum {
    ROW_VECTORS = 4 + 2 + 2 * CHUNK_CODES, /* vectors of scratch per chunk: see lay_out */
    MORE_VECTORS = 3 + UNIT_VECTORS,       /* further vectors of scratch per row */
};

size_t npurt_activation_bytes(uint32_t m, uint32_t k)
{
    return m / NPURT_PANEL * panel_bytes(NPURT_PANEL, k) + m % NPURT_PANEL * panel_bytes(1, k);
}

size_t npurt_quantise_scratch(uint32_t k)
{
    return NPURT_PANEL * (chunks_of(k) * ROW_VECTORS + MORE_VECTORS) * (size_t) NPURT_VECTOR;
}

/* Interleave four rows: to[i][r] = from[r][i].  An item has `bytes` bytes, 8 or 16; each row has
 * `vectors` vectors. */
static void interleave(const vec *restrict a, const vec *restrict b, const vec *restrict c,
                       const vec *restrict d, vec *restrict to, uint32_t vectors, int bytes)
{
    PIPELINE
    for (; vectors > 0; vectors--) {
        vec_pair ab = Q6_W_vshuff_VVR(*b++, *a++, -bytes);
        vec_pair cd = Q6_W_vshuff_VVR(*d++, *c++, -bytes);
        vec_pair low = Q6_W_vshuff_VVR(Q6_V_lo_W(cd), Q6_V_lo_W(ab), -2 * bytes);
        vec_pair high = Q6_W_vshuff_VVR(Q6_V_hi_W(cd), Q6_V_hi_W(ab), -2 * bytes);
        *to++ = Q6_V_lo_W(low);
        *to++ = Q6_V_hi_W(low);
        *to++ = Q6_V_lo_W(high);
        *to++ = Q6_V_hi_W(high);
    }
}

/* Assemble a panel of four rows.  Its parts are written in order, because a write may extend
 * beyond the end of a part into the next. */
static void make_panel(const row rows[NPURT_PANEL], const panel *to)
{
    const row *a = rows, *b = rows + 1, *c = rows + 2, *d = rows + 3;
    interleave(a->codes, b->codes, c->codes, d->codes, (vec *) to->codes,
               (a->k + CODE_COLUMNS - 1) / CODE_COLUMNS, 8);
    interleave(a->record, b->record, c->record, d->record, (vec *) to->record,
               (steps_of(a->k) + 7) / 8, 16);
}

/* Write the zero points of all steps of `count` rows; repeat each to fill a vector. */
INLINE void spread(const uint32_t *restrict a, const uint32_t *restrict b,
                   const uint32_t *restrict c, const uint32_t *restrict d, uint32_t count,
                   vec *restrict to, uint32_t steps)
{
    PIPELINE
    for (; steps > 0; steps--) {
        *to++ = splat(*a++);
        if (count > 1) {
            *to++ = splat(*b++);
            *to++ = splat(*c++);
            *to++ = splat(*d++);
        }
    }
}

/* Place the arrays of a row in scratch memory; return the address after them. */
static vec *lay_out(row *row, vec *scratch)
{
    row->greatest = scratch;
    row->factor = row->greatest + row->chunks + 1;
    row->scale = row->factor + row->chunks + 1;
    row->zero = (uint32_t *) (row->scale + row->chunks + 1);
    row->record = row->scale + 2 * row->chunks + 1;
    row->codes = row->record + 2 * row->chunks;
    row->quads = row->codes + CHUNK_CODES * row->chunks;
    row->tail = row->quads + CHUNK_CODES * row->chunks;
    return row->tail + UNIT_VECTORS;
}

/* Quantise the `count` rows of one panel; return 1 if a row is not finite. */
INLINE int quantise_panel(const npurt_quantisation *q, uint32_t first, uint32_t count, vec *scratch)
{
    panel to = panel_at(q->activations, first, count, q->k);
    row rows[NPURT_PANEL];
    int failed = 0;
    for (uint32_t r = 0; r < count; r++) {
        row *row = &rows[r];
        row->x = (const vec *) ((const char *) q->x + (first + r) * q->x_stride);
        row->k = q->k;
        row->group = q->group;
        row->chunks = chunks_of(q->k);
        scratch = lay_out(row, scratch);
        if (count == 1) { /* write the codes and the record into the panel */
            row->codes = (vec *) to.codes;
            row->record = (vec *) to.record;
        }
        failed |= quantise_row(row, &to.exponent[r], &to.total[r]);
    }
    if (count > 1) {
        make_panel(rows, &to);
    }
    spread(rows[0].zero, rows[count > 1].zero, rows[count > 1 ? 2 : 0].zero,
           rows[count > 1 ? 3 : 0].zero, count, to.zero, steps_of(q->k));
    return failed;
}

int npurt_quantise(const npurt_quantisation *q, uint32_t first, uint32_t last, void *scratch)
{
    int failed = 0;
    for (; first + NPURT_PANEL <= last; first += NPURT_PANEL) {
        failed |= quantise_panel(q, first, NPURT_PANEL, scratch);
    }
    for (; first < last; first++) {
        failed |= quantise_panel(q, first, 1, scratch);
    }
    return failed;
}
