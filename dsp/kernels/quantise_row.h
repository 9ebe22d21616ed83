/*
 * Quantises a float32 row to int8 codes, with a scale per 32 or 128 columns or per row; layout in
 * activations.h.
 *
 * All arithmetic is on the bits as integers.  E is the biased exponent of a row's greatest
 * magnitude, plus 1 if the magnitude is within 1/32 of the next power of two.  Then:
 *
 *   V     greatest magnitude of a group / 2^(E - 150), rounded down: at most 24 bits
 *   scale (V + V / 2^7 + V / 2^14) / 2^9 + 1, rounded down: V / 508 and a little, 1..32767
 *   code  x / (scale * 2^(E - 148)): 15 bits of x's mantissa times 15 of the reciprocal of the
 *         scale, halves away from 0; |code| <= 127, and the greatest magnitude gets almost
 *         exactly 127.
 *
 * A row whose greatest magnitude is below 2^-87 is first multiplied by 2^64, and its exponent is
 * reduced by 64.  So every element that is not rounded to 0 is a normal number.  A row of zeros has
 * exponent 0.  NaN and infinity are the greatest magnitudes, and are reported.
 *
 * Work    passes over the row: greatest magnitudes; scales and reciprocals, 32 groups at a time;
 *         codes and sums of four; records, 32 groups at a time.
 * Reads   nothing beyond a row's k columns; k a multiple of 32.
 */
#ifndef NPURT_QUANTISE_ROW_H
#define NPURT_QUANTISE_ROW_H

#include "activations.h"

#define NOT_FINITE 0x7f800000u

enum {
    UNIT_COLUMNS = 256,   /* eight vectors of x; the last unit of a row may be incomplete */
    CODE_COLUMNS = 128,   /* a vector of codes */
    CHUNK_COLUMNS = 1024, /* 32 groups: a vector of their scales */
    UNIT_VECTORS = UNIT_COLUMNS / NPURT_TILE,
    CODE_VECTORS_OF_X = CODE_COLUMNS / NPURT_TILE,
    CHUNK_CODES = CHUNK_COLUMNS / CODE_COLUMNS,
    CHUNK_STEPS = CHUNK_COLUMNS / NPURT_STEP,
    EXPONENT_BIT = 23,
    ROUND_UP = 0x40000, /* added to bits: 2^24 - 2^18 is the first mantissa rounded up */
    LEAST_TOP = 40,     /* the smallest E, that of 2^-87 */
    ROW_EXPONENT = 148, /* E minus the row's exponent */
    LIFT = 64,          /* log2 of the factor of small rows */
};

/* The working memory of one row.  Arrays are padded to whole chunks, codes to whole units. */
typedef struct {
    const vec *x;
    vec *tail; /* the last unit, padded with zeros, if x has only a part of it */
    uint32_t k, group, chunks;
    vec *greatest;  /* [chunks + 1] magnitudes of 32 groups */
    vec *factor;    /* [chunks + 1] for 16 pairs of groups: two reciprocals, two shifts */
    vec *scale;     /* [chunks + 1] int32, of 32 groups */
    uint32_t *zero; /* [chunks][16] pairs of 32 columns' zero points */
    vec *record;    /* [chunks][2] */
    vec *codes;     /* [units][2] */
    vec *quads;     /* [chunks][8] sums of four codes */
} row;

static uint32_t chunks_of(uint32_t k)
{
    return (k + CHUNK_COLUMNS - 1) / CHUNK_COLUMNS;
}

/* --- pass 1: greatest magnitudes
 * ---------------------------------------------------------------- */

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

/*
 * Return the greatest magnitudes of eight groups of 32 columns, repeated four times.  If groups
 * have 128 columns, four neighbours get the same value.  If the row is one group, return the
 * greatest magnitude of each lane; find_greatest compares the lanes.
 */
