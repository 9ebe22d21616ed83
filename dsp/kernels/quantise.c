/*
 * float32 rows to int8 codes, a scale per 32 or 128 columns or per row; layout in activations.h.
 *
 * By integers on the bits.  For a row whose greatest magnitude has (biased) exponent E, rounded up
 * where its mantissa is within 1/32 of the next power of two:
 *
 *   V     greatest magnitude of a group / 2^(E - 150), rounded down: at most 24 bits
 *   scale (V + V / 2^7 + V / 2^14) / 2^9 + 1, rounded down: V / 508 and a little, 1..32767
 *   code  x / (scale * 2^(E - 148)), by the reciprocal of the scale to 15 bits, halves away from 0:
 *         |code| <= 127, the greatest magnitude's is 127 and almost exact.
 *
 * Rows whose greatest magnitude is below 2^-87 are zero; so exponents of everything that matters
 * are normal.  NaN and infinity are the greatest of magnitudes, and are reported.
 *
 * Work    passes over the row: greatest magnitudes; scales and reciprocals, 32 groups at a time;
 *         codes and sums of four; records, 32 groups at a time.  Then panels are put together.
 * Reads   nothing beyond a row's k columns; k a multiple of 32.
 */
#include "activations.h"

#define NOT_FINITE 0x7f800000u

enum {
    UNIT_COLUMNS = 128,   /* four vectors of x, one of codes */
    CHUNK_COLUMNS = 1024, /* 32 groups: one vector of their scales */
    CHUNK_UNITS = CHUNK_COLUMNS / UNIT_COLUMNS,
    CHUNK_RECORDS = CHUNK_COLUMNS / 64,
    EXPONENT_BIT = 23,
    ROUND_UP = 0x40000,         /* added to bits: 2^24 - 2^18 is the first mantissa rounded up */
    LEAST_MAGNITUDE = 40 << 23, /* 2^-87 */
    ROW_EXPONENT = 148,         /* E less the row's exponent */
    ZERO_ROW = 254,             /* E of a row that is zero: every code shifts out */
};

/* One row at work; arrays are padded to whole chunks, but for codes: to whole units. */
typedef struct {
    const vec *x;
    vec *tail; /* the last unit, padded with zeros, when x has only a part of it */
    uint32_t k, group, chunks;
    vec *greatest; /* [chunks] magnitudes of 32 groups */
    vec *factor;   /* [chunks] of 32 groups: reciprocal << 16 | shift */
    vec *scale;    /* [chunks] of 32 groups: int32 */
    vec *codes;    /* [units] */
    vec *quads;    /* [chunks][8] sums of four codes */
    vec *record;   /* [chunks][2] */
    vec *zero;     /* [chunks] pairs of 32 columns' zero points, 16 to a chunk */
} row;

static uint32_t chunks_of(uint32_t k)
{
    return (k + CHUNK_COLUMNS - 1) / CHUNK_COLUMNS;
}

static uint32_t units_of(uint32_t k)
{
    return (k + UNIT_COLUMNS - 1) / UNIT_COLUMNS;
}

enum {
    ROW_VECTORS = 3 + 2 * CHUNK_UNITS + 2 + 1, /* of scratch, a chunk */
    TAIL_VECTORS = UNIT_COLUMNS / NPURT_TILE,
};

size_t npurt_activation_bytes(uint32_t m, uint32_t k)
{
    return m / NPURT_PANEL * panel_bytes(NPURT_PANEL, k) + m % NPURT_PANEL * panel_bytes(1, k);
}

size_t npurt_quantise_scratch(uint32_t k)
{
    return NPURT_PANEL * (chunks_of(k) * ROW_VECTORS + TAIL_VECTORS) * (size_t) NPURT_VECTOR;
}

/* --- pass 1: greatest magnitudes ---------------------------------------------------------------- */

INLINE vec greater(vec a, vec b)
{
    return Q6_Vw_vmax_VwVw(a, b);
}

