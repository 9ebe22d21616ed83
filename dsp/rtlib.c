/*
 * The functions to which clang generates calls when it compiles for the Hexagon.  An open Hexagon
 * compiler has no libc and no compiler runtime, and a skel must not depend on a library.
 *
 * Names and arguments: LLVM, lib/Target/Hexagon/HexagonISelLowering.cpp (libcalls) and
 * HexagonSelectionDAGInfo.cpp (memcpy).  The loops are simple, because no kernel calls a function
 * per element.  The symbols are weak, so that a test program can define its own functions.  They
 * are hidden, so that the functions of the protection domain do not replace them.
 */
#include <stddef.h>
#include <stdint.h>

#define RTLIB __attribute__((weak, visibility("hidden")))

/* Without this, the compiler would replace a copying loop by a call of the function itself. */
#define LOOP __attribute__((no_builtin))

RTLIB void *memcpy(void *restrict to, const void *restrict from, size_t n);
RTLIB void *memmove(void *to, const void *from, size_t n);
RTLIB void *memset(void *to, int value, size_t n);
RTLIB int memcmp(const void *a, const void *b, size_t n);
RTLIB void *__hexagon_memcpy_likely_aligned_min32bytes_mult8bytes(void *restrict to,
                                                                  const void *restrict from,
                                                                  size_t n);
RTLIB uint64_t __hexagon_udivdi3(uint64_t a, uint64_t b);
RTLIB uint64_t __hexagon_umoddi3(uint64_t a, uint64_t b);
RTLIB int64_t __hexagon_divdi3(int64_t a, int64_t b);
RTLIB int64_t __hexagon_moddi3(int64_t a, int64_t b);
RTLIB uint32_t __hexagon_udivsi3(uint32_t a, uint32_t b);
RTLIB uint32_t __hexagon_umodsi3(uint32_t a, uint32_t b);
RTLIB int32_t __hexagon_divsi3(int32_t a, int32_t b);
RTLIB int32_t __hexagon_modsi3(int32_t a, int32_t b);

/* Return whether a and b are equal modulo 4, so that both can be word-aligned together. */
static int alike(const void *a, const void *b)
{
    return (((uintptr_t) a ^ (uintptr_t) b) & 3) == 0;
}

/* A word of four bytes that may alias any other type. */
typedef uint32_t __attribute__((may_alias)) word;

LOOP void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
    uint8_t *out = to;
    const uint8_t *in = from;
    if (alike(to, from)) {
        for (; n && ((uintptr_t) out & 3); n--) {
            *out++ = *in++;
        }
        for (; n >= 4; n -= 4, out += 4, in += 4) {
            *(word *) out = *(const word *) in;
        }
    }
    while (n--) {
        *out++ = *in++;
    }
    return to;
}

void *__hexagon_memcpy_likely_aligned_min32bytes_mult8bytes(void *restrict to,
                                                            const void *restrict from, size_t n)
{
    return memcpy(to, from, n);
}

LOOP void *memmove(void *to, const void *from, size_t n)
{
    uint8_t *out = to;
    const uint8_t *in = from;
    if ((uintptr_t) out - (uintptr_t) in >= n) {
        for (size_t i = 0; i < n; i++) {
            out[i] = in[i];
        }
        return to;
    }
    while (n--) {
        out[n] = in[n];
    }
    return to;
}

LOOP void *memset(void *to, int value, size_t n)
{
    uint8_t *out = to;
    for (; n && ((uintptr_t) out & 3); n--) {
        *out++ = (uint8_t) value;
    }
    for (; n >= 4; n -= 4, out += 4) {
        *(word *) out = 0x01010101u * (uint8_t) value;
    }
    while (n--) {
        *out++ = (uint8_t) value;
    }
    return to;
}

int memcmp(const void *a, const void *b, size_t n)
{
    const uint8_t *x = a, *y = b;
    for (size_t i = 0; i < n; i++) {
        if (x[i] != y[i]) {
            return x[i] - y[i];
        }
    }
    return 0;
}

/* Divide with one bit of the quotient per step.  If the divisor is zero, all bits of the quotient
 * are ones. */
static uint32_t divide32(uint32_t a, uint32_t b, uint32_t *rest)
{
    uint32_t quotient = b ? 0 : ~0u;
    for (int bit = b && a >= b ? __builtin_clz(b) - __builtin_clz(a) : -1; bit >= 0; bit--) {
        quotient *= 2;
        if (a >= b << bit) {
            a -= b << bit;
            quotient++;
        }
    }
    *rest = a;
    return quotient;
}

static uint64_t divide(uint64_t a, uint64_t b, uint64_t *rest)
{
    if (a >> 32 == 0 && b >> 32 == 0 && b) {
        uint32_t left;
        uint32_t small = divide32((uint32_t) a, (uint32_t) b, &left);
        *rest = left;
        return small;
    }
    uint64_t quotient = b ? 0 : ~0ull;
    for (int bit = b && a >= b ? __builtin_clzll(b) - __builtin_clzll(a) : -1; bit >= 0; bit--) {
        quotient *= 2;
        if (a >= b << bit) {
            a -= b << bit;
            quotient++;
        }
    }
    *rest = a;
    return quotient;
}

uint64_t __hexagon_udivdi3(uint64_t a, uint64_t b)
{
    uint64_t rest;
    return divide(a, b, &rest);
}

uint64_t __hexagon_umoddi3(uint64_t a, uint64_t b)
{
    uint64_t rest;
    divide(a, b, &rest);
    return rest;
}

static uint64_t magnitude(int64_t a)
{
    return a < 0 ? -(uint64_t) a : (uint64_t) a;
}

int64_t __hexagon_divdi3(int64_t a, int64_t b)
{
    uint64_t quotient = __hexagon_udivdi3(magnitude(a), magnitude(b));
    return (int64_t) ((a < 0) != (b < 0) ? -quotient : quotient);
}

int64_t __hexagon_moddi3(int64_t a, int64_t b)
{
    uint64_t rest = __hexagon_umoddi3(magnitude(a), magnitude(b));
    return (int64_t) (a < 0 ? -rest : rest);
}

uint32_t __hexagon_udivsi3(uint32_t a, uint32_t b)
{
    uint32_t rest;
    return divide32(a, b, &rest);
}

uint32_t __hexagon_umodsi3(uint32_t a, uint32_t b)
{
    uint32_t rest;
    divide32(a, b, &rest);
    return rest;
}

int32_t __hexagon_divsi3(int32_t a, int32_t b)
{
    return (int32_t) __hexagon_divdi3(a, b);
}

int32_t __hexagon_modsi3(int32_t a, int32_t b)
{
    return (int32_t) __hexagon_moddi3(a, b);
}
