/*
 * The inner loops of one row times four tiles, for the weights of most models, with every packet
 * written in assembly.  gemv_tiles in gemv.h has the same loops in C; they run when fewer than four
 * tiles remain.  From that C, the compiler makes 52 to 62 packets for q4 and q4_offset, and 69 to
 * 76 for q8 and q8_offset.  A step is 64 columns of four tiles.  The assembly loops have the fewest
 * packets that the instructions of a step allow:
 *
 *              instructions  packets   least number of packets
 *   q4         194           49        48.5: 4 instructions per packet
 *   q4_offset  202           52        51.3: multiplications of two vectors leave room for 2 others
 *   q8         172           68        68: one vector load per packet
 *   q8_offset  180           72        72: one vector load per packet
 *
 * A constraint solver found the order from the instructions, their dependencies and the limits of a
 * packet (hvx_base.h, for v68).  A step loads nothing for the next step.  The first packets of a
 * step finish the fourth tile of the previous step, and the packets after the loop finish the
 * fourth tile of the last step.  So the first step also finishes a tile that does not exist.  The
 * scales and offsets of this tile start at zero, so it adds zero for any content of the other
 * registers.
 *
 * tests/hexagon/row_loops.py defines the result of a loop and runs its packets on symbols.  If you
 * change a packet, run tests/hexagon/test_row_loops.py, which names wrong accumulators.
 *
 * Registers:
 *   r23:8       the 64 codes of x
 *   r24         the number of steps before the loop, then the scale of x
 *   r25         the sums of x
 *   r6          the shift of `vasr`, which accepts only r0 to r7
 *   r7          a zero point
 *   v5 and up   intermediate results
 * The compiler chooses the registers of named operands.
 */
#ifndef NPURT_ROW_LOOPS_H
#define NPURT_ROW_LOOPS_H

#include "product.h"

/* clang-format off */
#define PACKET1(a) "{ " a " }\n"
#define PACKET2(a, b) "{ " a "; " b " }\n"
#define PACKET3(a, b, c) "{ " a "; " b "; " c " }\n"
#define PACKET4(a, b, c, d) "{ " a "; " b "; " c "; " d " }\n"
#define LAST2(a, b) "{ " a "; " b " }:endloop0\n"
#define LAST3(a, b, c) "{ " a "; " b "; " c " }:endloop0\n"
#define LAST4(a, b, c, d) "{ " a "; " b "; " c "; " d " }:endloop0\n"

#define LOOP "loop0(1f,%[steps])"
#define CLEAR(to) "v" #to " = vxor(v" #to ",v" #to ")"
#define START(tile) "%[acc" #tile "] = vxor(%[acc" #tile "],%[acc" #tile "])"
#define X(high, low) "r" #high ":" #low " = memd(%[x]++#8)"
#define RECORD "r24 = memw(%[record]++#16)"
#define RECORD_SUMS "r25:24 = memd(%[record]++#16)"
#define ZERO(to) "v" #to " = vmem(%[zero]++#1)"
#define ZERO_WORD "r7 = memw(%[zero]+#0)"
#define ZERO_NEXT "%[zero] = add(%[zero],#128)"
#define SPLAT(to) "v" #to " = vsplat(r7)"
#define LOAD(to, tile) "v" #to " = vmem(%[w" #tile "]++#1)"
#define LOW(to, of) "v" #to " = vand(v" #of ",%[mask])"
#define HIGH(to, of) "v" #to ".ub = vlsr(v" #of ".ub,%[four])"
#define START_A(to) "v" #to " = %[start_a]"
#define START_B(to) "v" #to " = %[start_b]"
#define FIRST(to, w, x) "v" #to ".w = vrmpy(v" #w ".ub,r" #x ".b)"
#define DOT(to, w, x) "v" #to ".w += vrmpy(v" #w ".ub,r" #x ".b)"
#define SHUFFLE(to, b, a) "v" #to ".h = vshuffe(v" #b ".h,v" #a ".h)"
#define NARROW_BY(bits) "r6 = #" #bits
#define NARROW(to, b, a) "v" #to ".h = vasr(v" #b ".w,v" #a ".w,r6)"
#define CENTRE(to, of, zero) "v" #to ".h = vadd(v" #of ".h,v" #zero ".h)"
#define SCALE(to, of) "v" #to ".h = vmpy(v" #of ".h,r24.h):<<1:rnd:sat"
#define PRODUCT(to, h, scale) "v" #to ".w = vdmpy(v" #h ".h,v" #scale ".h):sat"
#define OFFSET(to, of) "v" #to ".w += vdmpy(v" #of ".h,r25.h):sat"
#define SUM(tile, of) "%[acc" #tile "].w += vasr(v" #of ".w,%[shift])"

