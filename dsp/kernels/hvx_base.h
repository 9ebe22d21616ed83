/*
 * Short names for the HVX instructions that the kernels use.
 *
 * All are integer instructions of v68, so the same source compiles for v68 to v81 without #if.
 * The packets differ: vmpy(h, Rt.h) uses both multipliers on v68 and one on later versions.  If an
 * instruction depends on the architecture, put the #if into this file.
 *
 * A packet holds at most four instructions.  Among them are at most
 *   2 loads or stores; 1 of them may access a vector, or one loads and the other stores a vector
 *   2 multiplications: vrmpy(ub, Rt.b), vsplat; or 1 of two vectors: vdmpy(h, h), vmpyo(w, h)
 *   1 shift: vasl, vasr, vlsr, vnormamt
 *   1 permutation: vror, valign, vlut32, vpack; vshuff and vdeal of pairs count as a shift too
 * Source: LLVM, HexagonDepIICHVX.td.
 */
#ifndef NPURT_HVX_BASE_H
#define NPURT_HVX_BASE_H

#include "kernels.h"
#include <hexagon_types.h>
#include <hvx_hexagon_protos.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("unroll")
#define PIPELINE _Pragma("clang loop unroll(disable)") /* the compiler pipelines such a loop */

/* For long loop bodies that run few times: spills would cost more than pipelining saves. */
#define SERIAL _Pragma("clang loop unroll(disable) pipeline(disable)")

/* 1 (v69 and newer): vdmpy(h, Rt.h) uses one multiplier and one instruction slot; 0: two of
 * each. */
#define NPURT_VDMPY_IS_SINGLE (__HVX_ARCH__ >= 69)

/* Hide the origin of x, so that the compiler does not compute x from another pointer. */
#define OPAQUE(x) __asm__("" : "+r"(x))

typedef HVX_Vector vec;
typedef HVX_VectorPair vec_pair;
typedef HVX_UVector unaligned_vec;

/* A vector in memory, for access to its lanes. */
typedef union {
    vec all;
    int32_t lane[NPURT_TILE];
} lanes;

INLINE vec splat(uint32_t word)
{
    return Q6_V_vsplat_R((int32_t) word);
}

INLINE vec splat_byte(uint8_t byte)
{
    return splat(byte * 0x01010101u);
}

INLINE uint32_t low_word(uint64_t both)
{
    return (uint32_t) both;
}

INLINE uint32_t high_word(uint64_t both)
{
    return (uint32_t) (both >> 32);
}

INLINE size_t padded(size_t nbytes)
{
    return (nbytes + NPURT_VECTOR - 1) & ~(size_t) (NPURT_VECTOR - 1);
}

#endif
