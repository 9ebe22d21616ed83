/*
 * Operations on vectors of sixteen lanes.  Their order is the same on every instruction set, so
 * float results are equal bit for bit for any vector width.  Fused multiply-add is always explicit.
 */
#ifndef NPURT_VEC_H
#define NPURT_VEC_H

#include <stdint.h>
#include <string.h>

typedef float f32x2 __attribute__((ext_vector_type(2)));
typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef float f32x8 __attribute__((ext_vector_type(8)));
typedef float f32x16 __attribute__((ext_vector_type(16)));
typedef int32_t i32x16 __attribute__((ext_vector_type(16)));
typedef uint32_t u32x16 __attribute__((ext_vector_type(16)));
typedef uint16_t u16x16 __attribute__((ext_vector_type(16)));
typedef int8_t i8x16 __attribute__((ext_vector_type(16)));
typedef uint8_t u8x16 __attribute__((ext_vector_type(16)));
typedef float f32x32 __attribute__((ext_vector_type(32)));
typedef int32_t i32x32 __attribute__((ext_vector_type(32)));
typedef int8_t i8x32 __attribute__((ext_vector_type(32)));
typedef uint8_t u8x32 __attribute__((ext_vector_type(32)));
typedef _Float16 f16x16 __attribute__((ext_vector_type(16)));

#define INLINE static inline __attribute__((always_inline))
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define AT_LEVEL(name) PASTE(name##__, NPURT_LEVEL)

INLINE f32x16 load_f32(const float *p)
{
    f32x16 v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store_f32(float *p, f32x16 v)
{
    memcpy(p, &v, sizeof v);
}

INLINE f32x16 load_f16(const void *p)
{
    f16x16 v;
    memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, f32x16);
}

INLINE void store_f16(void *p, f32x16 v)
{
    const f16x16 h = __builtin_convertvector(v, f16x16);
    memcpy(p, &h, sizeof h);
}

INLINE f32x16 load_i8(const void *p)
{
    i8x16 v;
    memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, f32x16);
}

INLINE f32x16 fma16(f32x16 a, f32x16 b, f32x16 c)
{
    return __builtin_elementwise_fma(a, b, c);
}

/* Adds the lanes in a fixed tree: 8 + 8, 4 + 4, 2 + 2, 1 + 1. */
INLINE float sum16(f32x16 v)
{
    const f32x8 a = v.lo + v.hi;
    const f32x4 b = a.lo + a.hi;
    return (b.x + b.z) + (b.y + b.w);
}

/* Returns the sums of four vectors, each added up in the order of sum16. */
INLINE f32x4 sum16_of_4(f32x16 a, f32x16 b, f32x16 c, f32x16 d)
{
    const f32x8 a8 = a.lo + a.hi, b8 = b.lo + b.hi, c8 = c.lo + c.hi, d8 = d.lo + d.hi;
    const f32x4 a4 = a8.lo + a8.hi, b4 = b8.lo + b8.hi, c4 = c8.lo + c8.hi, d4 = d8.lo + d8.hi;
    const f32x4 ab =
        __builtin_shufflevector(a4, b4, 0, 1, 4, 5) + __builtin_shufflevector(a4, b4, 2, 3, 6, 7);
    const f32x4 cd =
        __builtin_shufflevector(c4, d4, 0, 1, 4, 5) + __builtin_shufflevector(c4, d4, 2, 3, 6, 7);
    return __builtin_shufflevector(ab, cd, 0, 2, 4, 6) +
           __builtin_shufflevector(ab, cd, 1, 3, 5, 7);
}

/* The larger of two values, lane by lane; b if one of them is NaN. */
#define larger(a, b) ((a) > (b) ? (a) : (b))

/* Returns the largest lane, or an unspecified lane if one is NaN. */
INLINE float max16(f32x16 v)
{
    const f32x8 a = larger(v.lo, v.hi);
    const f32x4 b = larger(a.lo, a.hi);
    const f32x2 c = larger(b.lo, b.hi);
    return larger(c.x, c.y);
}

/* (e^r - 1) / r for |r| <= ln 2 / 2, by its Taylor polynomial of degree 6. */
INLINE f32x16 expm1_by_r16(f32x16 r)
{
    f32x16 p = fma16((f32x16) (1.0f / 5040), r, (f32x16) (1.0f / 720));
    p = fma16(p, r, (f32x16) (1.0f / 120));
    p = fma16(p, r, (f32x16) (1.0f / 24));
    p = fma16(p, r, (f32x16) (1.0f / 6));
    p = fma16(p, r, (f32x16) (0.5f));
    return fma16(p, r, (f32x16) (1.0f));
}

/*
 * e^x to about 2 ulp for x <= 88; 0 below -87.3.
 * e^x = 2^n * e^r, |r| <= ln 2 / 2; ln 2 is split into two parts for accuracy.
 */