#define OPERANDS                                                                                   \
    [acc0] "=&v"(acc[0]), [acc1] "=&v"(acc[1]), [acc2] "=&v"(acc[2]), [acc3] "=&v"(acc[3]),        \
        [w0] "+r"(w[0]), [w1] "+r"(w[1]), [w2] "+r"(w[2]), [w3] "+r"(w[3]), [x] "+r"(x),           \
        [record] "+r"(record), [zero] "+r"(zero), [steps] "+r"(steps)
#define SCALARS [shift] "r"(job->shift)
#define CHANGED                                                                                    \
    "memory", "lc0", "sa0", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "r16", "r17",    \
        "r18", "r19", "r20", "r21", "r22", "r23", "r25"

/* Q4_0 */
INLINE void q4_loop(const vec *w[], const job *job, const constants *c, vec acc[])
{
    const uint64_t *x = job->x.codes;
    const uint32_t *record = job->x.record;
    const vec *zero = job->x.zero;
    register uint32_t steps __asm__("r24") = job->steps;
    __asm__ volatile(
    PACKET4(START(0), START(1), START(2), START(3))
    PACKET4(CLEAR(6), CLEAR(12), CLEAR(17), LOOP)
    "1:\n"
    PACKET4(LOW(7, 16), HIGH(8, 16), DOT(9, 7, 13), DOT(14, 8, 19))
    PACKET4(LOAD(5, 0), X(9, 8), LOW(6, 15), PRODUCT(16, 5, 6))
    PACKET4(LOAD(6, 0), HIGH(15, 15), DOT(9, 6, 14), DOT(14, 7, 20))
    PACKET4(X(11, 10), LOW(7, 5), SUM(1, 16), SCALE(16, 17))
    PACKET4(X(13, 12), HIGH(5, 5), FIRST(7, 7, 8), DOT(14, 8, 21))
    PACKET4(LOAD(8, 0), LOW(5, 6), DOT(7, 5, 9), DOT(9, 15, 15))
    PACKET4(CENTRE(10, 10, 11), LOW(6, 13), HIGH(5, 6), DOT(7, 5, 10))
    PACKET4(LOW(5, 8), HIGH(6, 13), DOT(7, 5, 11), DOT(14, 6, 22))
    PACKET4(LOAD(5, 0), X(15, 14), DOT(7, 5, 12), DOT(14, 6, 23))
    PACKET4(X(17, 16), RECORD, HIGH(8, 8), SCALE(12, 12))
    PACKET4(LOAD(6, 0), LOW(8, 5), SHUFFLE(9, 14, 9), DOT(7, 8, 13))
    PACKET4(LOAD(9, 0), X(19, 18), CENTRE(12, 9, 11), PRODUCT(11, 10, 12))
    PACKET4(LOAD(10, 1), LOW(8, 6), HIGH(5, 5), DOT(7, 8, 14))
    PACKET4(LOAD(8, 0), SUM(2, 11), DOT(7, 5, 15), FIRST(5, 8, 16))
    PACKET4(ZERO(11), X(21, 20), HIGH(6, 6), PRODUCT(16, 12, 16))
    PACKET4(LOAD(12, 0), LOW(6, 9), HIGH(9, 9), DOT(5, 6, 17))
    PACKET4(LOAD(13, 1), LOW(6, 10), SUM(3, 16), DOT(5, 6, 18))
    PACKET4(LOAD(14, 0), LOW(8, 8), HIGH(9, 8), DOT(5, 9, 19))
    PACKET4(LOAD(10, 1), HIGH(6, 10), DOT(5, 8, 20), FIRST(8, 6, 8))
    PACKET4(LOAD(16, 1), X(23, 22), HIGH(14, 12), SCALE(15, 14))
    PACKET4(LOAD(9, 1), LOW(6, 12), DOT(5, 9, 21), DOT(8, 6, 9))
    PACKET4(LOAD(12, 1), LOW(6, 13), HIGH(13, 13), DOT(5, 6, 22))
    PACKET4(LOW(6, 9), HIGH(9, 9), DOT(5, 14, 23), DOT(8, 6, 10))
    PACKET4(LOW(6, 10), HIGH(10, 10), DOT(8, 13, 11), FIRST(13, 6, 16))
    PACKET4(LOAD(9, 1), LOW(6, 12), DOT(8, 6, 12), DOT(13, 9, 17))
    PACKET4(LOAD(7, 2), SHUFFLE(5, 5, 7), HIGH(6, 12), DOT(13, 6, 18))
    PACKET4(LOAD(10, 2), LOW(6, 9), DOT(8, 10, 13), DOT(13, 6, 19))
    PACKET4(LOAD(12, 2), LOW(9, 7), HIGH(6, 9), DOT(13, 6, 20))
    PACKET4(LOAD(17, 2), LOW(7, 16), HIGH(9, 7), FIRST(14, 9, 8))
    PACKET4(LOAD(7, 2), HIGH(6, 16), DOT(8, 7, 14), DOT(13, 6, 21))
    PACKET4(LOAD(6, 1), HIGH(9, 10), DOT(8, 6, 15), DOT(14, 9, 9))
    PACKET4(LOAD(18, 2), LOW(7, 10), LOW(10, 7), HIGH(16, 7))
    PACKET4(LOW(6, 6), HIGH(7, 6), DOT(14, 7, 10), FIRST(10, 10, 16))
    PACKET4(LOAD(16, 2), LOW(9, 18), DOT(14, 9, 11), DOT(10, 16, 17))
    PACKET4(LOAD(6, 1), HIGH(9, 18), DOT(13, 6, 22), DOT(10, 9, 18))
    PACKET4(LOW(7, 16), HIGH(9, 16), DOT(13, 7, 23), DOT(10, 9, 19))
    PACKET4(CENTRE(5, 5, 11), LOW(7, 12), HIGH(12, 12), DOT(10, 7, 20))
    PACKET4(LOAD(8, 2), SHUFFLE(7, 13, 8), DOT(14, 7, 12), DOT(10, 9, 21))
    PACKET4(LOAD(9, 3), LOW(12, 17), HIGH(17, 17), DOT(14, 12, 13))
    PACKET4(LOAD(13, 3), LOW(8, 8), HIGH(12, 8), DOT(14, 12, 14))
    PACKET4(LOAD(17, 3), HIGH(8, 9), DOT(14, 17, 15), DOT(10, 8, 22))
    PACKET3(LOAD(15, 3), LOW(9, 9), PRODUCT(5, 5, 15))
    PACKET4(LOAD(16, 3), HIGH(12, 13), DOT(10, 12, 23), FIRST(9, 9, 8))
    PACKET4(LOAD(8, 3), LOW(5, 13), SUM(0, 5), DOT(9, 8, 9))
    PACKET3(SHUFFLE(10, 10, 14), LOW(14, 16), SCALE(6, 6))
    PACKET4(LOAD(16, 3), HIGH(5, 16), DOT(9, 5, 10), FIRST(14, 14, 16))
    PACKET4(LOAD(12, 2), LOW(5, 17), DOT(9, 12, 11), DOT(14, 5, 17))
    PACKET4(LOAD(13, 3), LOW(5, 8), HIGH(8, 8), DOT(9, 5, 12))
    LAST4(LOAD(17, 3), CENTRE(5, 7, 11), HIGH(7, 17), DOT(14, 5, 18))
    /* the rest of the last step */
    PACKET4(LOW(7, 16), HIGH(8, 16), DOT(9, 7, 13), DOT(14, 8, 19))
    PACKET3(LOW(6, 15), HIGH(15, 15), PRODUCT(16, 5, 6))
    PACKET4(CENTRE(10, 10, 11), SUM(1, 16), DOT(9, 6, 14), DOT(14, 7, 20))
    PACKET2(LOW(6, 13), SCALE(16, 17))
    PACKET2(DOT(14, 8, 21), DOT(9, 15, 15))
    PACKET2(HIGH(6, 13), DOT(14, 6, 22))
    PACKET1(DOT(14, 6, 23))
    PACKET2(SHUFFLE(9, 14, 9), SCALE(12, 12))
    PACKET2(CENTRE(12, 9, 11), PRODUCT(11, 10, 12))
    PACKET2(SUM(2, 11), PRODUCT(16, 12, 16))
    PACKET1(SUM(3, 16))
    : OPERANDS
    : SCALARS, [four] "r"(4), [mask] "v"(c->mask)
    : CHANGED, "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16",
      "v17", "v18");
}

