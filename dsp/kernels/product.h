/*
 * The common code of all products; a kernel is this code compiled for one kind of weights.
 *
 * A tile is 32 rows of w, one to a lane of 32 bits.  After its heads it has, for each step of 64
 * columns, vectors of codes, scales and offsets.  Code vectors hold four columns of each row in a
 * lane; x's codes are in scalar registers, so `vrmpy(Vu.ub, Rt.b)` makes 4 * 32 products, and no
 * instruction is needed to broadcast x.  A is the sum over the first 32 columns, B over the last
 * 32:
 *
 *   A += vrmpy(w.ub, x.b)               x 8                     B likewise
 *   h  = (B, A) narrowed to pairs of int16, + zero point        sums of code * code
 *   h' = h * scale of x / 2^15          rounded to nearest      activations' scale, Q15
 *   G  = sum of the pair h' * scale of w                        + offset of w * T, if w has offsets
 *   y += G >> shift                     rounded down            shift = ceil(log2(steps))
 *
 * Units: in the unit of h, the largest weight code is 8 (16 if scales are per 16 columns), so |h|
 * <= 127 * 32 * 8 = 32512.  |scale of w| < 2^bits, so that G fits into 32 bits: bits is 15; 14 with
 * offsets or with scales per 16 columns; 13 with both.  The shift is chosen so that y fits.
 * Narrowing drops bits above 16 without saturation.  The sums are of unsigned weights; adding the
 * zero point gives the true, small value, exact modulo 2^16.
 *
 * Packets of a step of R rows: the 16 R vrmpy need 8 R packets, vmpy and vdmpy another 2 R (from
 * v69 on 1.5 R), and offsets another R (from v69 on R / 2).  So the maximum for 4 rows is 204
 * MAC/packet (from v69 on 215), and 186 (204) with offsets.  For one row, the number of
 * instructions is the limit. With 4-bit codes, a tile and step needs 9 loads, 16 instructions to
 * unpack nibbles, 16 vrmpy, 5 to narrow and scale, and about 2.5 for x.  The sum is 48.5: at most
 * 169 MAC/packet.  8-bit codes need 17 vector loads, and a packet holds one: at most 120
 * MAC/packet.
 */
#ifndef NPURT_PRODUCT_H
#define NPURT_PRODUCT_H

#include "activations.h"

/* Kinds of weights: kernel of dsp/formats.inc. */
typedef enum {
    Q4,          /* 4-bit codes */
    LUT,         /* 4-bit codes that choose from 16 bytes */
    Q8,          /* 8-bit codes */
    Q8_G16,      /* 8-bit codes, a scale per 16 columns */
    Q16,         /* 16-bit codes: high bytes, then low bytes */
    PER_CHANNEL, /* 8-bit codes, one scale a row: no h, y is the sum itself */
} kind;

enum { QUADS = NPURT_STEP / 8 }; /* words of 8 codes of x in a step */

#define CODE_VECTORS(kind) ((kind) == Q4 || (kind) == LUT ? 8 : (kind) == Q16 ? 32 : 16)
#define SCALE_VECTORS(kind) ((kind) == PER_CHANNEL ? 0 : (kind) == Q8_G16 ? 2 : 1)
#define STEP_VECTORS(kind, offsets)                                                                \
    (CODE_VECTORS(kind) + SCALE_VECTORS(kind) * (1 + ((offsets) ? 1 : 0)))

/* The bits that narrowing drops, and the value added before so that it rounds. */
#define NARROW_BITS(kind) ((kind) == Q4 ? 0 : (kind) == Q8_G16 ? 3 : (kind) == Q16 ? 12 : 4)
#define HALF_UNIT(kind) (1u << NARROW_BITS(kind) >> 1)

/* Heads of a tile. */
enum {
    HEAD_EXPONENT, /* (exponent + 156) << 23 of every lane, modulo 2^32 */
    HEAD_RANGE,    /* int32: least and greatest exponent */
    HEAD_OTHER,    /* LUT: table; PER_CHANNEL: Q15 mantissas of the rows' scales, in upper halves */
};

/* Constants that unpacking keeps in registers. */
typedef struct {
    vec mask;     /* Q4 */
    vec table;    /* LUT */
    vec start[2]; /* start values of A and B: half a unit, so that narrowing rounds */
} constants;

INLINE constants constants_of(kind kind, const vec *heads)
{
    constants c;
    c.mask = splat_byte(0x0f);
    c.table = kind == LUT ? heads[HEAD_OTHER] : Q6_V_vzero();
    c.start[0] = splat(HALF_UNIT(kind));
    c.start[1] = splat(HALF_UNIT(kind) - 1);
    return c;
}

/* 8 columns of 32 weights: the first four in `low`, the others in `high`; unsigned. */
typedef struct {
    vec low, high;
} columns;