INLINE vec greatest_of_unit(const vec *x, uint32_t group)
{
    vec m[UNIT_VECTORS];
    UNROLL
    for (unsigned i = 0; i < UNIT_VECTORS; i++) {
        m[i] = magnitude(x[i]);
    }
    if (group != 32) {
        m[0] = m[1] = m[2] = m[3] = greater(greater(m[0], m[1]), greater(m[2], m[3]));
        m[4] = m[5] = m[6] = m[7] = greater(greater(m[4], m[5]), greater(m[6], m[7]));
    }
    if (group == 0) {
        return greater(m[0], m[4]);
    }
    vec even = greater_of_pairs(greater_of_pairs(m[0], m[4]), greater_of_pairs(m[2], m[6]));
    vec odd = greater_of_pairs(greater_of_pairs(m[1], m[5]), greater_of_pairs(m[3], m[7]));
    return greater_rotated(greater_rotated(greater_of_pairs(even, odd), 32), 64);
}

static void copy_tail(const row *row)
{
    uint32_t first = row->k / UNIT_COLUMNS * UNIT_VECTORS;
    for (uint32_t i = 0; i < UNIT_VECTORS; i++) {
        row->tail[i] = first + i < row->k / NPURT_TILE ? row->x[first + i] : Q6_V_vzero();
    }
}

/*
 * Write the greatest magnitude of each group of `units`, and zeros to the end of a chunk; return
 * the greatest of each lane and `of_row`.  Each write is a whole vector; the next write overwrites
 * all but its first eight words.
 */
INLINE vec greatest_of_units(const vec *restrict x, char *restrict to, uint32_t units,
                             uint32_t group, vec of_row)
{
    PIPELINE
    for (; units > 0; units--) {
        vec eight = greatest_of_unit(x, group);
        of_row = greater(of_row, eight);
        *(unaligned_vec *) to = eight;
        x += UNIT_VECTORS;
        to += UNIT_VECTORS * sizeof(uint32_t);
    }
    *(unaligned_vec *) to = Q6_V_vzero();
    return of_row;
}

INLINE vec greatest_of_groups(const row *row, uint32_t group)
{
    uint32_t units = row->k / UNIT_COLUMNS;
    char *to = (char *) row->greatest;
    vec of_row = greatest_of_units(row->x, to, units, group, Q6_V_vzero());
    if (row->k % UNIT_COLUMNS) {
        to += units * UNIT_VECTORS * sizeof(uint32_t);
        of_row = greatest_of_units(row->tail, to, 1, group, of_row);
    }
    return of_row;
}

/* Call greatest_of_units with a constant group, so that each group size has its own loop. */
static vec greatest_of_row(const row *row)
{
    switch (row->group) {
    case 0:
        return greatest_of_groups(row, 0);
    case 32:
        return greatest_of_groups(row, 32);
    default:
        return greatest_of_groups(row, 128);
    }
}