/* Q4_1, Q4_K */
INLINE void q4_offset_loop(const vec *w[], const job *job, const constants *c, vec acc[])
{
    const uint64_t *x = job->x.codes;
    const uint32_t *record = job->x.record;
    const vec *zero = job->x.zero;
    register uint32_t steps __asm__("r24") = job->steps;
    __asm__ volatile(
    PACKET4(START(0), START(1), START(2), START(3))
    PACKET4(CLEAR(7), CLEAR(8), CLEAR(12), CLEAR(13))
    PACKET3(CLEAR(16), CLEAR(18), LOOP)
    "1:\n"
    PACKET4(X(9, 8), CENTRE(5, 5, 11), DOT(15, 10, 15), DOT(17, 6, 19))
    PACKET3(LOAD(5, 0), X(11, 10), PRODUCT(8, 5, 8))
    PACKET4(X(13, 12), LOW(13, 14), HIGH(14, 14), OFFSET(8, 13))
    PACKET4(X(15, 14), LOW(5, 5), HIGH(6, 5), PRODUCT(9, 9, 7))
    PACKET4(LOAD(7, 0), X(17, 16), SUM(2, 8), OFFSET(9, 18))
    PACKET4(LOAD(8, 0), LOW(13, 19), FIRST(5, 5, 8), DOT(17, 13, 20))
    PACKET4(LOW(6, 7), SUM(1, 9), DOT(5, 6, 9), DOT(17, 14, 21))
    PACKET4(LOAD(7, 0), HIGH(6, 7), DOT(5, 6, 10), DOT(17, 13, 22))
    PACKET4(LOAD(9, 0), LOW(6, 8), HIGH(19, 19), DOT(5, 6, 11))
    PACKET4(LOAD(8, 0), HIGH(6, 8), DOT(5, 6, 12), DOT(17, 19, 23))
    PACKET4(X(19, 18), LOW(9, 9), HIGH(10, 9), SCALE(12, 12))
    PACKET4(LOW(9, 8), SHUFFLE(15, 17, 15), DOT(5, 6, 13), FIRST(6, 9, 16))
    PACKET4(ZERO(11), LOW(10, 7), CENTRE(15, 15, 11), DOT(6, 10, 17))
    PACKET4(LOAD(9, 0), HIGH(7, 7), DOT(5, 10, 14), DOT(6, 9, 18))
    PACKET4(LOAD(10, 1), X(21, 20), HIGH(8, 8), PRODUCT(15, 15, 12))
    PACKET4(LOAD(13, 1), X(23, 22), LOW(12, 9), OFFSET(15, 16))
    PACKET4(LOAD(8, 1), HIGH(7, 9), DOT(5, 7, 15), DOT(6, 8, 19))
    PACKET4(LOAD(9, 1), LOW(12, 10), SUM(3, 15), DOT(6, 12, 20))
    PACKET4(LOAD(12, 1), HIGH(7, 10), DOT(6, 7, 21), FIRST(10, 12, 8))
    PACKET4(LOAD(7, 0), LOW(13, 13), HIGH(14, 13), DOT(10, 7, 9))
    PACKET4(LOAD(15, 1), LOW(12, 12), HIGH(13, 12), DOT(10, 13, 10))
    PACKET4(LOAD(17, 1), LOW(7, 7), HIGH(12, 7), FIRST(16, 12, 16))
    PACKET4(LOAD(7, 0), LOW(13, 15), DOT(6, 7, 22), DOT(16, 13, 17))
    PACKET4(LOAD(12, 0), HIGH(13, 15), DOT(6, 12, 23), DOT(16, 13, 18))
    PACKET4(RECORD_SUMS, LOW(13, 17), DOT(10, 14, 11), DOT(16, 13, 19))
    PACKET4(SHUFFLE(5, 6, 5), LOW(6, 8), HIGH(13, 17), DOT(16, 13, 20))
    PACKET4(LOAD(8, 2), HIGH(6, 8), DOT(10, 6, 12), DOT(16, 13, 21))
    PACKET4(CENTRE(5, 5, 11), LOW(6, 9), HIGH(9, 9), DOT(10, 6, 13))
    PACKET3(LOAD(17, 2), LOW(13, 8), SCALE(7, 7))
    PACKET4(LOAD(6, 1), HIGH(8, 8), DOT(10, 6, 14), FIRST(13, 13, 8))
    PACKET4(LOAD(9, 2), LOW(8, 17), DOT(10, 9, 15), DOT(13, 8, 9))
    PACKET4(LOAD(14, 2), LOW(8, 6), HIGH(17, 17), DOT(13, 8, 10))
    PACKET4(LOAD(8, 2), HIGH(6, 6), DOT(16, 8, 22), DOT(13, 17, 11))
    PACKET3(LOAD(7, 1), LOW(17, 9), PRODUCT(5, 5, 7))
    PACKET3(LOAD(15, 2), LOW(12, 8), OFFSET(5, 12))
    PACKET4(LOAD(12, 2), HIGH(6, 8), DOT(16, 6, 23), FIRST(8, 12, 16))
    PACKET4(LOAD(18, 1), LOW(5, 15), SUM(0, 5), DOT(8, 6, 17))
    PACKET4(SHUFFLE(5, 16, 10), HIGH(10, 15), DOT(13, 17, 12), DOT(8, 5, 18))
    PACKET4(LOAD(15, 2), LOW(10, 12), HIGH(9, 9), DOT(8, 10, 19))
    PACKET4(LOAD(10, 3), HIGH(9, 12), DOT(13, 9, 13), DOT(8, 10, 20))
    PACKET4(LOW(9, 14), LOW(15, 15), HIGH(12, 15), DOT(8, 9, 21))
    PACKET4(LOAD(14, 3), HIGH(9, 14), DOT(13, 9, 14), DOT(8, 15, 22))
    PACKET4(LOAD(12, 3), LOW(9, 10), DOT(13, 9, 15), DOT(8, 12, 23))
    PACKET4(LOAD(10, 3), CENTRE(9, 5, 11), HIGH(5, 10), FIRST(15, 9, 8))
    PACKET4(LOAD(13, 3), SHUFFLE(5, 8, 13), LOW(8, 14), DOT(15, 5, 9))
    PACKET4(LOAD(16, 3), LOW(14, 12), HIGH(8, 14), DOT(15, 8, 10))
    PACKET4(LOAD(8, 2), LOW(17, 13), HIGH(12, 12), DOT(15, 8, 11))
    PACKET4(LOAD(13, 2), HIGH(14, 13), DOT(15, 14, 12), FIRST(17, 17, 16))
    PACKET4(LOAD(14, 3), LOW(12, 16), DOT(15, 12, 13), DOT(17, 14, 17))
    PACKET3(LOAD(19, 3), LOW(6, 10), SCALE(8, 8))
    PACKET4(LOAD(12, 3), HIGH(6, 16), DOT(15, 6, 14), DOT(17, 12, 18))
    LAST3(LOAD(16, 3), HIGH(10, 10), SCALE(7, 7))
    /* the rest of the last step */
    PACKET3(CENTRE(5, 5, 11), DOT(15, 10, 15), DOT(17, 6, 19))
    PACKET1(PRODUCT(8, 5, 8))
    PACKET3(LOW(13, 14), HIGH(14, 14), OFFSET(8, 13))
    PACKET2(SUM(2, 8), PRODUCT(9, 9, 7))
    PACKET1(OFFSET(9, 18))
    PACKET3(LOW(13, 19), SUM(1, 9), DOT(17, 13, 20))
    PACKET2(HIGH(19, 19), DOT(17, 14, 21))
    PACKET1(DOT(17, 13, 22))
    PACKET1(DOT(17, 19, 23))
    PACKET2(SHUFFLE(15, 17, 15), SCALE(12, 12))
    PACKET1(CENTRE(15, 15, 11))
    PACKET1(PRODUCT(15, 15, 12))
    PACKET1(OFFSET(15, 16))
    PACKET1(SUM(3, 15))
    : OPERANDS
    : SCALARS, [four] "r"(4), [mask] "v"(c->mask)
    : CHANGED, "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16",
      "v17", "v18", "v19");
}