INLINE vec greater_of_pairs(vec a, vec b)
{
    vec_pair both = Q6_W_vshuff_VVR(b, a, -4);
    return greater(Q6_V_lo_W(both), Q6_V_hi_W(both));
}

INLINE vec greater_rotated(vec a, int bytes)
{
    return greater(a, Q6_V_vror_VR(a, bytes));
}

INLINE vec magnitude(vec bits)
{
    return Q6_V_vand_VV(bits, splat(0x7fffffff));
}

/* Greatest of each of four groups of 32, in lanes 0..3, 4..7 and so on. */
INLINE vec greatest_of_unit(const vec *x)
{
    vec a = greater_of_pairs(magnitude(x[0]), magnitude(x[2]));
    vec b = greater_of_pairs(magnitude(x[1]), magnitude(x[3]));
    vec all = greater_of_pairs(a, b);
    return greater_rotated(greater_rotated(greater_rotated(all, 16), 32), 64);
}

/* Columns 128 * unit.. of the row; beyond its k there are zeros. */
INLINE const vec *unit_of(const row *row, uint32_t unit)
{
    uint32_t first = unit * UNIT_COLUMNS;
    return first + UNIT_COLUMNS <= row->k ? row->x + first / NPURT_TILE : row->tail;
}

static void copy_tail(const row *row)
{
    uint32_t first = row->k / UNIT_COLUMNS * TAIL_VECTORS;
    for (uint32_t i = 0; i < TAIL_VECTORS; i++) {
        row->tail[i] = first + i < row->k / NPURT_TILE ? row->x[first + i] : Q6_V_vzero();
    }
}

/* Fill row->greatest, and return the greatest magnitude of the row. */
static uint32_t find_greatest(const row *row)
{
    uint32_t units = units_of(row->k);
    vec of_row = Q6_V_vzero();
    for (uint32_t chunk = 0, unit = 0; chunk < row->chunks; chunk++) {
        vec groups = Q6_V_vzero();
        for (uint32_t i = 0; i < CHUNK_UNITS; i++, unit++) {
            vec four = Q6_V_vzero();
            if (unit < units) {
                four = greatest_of_unit(unit_of(row, unit));
            }
            if (row->group == UNIT_COLUMNS) {
                four = greater_rotated(greater_rotated(four, 4), 8);
            }
            groups = Q6_V_valign_VVR(four, groups, 16);
        }
        row->greatest[chunk] = groups;
        of_row = greater(of_row, groups);
    }
    for (int bytes = 4; bytes < (int) NPURT_VECTOR; bytes *= 2) {
        of_row = greater_rotated(of_row, bytes);
    }
    if (row->group == 0) {
        for (uint32_t chunk = 0; chunk < row->chunks; chunk++) {
            row->greatest[chunk] = of_row;
        }
    }
    lanes all = {.all = of_row};
    return (uint32_t) all.lane[0];
}

/* --- pass 2: scales and their reciprocals ------------------------------------------------------- */

/* The leading one and the fraction: 24 bits. */
INLINE vec mantissa_of(vec bits)
{
    return Q6_V_vor_VV(Q6_V_vand_VV(bits, splat(0x7fffff)), splat(0x800000));
}

/*
 * 2^44 / d for d = 2^30..2^31 - 1 in steps of 2^16, rounded down to 15 bits, in the upper halves.
 * A line that is nowhere wrong by more than 1/17, then Newton's y += y (1 - d y) twice; y is in Q29.
 */
