/*
 * The inner loop of four rows times one tile of 8-bit weights with one scale per row, with every
 * packet written in assembly.  Each packet has two multiplications, so a step needs 32 packets, the
 * minimum.  add_quads in gemm.h has the same loop in C, for which the compiler makes 34 packets.
 *
 * The loop multiplies eight columns at a time.  It multiplies the columns in v5, v6 (weights) and
 * r15:8 (codes of four rows) while it loads the next eight columns to v7, v8 and r23:16.  Then the
 * two sets of registers swap roles.  The loop loads nothing beyond the last columns, because its
 * first four packets multiply weights of zero while they load the first columns.
 */
#ifndef NPURT_PANEL_LOOP_H
#define NPURT_PANEL_LOOP_H

#include "product.h"

/* clang-format off */
#define PACKET(a, b, ...) "{ " a "; " b __VA_ARGS__ " }\n"
#define X(high, low) "; r" #high ":" #low " = memd(%[x]++#8)"
#define LOAD(to) "; v" #to " = vmem(%[w]++#1)"
#define DOT(row, w, x) "%[sum" #row "].w += vrmpy(v" #w ".ub,r" #x ".b)"

/* Add all columns of the tile whose codes start at w. */
INLINE void per_channel_loop(const vec *w, const job *job, vec sum[])
{
    const uint64_t *x = job->x.codes;
    __asm__ volatile(
    "{ v5 = vxor(v5,v5); v6 = vxor(v6,v6); loop0(1f,%[twice]) }\n"
    "1:\n"
    PACKET(DOT(0, 5, 8), DOT(1, 5, 10), X(17, 16) LOAD(7))
    PACKET(DOT(2, 5, 12), DOT(3, 5, 14), X(19, 18) LOAD(8))
    PACKET(DOT(0, 6, 9), DOT(1, 6, 11), X(21, 20))
    PACKET(DOT(2, 6, 13), DOT(3, 6, 15), X(23, 22))
    PACKET(DOT(0, 7, 16), DOT(1, 7, 18), X(9, 8) LOAD(5))
    PACKET(DOT(2, 7, 20), DOT(3, 7, 22), X(11, 10) LOAD(6))
    PACKET(DOT(0, 8, 17), DOT(1, 8, 19), X(13, 12))
    "{ " DOT(2, 8, 21) "; " DOT(3, 8, 23) X(15, 14) " }:endloop0\n"
    PACKET(DOT(0, 5, 8), DOT(1, 5, 10))
    PACKET(DOT(2, 5, 12), DOT(3, 5, 14))
    PACKET(DOT(0, 6, 9), DOT(1, 6, 11))
    PACKET(DOT(2, 6, 13), DOT(3, 6, 15))
    : [sum0] "+v"(sum[0]), [sum1] "+v"(sum[1]), [sum2] "+v"(sum[2]), [sum3] "+v"(sum[3]),
      [w] "+r"(w), [x] "+r"(x)
    : [twice] "r"(job->steps * QUADS / 2)
    : "memory", "lc0", "sa0", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "r16", "r17",
      "r18", "r19", "r20", "r21", "r22", "r23", "v5", "v6", "v7", "v8");
}

#undef PACKET
#undef X
#undef LOAD
#undef DOT
/* clang-format on */

#endif