/* Q8_0, Q5_0 */
INLINE void q8_loop(const vec *w[], const job *job, const constants *c, vec acc[])
{
    const uint64_t *x = job->x.codes;
    const uint32_t *record = job->x.record;
    const vec *zero = job->x.zero;
    register uint32_t steps __asm__("r24") = job->steps;
    __asm__ volatile(
    PACKET4(START(0), START(1), START(2), START(3))
    PACKET3(CLEAR(7), NARROW_BY(4), LOOP)
    "1:\n"
    PACKET3(LOAD(6, 0), X(9, 8), DOT(9, 6, 23))
    PACKET4(LOAD(8, 0), X(11, 10), START_A(7), SCALE(12, 7))
    PACKET4(LOAD(6, 0), X(13, 12), NARROW(9, 9, 11), DOT(7, 6, 8))
    PACKET3(LOAD(8, 0), CENTRE(9, 9, 10), DOT(7, 8, 9))
    PACKET3(LOAD(9, 0), X(15, 14), PRODUCT(12, 9, 12))
    PACKET2(LOAD(6, 0), DOT(7, 6, 10))
    PACKET3(LOAD(8, 0), SUM(3, 12), DOT(7, 8, 11))
    PACKET3(LOAD(9, 0), X(17, 16), DOT(7, 9, 12))
    PACKET2(LOAD(6, 0), DOT(7, 6, 13))
    PACKET4(LOAD(10, 0), ZERO_WORD, START_B(8), DOT(7, 8, 14))
    PACKET4(LOAD(6, 0), X(19, 18), DOT(7, 9, 15), DOT(8, 6, 16))
    PACKET3(LOAD(10, 0), RECORD, DOT(8, 10, 17))
    PACKET3(LOAD(6, 0), X(21, 20), DOT(8, 6, 18))
    PACKET2(LOAD(10, 0), DOT(8, 10, 19))
    PACKET3(LOAD(6, 0), X(23, 22), DOT(8, 6, 20))
    PACKET3(LOAD(10, 0), ZERO_NEXT, DOT(8, 10, 21))
    PACKET2(LOAD(6, 1), DOT(8, 6, 22))
    PACKET4(LOAD(11, 1), START_A(9), SPLAT(10), DOT(8, 10, 23))
    PACKET2(LOAD(6, 1), DOT(9, 6, 8))
    PACKET3(LOAD(8, 1), NARROW(7, 8, 7), DOT(9, 11, 9))
    PACKET2(LOAD(6, 1), DOT(9, 6, 10))
    PACKET3(LOAD(8, 1), CENTRE(7, 7, 10), DOT(9, 8, 11))
    PACKET2(LOAD(6, 0), DOT(9, 6, 12))
    PACKET2(LOAD(8, 1), DOT(9, 8, 13))
    PACKET2(LOAD(11, 1), SCALE(6, 6))
    PACKET2(LOAD(8, 1), DOT(9, 8, 14))
    PACKET3(LOAD(12, 1), START_B(7), PRODUCT(6, 7, 6))
    PACKET3(LOAD(8, 1), DOT(9, 11, 15), DOT(7, 8, 16))
    PACKET3(LOAD(6, 1), SUM(0, 6), DOT(7, 12, 17))
    PACKET2(LOAD(8, 1), DOT(7, 8, 18))
    PACKET2(LOAD(6, 1), DOT(7, 6, 19))
    PACKET2(LOAD(8, 1), DOT(7, 8, 20))
    PACKET2(LOAD(6, 1), DOT(7, 6, 21))
    PACKET2(LOAD(8, 2), DOT(7, 8, 22))
    PACKET3(LOAD(12, 2), START_A(6), DOT(7, 6, 23))
    PACKET2(LOAD(8, 2), DOT(6, 8, 8))
    PACKET3(LOAD(9, 2), NARROW(7, 7, 9), DOT(6, 12, 9))
    PACKET2(LOAD(8, 2), DOT(6, 8, 10))
    PACKET2(LOAD(9, 2), DOT(6, 9, 11))
    PACKET2(LOAD(8, 1), DOT(6, 8, 12))
    PACKET2(LOAD(9, 2), DOT(6, 9, 13))
    PACKET2(LOAD(12, 2), SCALE(8, 8))
    PACKET3(LOAD(9, 2), CENTRE(7, 7, 10), DOT(6, 9, 14))
    PACKET3(LOAD(11, 2), START_B(8), PRODUCT(7, 7, 8))
    PACKET3(LOAD(9, 2), DOT(6, 12, 15), DOT(8, 9, 16))
    PACKET3(LOAD(7, 2), SUM(1, 7), DOT(8, 11, 17))
    PACKET2(LOAD(9, 2), DOT(8, 9, 18))
    PACKET2(LOAD(7, 2), DOT(8, 7, 19))
    PACKET2(LOAD(9, 2), DOT(8, 9, 20))
    PACKET2(LOAD(7, 2), DOT(8, 7, 21))
    PACKET2(LOAD(9, 3), DOT(8, 9, 22))
    PACKET3(LOAD(7, 3), START_A(11), DOT(8, 7, 23))
    PACKET2(LOAD(9, 3), DOT(11, 9, 8))
    PACKET3(LOAD(7, 3), NARROW(6, 8, 6), DOT(11, 7, 9))
    PACKET2(LOAD(9, 3), DOT(11, 9, 10))
    PACKET2(LOAD(7, 3), DOT(11, 7, 11))
    PACKET2(LOAD(9, 2), DOT(11, 9, 12))
    PACKET2(LOAD(7, 3), DOT(11, 7, 13))
    PACKET2(LOAD(8, 3), SCALE(9, 9))
    PACKET3(LOAD(7, 3), CENTRE(6, 6, 10), DOT(11, 7, 14))
    PACKET3(LOAD(12, 3), START_B(9), PRODUCT(6, 6, 9))
    PACKET3(LOAD(7, 3), DOT(11, 8, 15), DOT(9, 7, 16))
    PACKET3(LOAD(6, 3), SUM(2, 6), DOT(9, 12, 17))
    PACKET2(LOAD(7, 3), DOT(9, 7, 18))
    PACKET2(LOAD(6, 3), DOT(9, 6, 19))
    PACKET2(LOAD(7, 3), DOT(9, 7, 20))
    PACKET2(LOAD(6, 3), DOT(9, 6, 21))
    LAST2(LOAD(7, 3), DOT(9, 7, 22))
    /* the rest of the last step */
    PACKET1(DOT(9, 6, 23))
    PACKET2(NARROW(9, 9, 11), SCALE(12, 7))
    PACKET1(CENTRE(9, 9, 10))
    PACKET1(PRODUCT(12, 9, 12))
    PACKET1(SUM(3, 12))
    : OPERANDS
    : SCALARS, [start_a] "v"(c->start[0]), [start_b] "v"(c->start[1])
    : CHANGED, "r6", "r7", "v6", "v7", "v8", "v9", "v10", "v11", "v12");
}