INLINE vec reciprocal(vec d)
{
    vec y = Q6_Vw_vsub_VwVw(splat(1515870810),                                  /* 48/17 */
                            Q6_Vw_vmpyo_VwVh_s1_rnd_sat(splat(1010580540), d)); /* 32/17 */
    vec error = Q6_Vw_vsub_VwVw(splat(1 << 29), Q6_Vw_vmpyo_VwVh_s1_rnd_sat(y, d));
    y = Q6_Vw_vadd_VwVw(y, Q6_Vw_vmpyo_VwVh_s1_rnd_sat(y, Q6_Vw_vasl_VwR(error, 2)));
    error = Q6_Vw_vsub_VwVw(splat(1 << 29), Q6_Vw_vmpyo_VwVh_s1_rnd_sat(y, d));
    vec fine = Q6_Vw_vmpyo_VwVh_s1_rnd_sat(y, Q6_Vw_vasl_VwR(error, 9));
    y = Q6_Vw_vadd_VwVw(y, Q6_Vw_vasr_VwR(fine, 7));
    return Q6_V_vand_VV(Q6_Vw_vasl_VwR(y, 1), splat(0xffff0000u));
}

static void make_scales(const row *row, uint32_t exponent)
{
    vec top = splat(exponent);
    for (uint32_t chunk = 0; chunk < row->chunks; chunk++) {
        vec bits = row->greatest[chunk];
        vec below = Q6_Vw_vsub_VwVw(top, Q6_Vuw_vlsr_VuwR(bits, EXPONENT_BIT));
        vec v = Q6_Vw_vlsr_VwVw(mantissa_of(bits), Q6_Vw_vmin_VwVw(below, splat(31)));
        vec more = Q6_Vw_vadd_VwVw(Q6_Vuw_vlsr_VuwR(v, 7), Q6_Vuw_vlsr_VuwR(v, 14));
        vec scale = Q6_Vuw_vlsr_VuwR(Q6_Vw_vadd_VwVw(v, more), 9);
        scale = Q6_Vw_vadd_VwVw(scale, splat(1));
        vec normal = Q6_Vw_vnormamt_Vw(scale); /* 16 for scales of 15 bits */
        vec inverse = reciprocal(Q6_Vw_vasl_VwVw(scale, normal));
        vec shift = Q6_Vw_vsub_VwVw(splat(exponent + 16 - 8), normal);
        row->scale[chunk] = scale;
        row->factor[chunk] = Q6_V_vor_VV(inverse, shift);
    }
}

/* --- pass 3: codes ------------------------------------------------------------------------------ */

/*
 * 32 columns of a group: codes as sign and magnitude in the upper bytes.  The factor's upper half
 * multiplies the mantissa; its lower half less the element's exponent is how far to shift.
 */
INLINE vec coded(vec x, uint32_t factor)
{
    vec exponent = Q6_Vuw_vlsr_VuwR(magnitude(x), EXPONENT_BIT);
    vec both = Q6_Vh_vsub_VhVh(splat(factor), exponent);
    both = Q6_Vh_vmin_VhVh(both, splat(0x7fff001f));
    vec code = Q6_Vw_vmpyo_VwVh_s1_rnd_sat(mantissa_of(x), both);
    code = Q6_Vw_vlsr_VwVw(code, both);
    code = Q6_Vw_vadd_VwVw_sat(code, splat(1 << 23));
    return Q6_V_vor_VV(code, Q6_V_vand_VV(x, splat(0x80000000u)));
}

/* Bytes of sign and magnitude to two's complement. */
INLINE vec twos_complement(vec bytes)
{
    vec positive = Q6_V_vand_VV(bytes, splat_byte(0x7f));
    HVX_VectorPred negative = Q6_Q_vcmp_gt_VbVb(Q6_V_vzero(), bytes);
    return Q6_V_vmux_QVV(negative, Q6_Vb_vsub_VbVb(Q6_V_vzero(), positive), positive);
}

static void make_codes(const row *row)
{
    const uint32_t *factor = (const uint32_t *) row->factor;
    for (uint32_t unit = 0; unit < row->chunks * CHUNK_UNITS; unit++) {
        vec codes = Q6_V_vzero();
        if (unit * UNIT_COLUMNS < row->k) {
            const vec *x = unit_of(row, unit);
            vec low = Q6_Vh_vpacko_VwVw(coded(x[1], factor[1]), coded(x[0], factor[0]));
            vec high = Q6_Vh_vpacko_VwVw(coded(x[3], factor[3]), coded(x[2], factor[2]));
            codes = twos_complement(Q6_Vb_vpacko_VhVh(high, low));
            row->codes[unit] = codes;
        }
        row->quads[unit] = Q6_Vw_vrmpy_VubVb(splat_byte(1), codes);
        factor += UNIT_COLUMNS / NPURT_TILE;
    }
}

