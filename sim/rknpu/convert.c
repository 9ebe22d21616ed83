/*
 * Converts sums to the type of the output.
 *
 * Integers saturate.  A scaled integer is truncated, (sum * scale) >> shift, then converted to
 * float (rocket-userspace, matmul_int8_dequant_rocket: the ratio classifier).  Requantisation to
 * int8 rounds half up, then adds the offset.  This agrees with all 4,096 bytes of the one capture
 * of an RK3588 (rocket-userspace, tests/data/teflon-dw-capture), which contains no tie, so the rule
 * for ties is not confirmed.
 */
#include "npu.h"

#include <string.h>

void convert_float(uint8_t *to, enum output type, double value)
{
    if (type == TO_FP32) {
        const float single = (float) value;
        memcpy(to, &single, sizeof(single));
    } else {
        const uint16_t half = type == TO_BF16 ? double_to_bfloat(value) : double_to_half(value);
        memcpy(to, &half, sizeof(half));
    }
}

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* Rounds down, also for negative values, whatever the machine's >> does. */
static int64_t shift_down(int64_t value, uint32_t shift)
{
    return value >= 0 ? value >> shift : ~(~value >> shift);
}

void convert_int(uint8_t *to, const struct matmul *mm, int64_t sum)
{
    const struct requantisation *by = &mm->stages.requantisation;
    const int64_t scaled = clamp(sum, INT32_MIN, INT32_MAX) * by->scale;
    if (mm->out == TO_INT16) {
        const int16_t small = (int16_t) clamp(scaled, INT16_MIN, INT16_MAX);
        memcpy(to, &small, sizeof(small));
    } else if (mm->out == TO_INT32) {
        const int32_t value = (int32_t) clamp(scaled, INT32_MIN, INT32_MAX);
        memcpy(to, &value, sizeof(value));
    } else if (mm->out == TO_INT8) {
        const int64_t half = (int64_t) 1 << (by->shift - 1);
        const int64_t value = shift_down(scaled + half, by->shift) + by->offset;
        *to = (uint8_t) (int8_t) clamp(value, INT8_MIN, INT8_MAX);
    } else {
        convert_float(to, mm->out, (double) shift_down(scaled, by->shift));
    }
}