/* Fill row->greatest, and return the greatest of all. */
static uint32_t find_greatest(const row *row)
{
    vec of_row = greatest_of_row(row);
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

/* --- small rows
 * --------------------------------------------------------------------------------- */

/* Multiply float32 bits of numbers below 2^-62 by 2^LIFT.  The highest bit of a subnormal number
 * becomes the implied one of normal numbers, so it adds 1 to the exponent. */
INLINE vec lifted(vec bits)
{
    vec m = magnitude(bits);
    vec shift = Q6_Vw_vnormamt_Vw(m); /* of the highest bit to bit 30 */
    vec mantissa = Q6_Vuw_vlsr_VuwR(Q6_Vw_vasl_VwVw(m, shift), 30 - EXPONENT_BIT);
    vec exponent = Q6_Vw_vsub_VwVw(splat(LIFT + 30 - EXPONENT_BIT), shift);
    vec subnormal = Q6_Vw_vadd_VwVw(mantissa, Q6_Vw_vasl_VwR(exponent, EXPONENT_BIT));
    vec normal = Q6_Vw_vadd_VwVw(m, splat(LIFT << EXPONENT_BIT));
    vec result = Q6_V_vmux_QVV(Q6_Q_vcmp_gt_VwVw(splat(1 << EXPONENT_BIT), m), subnormal, normal);
    result = Q6_V_vand_QnV(Q6_Q_vcmp_eq_VwVw(m, Q6_V_vzero()), result);
    return Q6_V_vor_VV(result, Q6_V_vand_VV(bits, splat(0x80000000u)));
}

/* --- pass 2: scales and their reciprocals
 * ------------------------------------------------------- */

/* Return the lower halves of the words of a, then of b. */
INLINE vec lower_halves(vec a, vec b)
{
    return Q6_Vh_vpacke_VwVw(b, a);
}

/*
 * Return 2^45 / d for d = 2^30..2^31 - 1 in steps of 2^16: 15 bits, rounded down or one less. Start
 * from a line whose error is at most 1/17, then make two Newton steps y += y (1 - d y) in Q29.
 */
INLINE vec reciprocal(vec d)
{
    vec line = Q6_Vw_vmpyo_VwVh_s1_rnd_sat(splat(1010580540), d); /* 32/17 d */
    vec y = Q6_Vw_vsub_VwVw(splat(1515870810), line);             /* 48/17 - line */
    vec error = Q6_Vw_vsub_VwVw(splat(1 << 29), Q6_Vw_vmpyo_VwVh_s1_rnd_sat(y, d));
    y = Q6_Vw_vadd_VwVw(y, Q6_Vw_vmpyo_VwVh_s1_rnd_sat(y, Q6_Vw_vasl_VwR(error, 2)));
    error = Q6_Vw_vsub_VwVw(splat(1 << 29), Q6_Vw_vmpyo_VwVh_s1_rnd_sat(y, d));
    vec fine = Q6_Vw_vmpyo_VwVh_s1_rnd_sat(y, Q6_Vw_vasl_VwR(error, 9));
    return Q6_Vuw_vlsr_VuwR(Q6_Vw_vadd_VwVw(y, Q6_Vw_vasr_VwR(fine, 7)), 15);
}

/* Compute scales and factors of 32 groups; `coded` subtracts the exponent of x from their
 * shifts. */
INLINE void scales_of(vec greatest, uint32_t exponent, vec *scale, vec *factor)
{
    vec below = Q6_Vw_vsub_VwVw(splat(exponent), Q6_Vuw_vlsr_VuwR(greatest, EXPONENT_BIT));
    vec v = Q6_V_vor_VV(Q6_V_vand_VV(greatest, splat(0x7fffff)), splat(0x800000));
    v = Q6_Vw_vlsr_VwVw(v, Q6_Vw_vmin_VwVw(below, splat(31)));
    vec more = Q6_Vw_vadd_VwVw(Q6_Vuw_vlsr_VuwR(v, 7), Q6_Vuw_vlsr_VuwR(v, 14));
    *scale = Q6_Vuw_vlsr_VuwR(Q6_Vw_vadd_VwVw(v, more), 9);
    *scale = Q6_Vw_vadd_VwVw(*scale, splat(1));
    vec normal = Q6_Vw_vnormamt_Vw(*scale); /* 16 for scales of 15 bits */
    vec inverse = reciprocal(Q6_Vw_vasl_VwVw(*scale, normal));
    vec shift = Q6_Vw_vsub_VwVw(splat(exponent + 16 + 6), normal);
    vec both = lower_halves(inverse, shift);
    *factor = Q6_V_lo_W(Q6_W_vshuff_VVR(Q6_V_vror_VR(both, 64), both, -4));
}

/* Compute two chunks at a time, because each has long latencies.  With an odd number of chunks, the
 * results of the second chunk of the last pair are not used. */
static void make_scales(const row *row, uint32_t exponent)
{
    for (uint32_t chunk = 0; chunk < row->chunks; chunk += 2) {
        vec scale[2], factor[2];
        scales_of(row->greatest[chunk], exponent, &scale[0], &factor[0]);
        scales_of(row->greatest[chunk + 1], exponent, &scale[1], &factor[1]);
        UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            row->scale[chunk + i] = scale[i];
            row->factor[chunk + i] = factor[i];
        }
    }
}