/* --- pass 4: records and zero points ------------------------------------------------------------ */

/* Sums of neighbours: of words 0 and 1, 2 and 3... of a, then of b. */
INLINE vec pair_sums(vec a, vec b)
{
    vec_pair both = Q6_W_vdeal_VVR(b, a, -4);
    return Q6_Vw_vadd_VwVw(Q6_V_lo_W(both), Q6_V_hi_W(both));
}

/* Lower halves of the words of a, then of b. */
INLINE vec lower_halves(vec a, vec b)
{
    return Q6_Vh_vpacke_VwVw(b, a);
}

/* Fill row->record and row->zero; return -128 times the sum of all codes. */
static int32_t make_records(const row *row)
{
    vec total = Q6_V_vzero();
    for (uint32_t chunk = 0; chunk < row->chunks; chunk++) {
        const vec *q = row->quads + chunk * CHUNK_UNITS;
        vec scale = row->scale[chunk];
        vec halves = pair_sums(pair_sums(q[0], q[1]), pair_sums(q[2], q[3]));
        vec more = pair_sums(pair_sums(q[4], q[5]), pair_sums(q[6], q[7]));
        vec_pair split = Q6_W_vdeal_VVR(more, halves, -4);
        vec sum = Q6_Vw_vadd_VwVw(Q6_V_lo_W(split), Q6_V_hi_W(split));
        total = Q6_Vw_vadd_VwVw(total, sum);
        vec scaled = Q6_Vw_vmpyie_VwVuh(sum, scale);
        scaled = Q6_Vw_vasr_VwR(Q6_Vw_vadd_VwVw(scaled, splat(1 << 11)), 12);
        vec negative[2] = {Q6_Vw_vsub_VwVw(Q6_V_vzero(), Q6_V_lo_W(split)),
                           Q6_Vw_vsub_VwVw(Q6_V_vzero(), Q6_V_hi_W(split))};
        vec first = Q6_Vw_vasl_VwR(negative[0], 4), last = Q6_Vw_vasl_VwR(negative[1], 4);
        vec_pair words =
            Q6_W_vshuff_VVR(lower_halves(scaled, last), lower_halves(scale, first), -4);
        vec_pair records = Q6_W_vshuff_VVR(Q6_V_hi_W(words), Q6_V_lo_W(words), -8);
        row->record[2 * chunk] = Q6_V_lo_W(records);
        row->record[2 * chunk + 1] = Q6_V_hi_W(records);
        vec zero = Q6_Vw_vasl_VwR(Q6_Vw_vadd_VwVw(negative[0], negative[1]), 3);
        row->zero[chunk] = lower_halves(zero, zero);
    }
    for (int bytes = 4; bytes < (int) NPURT_VECTOR; bytes *= 2) {
        total = Q6_Vw_vadd_VwVw(total, Q6_V_vror_VR(total, bytes));
    }
    lanes all = {.all = total};
    return -128 * all.lane[0];
}

/* --- rows and panels ---------------------------------------------------------------------------- */

/* Returns 1 when the row is not finite. */
static int quantise_row(const row *row, int32_t *exponent, int32_t *total)
{
    copy_tail(row);
    uint32_t greatest = find_greatest(row);
    uint32_t top = greatest < LEAST_MAGNITUDE ? ZERO_ROW : (greatest + ROUND_UP) >> EXPONENT_BIT;
    make_scales(row, top);
    make_codes(row);
    *total = make_records(row);
    *exponent = top == ZERO_ROW ? 0 : (int32_t) top - ROW_EXPONENT;
    return greatest >= NOT_FINITE;
}