INLINE f32x16 exp16(f32x16 x)
{
    const f32x16 n = __builtin_elementwise_rint(x * 1.44269504f);
    f32x16 r = fma16(n, (f32x16) (-0.693145752f), x);
    r = fma16(n, (f32x16) (-1.42860677e-6f), r);
    const f32x16 p = fma16(expm1_by_r16(r), r, (f32x16) (1.0f));
    const i32x16 bits = (__builtin_convertvector(n, i32x16) + 127) << 23;
    f32x16 power;
    memcpy(&power, &bits, sizeof power);
    const i32x16 tiny = x < -87.3f;
    const f32x16 y = p * power;
    return tiny ? (f32x16) (0.0f) : y;
}

/* 1 / (1 + e^-x).  With t = e^-|x|, this is 1 / (1 + t) or t / (1 + t), never inf / inf. */
INLINE f32x16 sigmoid16(f32x16 x)
{
    const f32x16 t = exp16(-__builtin_elementwise_abs(x));
    const f32x16 top = x < 0.0f ? t : (f32x16) (1.0f);
    return top / (1.0f + t);
}

/* x / (1 + e^-x), computed with t = e^-|x| like sigmoid16. */
INLINE f32x16 silu16(f32x16 x)
{
    const f32x16 t = exp16(-__builtin_elementwise_abs(x));
    const f32x16 top = x < 0.0f ? x * t : x;
    return top / (1.0f + t);
}

/*
 * 0.5 x (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3).  This equals x / (1 + e^-2u), which is
 * computed like silu16.
 */
INLINE f32x16 gelu16(f32x16 x)
{
    const f32x16 cubed = x * x * x;
    const f32x16 twice = 1.59576912f * fma16((f32x16) (0.044715f), cubed, x);
    const f32x16 t = exp16(-__builtin_elementwise_abs(twice));
    const f32x16 top = x < 0.0f ? x * t : x;
    return top / (1.0f + t);
}

/*
 * x (1 + erf(z)) / 2, z = x / sqrt(2).  With half = erfc(|z|) / 2, this is x half for x < 0, else
 * x (1 - half).
 * erfc(z) = p(t) e^(-z^2), t = 1 / (1 + 0.3275911 z): within 1.5e-7 by Abramowitz & Stegun 7.1.26.
 */
INLINE f32x16 gelu_erf16(f32x16 x)
{
    const f32x16 z = 0.707106781f * __builtin_elementwise_abs(x);
    const f32x16 t = 1.0f / fma16((f32x16) (0.3275911f), z, (f32x16) (1.0f));
    f32x16 p = fma16((f32x16) (1.061405429f), t, (f32x16) (-1.453152027f));
    p = fma16(p, t, (f32x16) (1.421413741f));
    p = fma16(p, t, (f32x16) (-0.284496736f));
    p = fma16(p, t, (f32x16) (0.254829592f));
    const f32x16 half = 0.5f * p * t * exp16(-z * z);
    return x * (x < 0.0f ? half : 1.0f - half);
}

/*
 * tanh(|x|) = -e / (2 + e), e = exp(-2|x|) - 1; the result gets the sign of x.  Near 0, the
 * subtraction would lose precision, so e is computed by its Taylor polynomial of degree 7.
 */
INLINE f32x16 tanh16(f32x16 x)
{
    const f32x16 r = -2.0f * __builtin_elementwise_abs(x);
    const i32x16 near = r > -0.34657359f;
    const f32x16 e = near ? expm1_by_r16(r) * r : exp16(r) - 1.0f;
    return __builtin_elementwise_copysign(-e / (2.0f + e), x);
}

/*
 * ln(1 + e^x) = max(x, 0) + ln(1 + t), t = e^-|x|.
 * ln(1 + t) = 2 artanh(s), s = t / (2 + t) <= 1/3, by its series up to s^15; relative error 2e-9.
 */
INLINE f32x16 softplus16(f32x16 x)
{
    const f32x16 t = exp16(-__builtin_elementwise_abs(x));
    const f32x16 s = t / (2.0f + t), s2 = s * s;
    f32x16 p = fma16((f32x16) (1.0f / 15), s2, (f32x16) (1.0f / 13));
    p = fma16(p, s2, (f32x16) (1.0f / 11));
    p = fma16(p, s2, (f32x16) (1.0f / 9));
    p = fma16(p, s2, (f32x16) (1.0f / 7));
    p = fma16(p, s2, (f32x16) (1.0f / 5));
    p = fma16(p, s2, (f32x16) (1.0f / 3));
    p = fma16(p, s2, (f32x16) (1.0f));
    const f32x16 twice = s + s;
    return fma16(p, twice, __builtin_elementwise_max(x, (f32x16) (0.0f)));
}

#endif