/* --- pass 3: codes
 * ------------------------------------------------------------------------------ */

/* Return codes of two groups: of a in lower, of b in upper halves.  factor: reciprocals and
 * shifts. */
INLINE vec coded(vec a, vec b, uint64_t factor)
{
    vec exponent = Q6_Vh_vasr_VhR(Q6_Vh_vshuffo_VhVh(b, a), 7); /* the sign is above the exponent */
    vec mantissa = Q6_Vh_vasr_VwVwR(b, a, EXPONENT_BIT - 14);
    mantissa = Q6_V_vand_VV(mantissa, splat(0x3fff3fff));
    mantissa = Q6_V_vor_VV(mantissa, splat(0x40004000));
    vec code = Q6_Vh_vmpy_VhRh_s1_rnd_sat(mantissa, (int32_t) low_word(factor));
    vec shift = Q6_V_vand_VV(exponent, splat(0x00ff00ff));
    shift = Q6_Vh_vsub_VhVh(splat(high_word(factor)), shift);
    shift = Q6_Vh_vmin_VhVh(shift, splat(0x000f000f));
    code = Q6_Vh_vlsr_VhVh(code, shift); /* doubled */
    code = Q6_Vuh_vavg_VuhVuh_rnd(code, Q6_V_vzero());
    HVX_VectorPred negative = Q6_Q_vcmp_gt_VhVh(Q6_V_vzero(), exponent);
    return Q6_V_vmux_QVV(negative, Q6_Vh_vsub_VhVh(Q6_V_vzero(), code), code);
}

INLINE vec number_at(const vec *x, int lift)
{
    return lift ? lifted(*x) : *x;
}

/* Compute the codes of `count` times 128 columns. */
INLINE void make_codes_of(const vec *restrict x, const uint64_t *restrict factor,
                          vec *restrict codes, vec *restrict quads, uint32_t count, int lift)
{
    PIPELINE
    for (; count > 0; count--) {
        vec first = coded(number_at(x, lift), number_at(x + 1, lift), factor[0]);
        vec last = coded(number_at(x + 2, lift), number_at(x + 3, lift), factor[1]);
        vec bytes = Q6_Vb_vdeale_VbVb(last, first);
        *codes++ = bytes;
        *quads++ = Q6_Vw_vrmpy_VubVb(splat_byte(1), bytes);
        x += CODE_VECTORS_OF_X;
        factor += CODE_VECTORS_OF_X / 2;
    }
}

INLINE void make_codes(const row *row, int lift)
{
    const uint64_t *factor = (const uint64_t *) row->factor;
    uint32_t done = row->k / UNIT_COLUMNS * (UNIT_COLUMNS / CODE_COLUMNS);
    make_codes_of(row->x, factor, row->codes, row->quads, done, lift);
    if (row->k % UNIT_COLUMNS) {
        factor += done * CODE_VECTORS_OF_X / 2;
        make_codes_of(row->tail, factor, row->codes + done, row->quads + done, 2, lift);
        done += 2;
    }
    for (; done < row->chunks * CHUNK_CODES; done++) {
        row->quads[done] = Q6_V_vzero();
    }
}

/* --- pass 4: records and zero points
 * ------------------------------------------------------------ */

/* Return sums of neighbours: words 0 and 1, 2 and 3, ... of a, then of b. */
INLINE vec pair_sums(vec a, vec b)
{
    vec_pair both = Q6_W_vdeal_VVR(b, a, -4);
    return Q6_Vw_vadd_VwVw(Q6_V_lo_W(both), Q6_V_hi_W(both));
}

/*
 * Write two vectors of records for every chunk, and the 16 pairs of its zero points (followed by 16
 * words that the next chunk overwrites).  Return sums of codes, one per lane.
 */