INLINE columns unpack(kind kind, const vec *w, unsigned quad, const constants *c)
{
    columns to;
    if (kind == Q4) {
        to.low = Q6_V_vand_VV(w[quad], c->mask);
        to.high = Q6_Vub_vlsr_VubR(w[quad], 4);
    } else if (kind == LUT) {
        to.low = Q6_Vb_vlut32_VbVbR_nomatch(w[quad], c->table, 0);
        to.high = Q6_Vb_vlut32_VbVbI(Q6_Vub_vlsr_VubR(w[quad], 4), c->table, 0);
    } else {
        to.low = w[2 * quad];
        to.high = w[2 * quad + 1];
    }
    return to;
}

/* `dot_first` returns a new sum; `dot` adds to the given sum. */
INLINE vec dot_first(columns w, uint64_t x)
{
    return Q6_Vw_vrmpyacc_VwVubRb(Q6_Vw_vrmpy_VubRb(w.low, (int32_t) low_word(x)), w.high,
                                  (int32_t) high_word(x));
}

INLINE vec dot(vec sum, columns w, uint64_t x)
{
    sum = Q6_Vw_vrmpyacc_VwVubRb(sum, w.low, (int32_t) low_word(x));
    return Q6_Vw_vrmpyacc_VwVubRb(sum, w.high, (int32_t) high_word(x));
}

/* Return pairs of int16 modulo 2^16: a in the low halves, b in the high halves. */
INLINE vec narrow(kind kind, vec a, vec b)
{
    return kind == Q4 ? Q6_Vh_vshuffe_VhVh(b, a) : Q6_Vh_vasr_VwVwR(b, a, NARROW_BITS(kind));
}

/* Return the sum of the pair h * (scale of x * scale of w); `scaled_more` adds the sum to g. */
INLINE vec scaled(vec h, uint32_t x_scale, vec w_scale)
{
    return Q6_Vw_vdmpy_VhVh_sat(h, Q6_Vh_vmpy_VhRh_s1_rnd_sat(w_scale, (int32_t) x_scale));
}

INLINE vec scaled_more(vec g, vec h, uint32_t x_scale, vec w_scale)
{
    vec scale = Q6_Vh_vmpy_VhRh_s1_rnd_sat(w_scale, (int32_t) x_scale);
    return Q6_Vw_vdmpyacc_VwVhVh_sat(g, h, scale);
}

/*
 * Return G of one step.  `a` holds sums of its first 32 columns, `b` of its last 32.  For Q8_G16,
 * element [0] is the sum of the first 16 of these columns, element [1] of the last 16.  `w` points
 * to the step's vectors after its codes.
 */
INLINE vec step_product(kind kind, int offsets, const vec a[2], const vec b[2], const vec *w,
                        const uint32_t *record, vec zero)
{
    uint32_t x_scale = record[SCALE];
    if (kind != Q8_G16) {
        vec g = scaled(Q6_Vh_vadd_VhVh(narrow(kind, a[0], b[0]), zero), x_scale, w[0]);
        return offsets ? Q6_Vw_vdmpyacc_VwVhRh_sat(g, w[1], (int32_t) record[SUMS]) : g;
    }
    vec first = splat(record[ZERO_FIRST]), last = splat(record[ZERO_LAST]);
    vec g = scaled(Q6_Vh_vadd_VhVh(narrow(kind, a[0], b[0]), first), x_scale, w[0]);
    g = scaled_more(g, Q6_Vh_vadd_VhVh(narrow(kind, a[1], b[1]), last), x_scale, w[1]);
    if (offsets) { /* a zero point is -16 times the sum of 16 codes of x */
        g = scaled_more(g, first, x_scale, w[2]);
        g = scaled_more(g, last, x_scale, w[3]);
    }
    return g;
}

/* The position of a kernel: the next tile, and its columns of y. */
typedef struct {
    const char *tile;
    uint32_t tiles; /* remaining tiles */
    float *y;
    uint32_t n; /* remaining columns of y; the last tile may have fewer than 32 */
} place;

/* The arguments of a kernel: one panel, and consecutive tiles to multiply it by. */
typedef struct {
    place first;
    size_t tile_bytes;
    uint32_t steps;
    uint32_t shift; /* ceil(log2(steps)) */
    panel x;
    size_t y_stride;  /* bytes */
    int32_t exponent; /* of the unit of sums, without those of x's rows and lanes */
    vec shifted_exponent[NPURT_PANEL]; /* (exponent + the row's exponent) << 23, in all lanes */
    int32_t least, greatest;           /* limits for exponents of lanes with normal results */
} job;

#define HEADS(kind) ((kind) == LUT || (kind) == PER_CHANNEL ? HEAD_OTHER + 1 : HEAD_OTHER)

#endif
