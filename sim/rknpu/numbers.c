/*
 * The NPU's float types and double: widening is exact, narrowing rounds once, to nearest, ties to
 * even.
 */
#include "sim.h"

#include <math.h>
#include <string.h>

static double double_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

double half_to_double(uint16_t half)
{
    const uint32_t sign = (uint32_t) (half & 0x8000) << 16;
    const uint32_t rest = (uint32_t) (half & 0x7FFF) << 13; /* at float's place of the mantissa */
    if (rest >= 0x0F800000) {
        return double_of(sign | 0x70000000 | rest); /* infinity, NaN */
    }
    return double_of(sign | rest) *
           0x1p112; /* the difference of the biases; exact, subnormals too */
}

double bfloat_to_double(uint16_t bfloat)
{
    return double_of((uint32_t) bfloat << 16);
}

double tf32_to_double(uint32_t bits)
{
    return double_of(bits & 0xFFFFE000); /* cut, not rounded: npu-notes */
}

/* A 16-bit float with `mantissa` bits, whose smallest normal number is 2^lowest. */
static uint16_t narrow(double value, int mantissa, int lowest)
{
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    const double size = fabs(value);
    const uint16_t infinity = (uint16_t) (0x8000 - (1 << mantissa));
    int exponent;
    if (isnan(value)) {
        return (uint16_t) (sign | infinity | 1 << (mantissa - 1));
    }
    if (isinf(value) || value == 0) {
        return sign | (value == 0 ? 0 : infinity);
    }
    frexp(size, &exponent);
    exponent = exponent - 1 < lowest ? lowest : exponent - 1;
    const double steps = nearbyint(ldexp(size, mantissa - exponent)); /* units of the last place */
    const double code = steps + ldexp(exponent - lowest, mantissa);
    return sign | (uint16_t) (code < infinity ? code : infinity);
}

uint16_t double_to_half(double value)
{
    return narrow(value, 10, -14);
}

uint16_t double_to_bfloat(double value)
{
    return narrow(value, 7, -126);
}