/* to[i][r] = from[r][i], i < 128 / bytes: things of 8 or 16 bytes. */
INLINE void interleave(const vec from[NPURT_PANEL], vec to[NPURT_PANEL], int bytes)
{
    vec_pair a = Q6_W_vshuff_VVR(from[1], from[0], -bytes);
    vec_pair b = Q6_W_vshuff_VVR(from[3], from[2], -bytes);
    vec_pair low = Q6_W_vshuff_VVR(Q6_V_lo_W(b), Q6_V_lo_W(a), -2 * bytes);
    vec_pair high = Q6_W_vshuff_VVR(Q6_V_hi_W(b), Q6_V_hi_W(a), -2 * bytes);
    to[0] = Q6_V_lo_W(low);
    to[1] = Q6_V_hi_W(low);
    to[2] = Q6_V_lo_W(high);
    to[3] = Q6_V_hi_W(high);
}

/* Put four rows together.  The parts of a panel are written in the order in which they lie: one may
 * be written beyond its end, into the next. */
static void make_panel(const row rows[NPURT_PANEL], panel *to)
{
    uint32_t units = units_of(rows->k), eights = (steps_of(rows->k) + 7) / 8;
    vec *codes = (vec *) to->codes, *record = (vec *) to->record;
    for (uint32_t i = 0; i < units; i++, codes += NPURT_PANEL) {
        vec from[] = {rows[0].codes[i], rows[1].codes[i], rows[2].codes[i], rows[3].codes[i]};
        interleave(from, codes, 8);
    }
    for (uint32_t i = 0; i < eights; i++, record += NPURT_PANEL) {
        vec from[] = {rows[0].record[i], rows[1].record[i], rows[2].record[i], rows[3].record[i]};
        interleave(from, record, 16);
    }
}

static void spread_zero_points(const row rows[], uint32_t count, vec *to)
{
    for (uint32_t step = 0; step < steps_of(rows->k); step++) {
        for (uint32_t r = 0; r < count; r++) {
            const uint32_t *chunk = (const uint32_t *) &rows[r].zero[step / CHUNK_RECORDS];
            *to++ = splat(chunk[step % CHUNK_RECORDS]);
        }
    }
}

/* The arrays of a row, in scratch memory; returns what is left of that. */
static vec *lay_out(row *row, vec *scratch)
{
    vec **arrays[] = {&row->greatest, &row->factor, &row->scale, &row->zero};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(*arrays); i++) {
        *arrays[i] = scratch;
        scratch += row->chunks;
    }
    row->record = scratch;
    row->codes = row->record + 2 * row->chunks;
    row->quads = row->codes + CHUNK_UNITS * row->chunks;
    row->tail = row->quads + CHUNK_UNITS * row->chunks;
    return row->tail + TAIL_VECTORS;
}

int npurt_quantise(const npurt_quantisation *q, uint32_t first, uint32_t last, void *scratch)
{
    int failed = 0;
    for (uint32_t at = first, count; at < last; at += count) {
        count = panel_rows(at, q->m);
        panel to = panel_at(q->activations, at, count, q->k);
        row rows[NPURT_PANEL];
        vec *left = scratch;
        for (uint32_t r = 0; r < count; r++) {
            const char *x = (const char *) q->x + (at + r) * q->x_stride;
            rows[r] = (row){(const vec *) x, .k = q->k, .group = q->group};
            rows[r].chunks = chunks_of(q->k);
            left = lay_out(&rows[r], left);
            if (count == 1) { /* in place */
                rows->codes = (vec *) to.codes;
                rows->record = (vec *) to.record;
            }
            failed |= quantise_row(&rows[r], &to.exponent[r], &to.total[r]);
        }
        if (count > 1) {
            make_panel(rows, &to);
        }
        spread_zero_points(rows, count, to.zero);
    }
    return failed;
}