/* Q5_1, Q5_K */
INLINE void q8_offset_loop(const vec *w[], const job *job, const constants *c, vec acc[])
{
    const uint64_t *x = job->x.codes;
    const uint32_t *record = job->x.record;
    const vec *zero = job->x.zero;
    register uint32_t steps __asm__("r24") = job->steps;
    __asm__ volatile(
    PACKET4(START(0), START(1), START(2), START(3))
    PACKET4(CLEAR(8), CLEAR(11), NARROW_BY(4), LOOP)
    "1:\n"
    PACKET3(LOAD(6, 0), X(9, 8), SCALE(13, 8))
    PACKET4(LOAD(8, 0), X(11, 10), START_A(7), NARROW(10, 12, 10))
    PACKET4(LOAD(6, 0), X(13, 12), CENTRE(9, 10, 9), DOT(7, 6, 8))
    PACKET3(LOAD(9, 0), X(15, 14), PRODUCT(13, 9, 13))
    PACKET3(LOAD(10, 0), X(17, 16), OFFSET(13, 11))
    PACKET3(LOAD(8, 0), ZERO_WORD, DOT(7, 8, 9))
    PACKET3(LOAD(6, 0), SUM(3, 13), DOT(7, 6, 10))
    PACKET2(LOAD(9, 0), DOT(7, 9, 11))
    PACKET2(LOAD(10, 0), DOT(7, 10, 12))
    PACKET3(LOAD(11, 0), START_B(8), DOT(7, 8, 13))
    PACKET4(LOAD(6, 0), X(19, 18), DOT(7, 6, 14), DOT(8, 10, 16))
    PACKET3(LOAD(9, 0), DOT(7, 9, 15), DOT(8, 11, 17))
    PACKET3(LOAD(6, 0), X(21, 20), DOT(8, 6, 18))
    PACKET3(LOAD(9, 0), X(23, 22), DOT(8, 9, 19))
    PACKET3(LOAD(6, 0), ZERO_NEXT, DOT(8, 6, 20))
    PACKET2(LOAD(9, 0), DOT(8, 9, 21))
    PACKET3(LOAD(6, 1), RECORD_SUMS, DOT(8, 6, 22))
    PACKET4(LOAD(10, 1), START_A(11), SPLAT(9), DOT(8, 9, 23))
    PACKET2(LOAD(6, 1), DOT(11, 6, 8))
    PACKET2(LOAD(10, 1), DOT(11, 10, 9))
    PACKET2(LOAD(6, 1), DOT(11, 6, 10))
    PACKET2(LOAD(10, 1), DOT(11, 10, 11))
    PACKET3(LOAD(6, 0), NARROW(7, 8, 7), DOT(11, 6, 12))
    PACKET2(LOAD(10, 1), DOT(11, 10, 13))
    PACKET3(LOAD(8, 1), CENTRE(7, 7, 9), SCALE(6, 6))
    PACKET2(LOAD(10, 1), DOT(11, 10, 14))
    PACKET3(LOAD(6, 0), START_B(12), PRODUCT(7, 7, 6))
    PACKET3(LOAD(8, 1), DOT(11, 8, 15), DOT(12, 10, 16))
    PACKET2(LOAD(6, 1), OFFSET(7, 6))
    PACKET2(LOAD(8, 1), DOT(12, 8, 17))
    PACKET3(LOAD(6, 1), SUM(0, 7), DOT(12, 6, 18))
    PACKET2(LOAD(8, 1), DOT(12, 8, 19))
    PACKET2(LOAD(6, 1), DOT(12, 6, 20))
    PACKET2(LOAD(8, 1), DOT(12, 8, 21))
    PACKET2(LOAD(6, 1), DOT(12, 6, 22))
    PACKET2(LOAD(8, 2), DOT(12, 8, 23))
    PACKET3(LOAD(10, 2), START_A(7), SCALE(6, 6))
    PACKET3(LOAD(11, 2), NARROW(8, 12, 11), DOT(7, 8, 8))
    PACKET3(LOAD(8, 1), CENTRE(10, 8, 9), DOT(7, 10, 9))
    PACKET2(LOAD(10, 2), PRODUCT(6, 10, 6))
    PACKET2(LOAD(8, 2), OFFSET(6, 8))
    PACKET2(LOAD(11, 2), DOT(7, 11, 10))
    PACKET3(LOAD(6, 2), SUM(1, 6), DOT(7, 10, 11))
    PACKET2(LOAD(8, 2), DOT(7, 8, 12))
    PACKET2(LOAD(11, 2), DOT(7, 11, 13))
    PACKET3(LOAD(10, 2), START_B(6), DOT(7, 6, 14))
    PACKET3(LOAD(8, 2), DOT(7, 8, 15), DOT(6, 11, 16))
    PACKET2(LOAD(10, 2), DOT(6, 10, 17))
    PACKET2(LOAD(8, 2), DOT(6, 8, 18))
    PACKET2(LOAD(10, 2), DOT(6, 10, 19))
    PACKET2(LOAD(8, 2), DOT(6, 8, 20))
    PACKET2(LOAD(10, 2), DOT(6, 10, 21))
    PACKET2(LOAD(8, 3), DOT(6, 8, 22))
    PACKET3(LOAD(11, 3), START_A(10), DOT(6, 10, 23))
    PACKET2(LOAD(8, 3), DOT(10, 8, 8))
    PACKET3(LOAD(7, 3), NARROW(6, 6, 7), DOT(10, 11, 9))
    PACKET2(LOAD(8, 3), DOT(10, 8, 10))
    PACKET2(LOAD(7, 3), DOT(10, 7, 11))
    PACKET2(LOAD(8, 2), DOT(10, 8, 12))
    PACKET2(LOAD(7, 3), DOT(10, 7, 13))
    PACKET2(LOAD(11, 3), SCALE(8, 8))
    PACKET3(LOAD(6, 2), CENTRE(7, 6, 9), DOT(10, 7, 14))
    PACKET2(LOAD(8, 3), PRODUCT(7, 7, 8))
    PACKET3(LOAD(6, 3), START_B(12), OFFSET(7, 6))
    PACKET3(LOAD(8, 3), DOT(10, 11, 15), DOT(12, 8, 16))
    PACKET3(LOAD(6, 3), SUM(2, 7), DOT(12, 6, 17))
    PACKET2(LOAD(8, 3), DOT(12, 8, 18))
    PACKET2(LOAD(6, 3), DOT(12, 6, 19))
    PACKET2(LOAD(8, 3), DOT(12, 8, 20))
    PACKET2(LOAD(6, 3), DOT(12, 6, 21))
    PACKET2(LOAD(8, 3), DOT(12, 8, 22))
    LAST2(LOAD(11, 3), DOT(12, 6, 23))
    /* the rest of the last step */
    PACKET2(NARROW(10, 12, 10), SCALE(13, 8))
    PACKET1(CENTRE(9, 10, 9))
    PACKET1(PRODUCT(13, 9, 13))
    PACKET1(OFFSET(13, 11))
    PACKET1(SUM(3, 13))
    : OPERANDS
    : SCALARS, [start_a] "v"(c->start[0]), [start_b] "v"(c->start[1])
    : CHANGED, "r6", "r7", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13");
}

#undef PACKET1
#undef PACKET2
#undef PACKET3
#undef PACKET4
#undef LAST2
#undef LAST3
#undef LAST4
#undef LOOP
#undef CLEAR
#undef START
#undef X
#undef RECORD
#undef RECORD_SUMS
#undef ZERO
#undef ZERO_WORD
#undef ZERO_NEXT
#undef SPLAT
#undef LOAD
#undef LOW
#undef HIGH
#undef START_A
#undef START_B
#undef FIRST
#undef DOT
#undef SHUFFLE
#undef NARROW_BY
#undef NARROW
#undef CENTRE
#undef SCALE
#undef PRODUCT
#undef OFFSET
#undef SUM
#undef OPERANDS
#undef SCALARS
#undef CHANGED
/* clang-format on */

#endif