static vec make_records_of(const vec *restrict quads, const vec *restrict scale,
                           vec *restrict record, char *restrict zero, uint32_t chunks)
{
    vec total = Q6_V_vzero();
    PIPELINE
    for (; chunks > 0; chunks--) {
        vec halves = pair_sums(pair_sums(quads[0], quads[1]), pair_sums(quads[2], quads[3]));
        vec more = pair_sums(pair_sums(quads[4], quads[5]), pair_sums(quads[6], quads[7]));
        vec_pair split = Q6_W_vdeal_VVR(more, halves, -4); /* first 16 columns, last 16 */
        vec sum = Q6_Vw_vadd_VwVw(Q6_V_lo_W(split), Q6_V_hi_W(split));
        total = Q6_Vw_vadd_VwVw(total, sum);
        vec scaled = Q6_Vw_vadd_VwVw(Q6_Vw_vmpyie_VwVuh(sum, *scale), splat(1 << 11));
        scaled = Q6_Vw_vasr_VwR(scaled, 12);
        vec first = Q6_Vh_vmpyi_VhRb(Q6_V_lo_W(split), (int32_t) 0xf0f0f0f0);
        vec last = Q6_Vh_vmpyi_VhRb(Q6_V_hi_W(split), (int32_t) 0xf0f0f0f0);
        vec both = Q6_Vh_vmpyi_VhRb(sum, (int32_t) 0xf8f8f8f8);
        vec_pair words =
            Q6_W_vshuff_VVR(lower_halves(scaled, last), lower_halves(*scale, first), -4);
        vec_pair records = Q6_W_vshuff_VVR(Q6_V_hi_W(words), Q6_V_lo_W(words), -8);
        *record++ = Q6_V_lo_W(records);
        *record++ = Q6_V_hi_W(records);
        *(unaligned_vec *) zero = lower_halves(both, both);
        zero += CHUNK_STEPS * sizeof(uint32_t);
        quads += CHUNK_CODES;
        scale++;
    }
    return total;
}

/* Return -128 times the sum of all codes if there is one scale a row, else 0. */
static int32_t make_records(const row *row)
{
    vec total =
        make_records_of(row->quads, row->scale, row->record, (char *) row->zero, row->chunks);
    if (row->group) {
        return 0;
    }
    for (int bytes = 4; bytes < (int) NPURT_VECTOR; bytes *= 2) {
        total = Q6_Vw_vadd_VwVw(total, Q6_V_vror_VR(total, bytes));
    }
    lanes all = {.all = total};
    return -128 * all.lane[0];
}

/* --- rows and panels
 * ---------------------------------------------------------------------------- */

INLINE void make_row(const row *row, uint32_t top, int lift, int32_t *exponent, int32_t *total)
{
    make_scales(row, top);
    make_codes(row, lift);
    *total = make_records(row);
    *exponent = (int32_t) top - ROW_EXPONENT - (lift ? LIFT : 0);
}

/* Handle a row of zeros, or a row that is multiplied by 2^LIFT. */
static __attribute__((noinline)) int make_small_row(const row *row, uint32_t greatest,
                                                    int32_t *exponent, int32_t *total)
{
    for (uint32_t chunk = 0; chunk < row->chunks; chunk++) {
        row->greatest[chunk] = lifted(row->greatest[chunk]);
    }
    lanes all = {.all = lifted(splat(greatest))};
    uint32_t top = ((uint32_t) all.lane[0] + ROUND_UP) >> EXPONENT_BIT;
    make_row(row, top < LEAST_TOP ? LEAST_TOP : top, 1, exponent, total);
    *exponent = greatest ? *exponent : 0;
    return 0;
}

/* Quantise a row; return 1 if it is not finite. */
static int quantise_row(const row *row, int32_t *exponent, int32_t *total)
{
    if (row->k % UNIT_COLUMNS) {
        copy_tail(row);
    }
    uint32_t greatest = find_greatest(row), top = (greatest + ROUND_UP) >> EXPONENT_BIT;
    if (top < LEAST_TOP) {
        return make_small_row(row, greatest, exponent, total);
    }
    make_row(row, top, 0, exponent, total);
    return greatest >= NOT_FINITE;
}

#endif
