/*
 * Sixteen-lane vectors that every instruction set lowers in the same order, so that float results
 * are equal bit for bit whatever the machine's width.  Fused multiply-add is always explicit.
 */
#ifndef NPURT_VEC_H
#define NPURT_VEC_H

#include <stdint.h>
#include <string.h>

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
    typedef float f32x8 __attribute__((ext_vector_type(8)));
    typedef float f32x4 __attribute__((ext_vector_type(4)));
    const f32x8 a = v.lo + v.hi;
    const f32x4 b = a.lo + a.hi;
    return (b.x + b.z) + (b.y + b.w);
}

INLINE float max16(f32x16 v)
{
    return __builtin_reduce_max(v);
}

/*
 * e^x to about 2 ulp for x <= 88; 0 below -87.3.
 * e^x = 2^n * e^r, |r| <= ln 2 / 2: Taylor polynomial of degree 7, ln 2 in two parts.
 */
INLINE f32x16 exp16(f32x16 x)
{
    const f32x16 n = __builtin_elementwise_rint(x * 1.44269504f);
    f32x16 r = fma16(n, (f32x16) (-0.693145752f), x);
    r = fma16(n, (f32x16) (-1.42860677e-6f), r);
    f32x16 p = fma16((f32x16) (1.0f / 5040), r, (f32x16) (1.0f / 720));
    p = fma16(p, r, (f32x16) (1.0f / 120));
    p = fma16(p, r, (f32x16) (1.0f / 24));
    p = fma16(p, r, (f32x16) (1.0f / 6));
    p = fma16(p, r, (f32x16) (0.5f));
    p = fma16(p, r, (f32x16) (1.0f));
    p = fma16(p, r, (f32x16) (1.0f));
    const i32x16 bits = (__builtin_convertvector(n, i32x16) + 127) << 23;
    f32x16 power;
    memcpy(&power, &bits, sizeof power);
    const i32x16 tiny = x < -87.3f;
    const f32x16 y = p * power;
    return tiny ? (f32x16) (0.0f) : y;
}

#endif
