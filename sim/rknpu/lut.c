/*
 * The LUT of the DPU: it approximates a function of one number by two tables of 513 entries.
 *
 *     index = round(x * BN_MUL + BN_ALU), both in float32
 *     entry = linear interpolation, truncated, between two entries that are 32 indices apart, in
 *             the table of negative indices (from LE_START) or in that of the others (to LO_END);
 *             below LE_START a line with the slope of LE, at least 0; above LO_END the last entry
 *     y     = (entry + OUT_CVT_OFFSET) * 2^-MINUS_EXP as a float16; 2^(17 - MINUS_EXP) if the sum
 *             in brackets is 0
 *
 * Sources: rocket-userspace's generator, and its notes on silicon (gregordinary/rockchip-npu-notes,
 * dpu-lut-activation.md).  The notes give figures but no rules; these rules
 * reproduce all of the figures: errors of 12 functions (0.00146 for sigmoid, 5.5e-4 for exp, 0.85 %
 * for sqrt, 0.44 %, 1.03 %, ...), 97 wrong of 4,001 points around 0 for ELU, one of 16,385 for
 * leaky ReLU, and wrong values of 4, 8, 16, 64 and 128 for MINUS_EXP of 15, 14, 13, 11 and 10.  No
 * figure determines the rule for indices half-way between two integers (here: to even) or for
 * entries above 0x7FFF (here: refused).
 */
#include "npu.h"

#include <math.h>
#include <string.h>

#define EQUAL(reg, expected, reason) CHECK(reg, VALUE(reg) == (uint32_t) (expected), reason)

enum { HYBRID = 0x68, STEP_BITS = 5, END = 16384 };
enum { MAX_ENTRY = 0x7FFF, MAX_EXPONENT = 31 };
enum { ZERO_EXPONENT = 17 };                     /* exponent of the result if the sum is 0 */
static const uint32_t FLOAT_AFFINE = 0x80000000; /* CVT_TYPE, beside MINUS_EXP */

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

float half_to_float(uint16_t half)
{
    double value;
    floats_best->widen(FP16, (const uint8_t *) &half, 1, &value);
    return (float) value;
}

static bool check_tables(struct run *run)
{
    const struct lut *lut = &run->worker->lut;
    for (int t = 0; t < TABLES; t++) {
        CHECK(DPU_LUT_ACCESS_CFG, lut->loaded[t] == LUT_ENTRIES || !settings.strict,
              "the list does not write both tables of 513 entries");
        for (int i = 0; i < LUT_ENTRIES; i++) {
            if (lut->entries[t][i] > MAX_ENTRY) {
                return refuse_register(run->why, DPU_LUT_ACCESS_DATA, lut->entries[t][i],
                                       "the meaning of entries above 0x7fff is unknown");
            }
        }
    }
    return true;
}

bool activation_check(struct run *run, struct activation *activation)
{
    const uint32_t shift = VALUE(DPU_OUT_CVT_SHIFT), slope = VALUE(DPU_LUT_LE_SLOPE_SCALE);
    const uint32_t exponent = shift >> 12 & 0xFF;
    EQUAL(DPU_LUT_CFG, HYBRID, "the one mode known to work");
    EQUAL(DPU_LUT_INFO, STEP_BITS << 16 | STEP_BITS << 8, "the one step known to work");
    EQUAL(DPU_LUT_LE_START, -END, "the one range known to work");
    EQUAL(DPU_LUT_LE_END, 0, "the one range known to work");
    EQUAL(DPU_LUT_LO_START, 0, "the one range known to work");
    EQUAL(DPU_LUT_LO_END, END, "the one range known to work");
    CHECK(DPU_LUT_LE_SLOPE_SCALE, slope <= INT16_MAX, "bits besides a slope below the tables");
    CHECK(DPU_LUT_LE_SLOPE_SHIFT, VALUE(DPU_LUT_LE_SLOPE_SHIFT) <= 0x1F, "bits besides a shift");
    EQUAL(DPU_OUT_CVT_SCALE, 0x10001, "not the identity of this output type");
    CHECK(DPU_OUT_CVT_SHIFT, shift == (FLOAT_AFFINE | exponent << 12) && exponent <= MAX_EXPONENT,
          "bits besides CVT_TYPE and MINUS_EXP, up to 31");
    CHECK(DPU_BN_MUL_CFG, !(VALUE(DPU_BN_MUL_CFG) & 0xFFFF), "bits besides the operand");
    *activation = (struct activation){
        .lut = &run->worker->lut,
        .scale = half_to_float((uint16_t) (VALUE(DPU_BN_MUL_CFG) >> 16)),
        .bias = float_of(VALUE(DPU_BN_ALU_CFG)),
        .slope = slope,
        .slope_shift = VALUE(DPU_LUT_LE_SLOPE_SHIFT),
        .offset = (int32_t) VALUE(DPU_OUT_CVT_OFFSET),
        .minus_exponent = (int) exponent,
    };
    return check_tables(run);
}

static int64_t look_up(const struct activation *activation, int64_t index)
{
    const uint16_t *entries = activation->lut->entries[index < 0 ? NEGATIVE : POSITIVE];
    const int64_t from_start = index < 0 ? index + END : index;
    if (from_start < 0) {
        const int64_t below =
            (-from_start * activation->slope + (1LL << activation->slope_shift) - 1) >>
            activation->slope_shift;
        return entries[0] > below ? entries[0] - below : 0;
    }
    if (from_start >= END) {
        return entries[LUT_ENTRIES - 1];
    }
    const int64_t i = from_start >> STEP_BITS, part = from_start & ((1 << STEP_BITS) - 1);
    return (entries[i] * ((1 << STEP_BITS) - part) + entries[i + 1] * part) >> STEP_BITS;
}

uint16_t activate(const struct activation *activation, float x)
{
    const float scaled = x * activation->scale;
    const double index = nearbyint(scaled + activation->bias);
    if (isnan(index)) {
        return double_to_half(index);
    }
    const double far = 0x1p31; /* an index of 32 bits */
    const int64_t entry = look_up(activation, (int64_t) fmin(fmax(index, -far), far - 1));
    const int64_t sum = entry + activation->offset;
    return double_to_half(
        ldexp(sum ? (double) sum : ldexp(1, ZERO_EXPONENT), -activation->minus_exponent));
}
