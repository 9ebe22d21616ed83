/* Converts doubles to the NPU's 16-bit floats, rounded once, to nearest, ties to even. */
#include "npu.h"

#include <math.h>

/* Converts to a 16-bit float with `mantissa` bits and the smallest normal number 2^lowest. */
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
