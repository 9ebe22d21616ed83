/*
 * The pass over a state without gates, two blocks at a time, with every packet written in assembly.
 * delta_passes.h has the same pass in C, for which the compiler makes nearly twice as many packets.
 *
 * A pair of rows of a block needs three multiplications.  A packet of v68 holds one of them, so a
 * pair needs three packets.  These packets have space for the maximum or the minimum of the pair,
 * but not for both.  So four pairs of rows take 13 packets.  The four pairs are called a, b, c and
 * d: a and c are of the first block, b and d of the second.  A load whose value is used only
 * in its own packet (.tmp) occupies no vector unit.  The three packets hold these operations, each
 * for another pair:
 *
 *   1   load and shift a row; add d k to both rows; store a row
 *   2   load and shift the other row; products with k; store the other row
 *   3   round both rows; products with q; maximum or minimum; load a word of k, or words of k and q
 *
 * A pair is loaded three pairs before it is stored.  The last loads read the words after the
 * integers of a state; their results are not stored.
 *
 * tests/hexagon/delta_loops.py defines the result of the pass, and runs its packets on symbols.
 * After a change of a packet run tests/hexagon/test_delta_loops.py, which names wrong results.
 *
 * Registers: r9:8 words of k and q for a and b, r13:12 for c and d; r10 a word of the previous
 * token's k; v12, v13 sums of products with k, v14, v15 with q; v16..v23 rows of a to d; v24..v27 h
 * of a to d; v28 the loaded row.
 */
#ifndef NPURT_DELTA_LOOPS_H
#define NPURT_DELTA_LOOPS_H

#include "delta_passes.h"

/* clang-format off */
#define PACKET1(a) "{ " a " }\n"
#define PACKET2(a, b) "{ " a "; " b " }\n"
#define PACKET3(a, b, c) "{ " a "; " b "; " c " }\n"
#define PACKET4(a, b, c, d) "{ " a "; " b "; " c "; " d " }\n"
#define END(loop) ":endloop" #loop "\n"

#define ROWS_a "v17:16"
#define ROWS_b "v19:18"
#define ROWS_c "v21:20"
#define ROWS_d "v23:22"
#define FIRST_a "v16"
#define FIRST_b "v18"
#define FIRST_c "v20"
#define FIRST_d "v22"
#define SECOND_a "v17"
#define SECOND_b "v19"
#define SECOND_c "v21"
#define SECOND_d "v23"
#define H_a "v24.h"
#define H_b "v25.h"
#define H_c "v26.h"
#define H_d "v27.h"
#define BLOCK_a "0"
#define BLOCK_b "1"
#define BLOCK_c "0"
#define BLOCK_d "1"
#define U_a "v12.w += vdmpy(v24.h,r8.h):sat"
#define U_b "v13.w += vdmpy(v25.h,r8.h):sat"
#define U_c "v12.w += vdmpy(v26.h,r12.h):sat"
#define U_d "v13.w += vdmpy(v27.h,r12.h):sat"
#define W_a "v14.w += vdmpy(v24.h,r9.h):sat"
#define W_b "v15.w += vdmpy(v25.h,r9.h):sat"
#define W_c "v14.w += vdmpy(v26.h,r13.h):sat"
#define W_d "v15.w += vdmpy(v27.h,r13.h):sat"
#define NEXT_a "#1" /* from a second row to the pair of the next block, */
#define NEXT_b "m0" /* or over all other blocks to the next pair */
#define NEXT_c "#1"
#define NEXT_d "m0"

#define TAKE(to, next, i)                                                                          \
    "v28.tmp = vmem(%[from]++" next "); " to ".w = vasr(v28.w,%[shift" BLOCK_##i "].w)"
#define TAKE_FIRST(i) TAKE(FIRST_##i, "#1", i)
#define TAKE_SECOND(i) TAKE(SECOND_##i, NEXT_##i, i)
#define ADD(i) ROWS_##i ".w += vmpy(%[d" BLOCK_##i "].h,r10.h)"
#define ROUND(i) H_##i " = vround(" SECOND_##i ".w," FIRST_##i ".w):sat"
#define STORE_FIRST(i) "vmem(%[to]++#1) = " FIRST_##i
#define STORE_SECOND(i) "vmem(%[to]++" NEXT_##i ") = " SECOND_##i
#define GREATEST(i) "%[greatest" BLOCK_##i "].h = vmax(%[greatest" BLOCK_##i "].h," H_##i ")"
#define LEAST(i) "%[least" BLOCK_##i "].h = vmin(%[least" BLOCK_##i "].h," H_##i ")"
#define LOAD_KQ(to) "r" #to " = memd(%[kq]++#8)"
#define LOAD_WORD "r10 = memw(%[word]++#4)"
#define CLEAR(v) "v" #v " = vxor(v" #v ",v" #v ")"
#define TOTAL(sum, v) "%[" #sum "].w += vasr(v" #v ".w,%[quarter])"
#define LOOP_SEGMENT(label) "loop0(" #label ",#8)"

#define STEP(taken, added, rounded, done, most, load)                                              \
    PACKET3(TAKE_FIRST(taken), ADD(added), STORE_FIRST(done))                                      \
    PACKET3(TAKE_SECOND(taken), U_##done, STORE_SECOND(done))                                      \
    "{ " ROUND(rounded) "; " W_##done "; " most "; " load " }"

/* Run the pass over blocks b and b + 1 of `blocks`; `k` is the k of the previous token. */
INLINE void pass_two_blocks(const state *of, const vec *k, unsigned blocks, unsigned b,
                            unsigned parts, const uint64_t *kq, found to[2])
{
    vec *at = of->integers + 2 * b;
    const vec *from = at;
    const uint32_t *word = (const uint32_t *) k;
    vec u0 = Q6_V_vzero(), u1 = u0, w0 = u0, w1 = u0;
    vec greatest0 = u0, greatest1 = u0, least0 = u0, least1 = u0;
    __asm__ volatile(
    PACKET3(TAKE_FIRST(a), LOAD_WORD, "m0 = %[past]")
    PACKET3(TAKE_SECOND(a), LOAD_KQ(9:8), "loop1(1f,%[segments])")
    PACKET3(TAKE_FIRST(b), ADD(a), LOOP_SEGMENT(1f))
    PACKET3(TAKE_SECOND(b), CLEAR(12), CLEAR(13))
    PACKET2(TAKE_FIRST(c), ADD(b))
    PACKET3(TAKE_SECOND(c), CLEAR(14), LOAD_WORD)
    PACKET2(ROUND(a), CLEAR(15))
    "1:\n"
    STEP(d, c, b, a, LEAST(a), LOAD_KQ(13:12)) "\n"
    STEP(a, d, c, b, LEAST(b), LOAD_WORD) "\n"
    STEP(b, a, d, c, GREATEST(c), LOAD_KQ(9:8)) "\n"
    PACKET4(GREATEST(a), GREATEST(b), LEAST(c), LEAST(d))
    STEP(c, b, a, d, GREATEST(d), LOAD_WORD) END(0)
    PACKET3(TOTAL(u0, 12), CLEAR(12), LOOP_SEGMENT(1b))
    PACKET2(TOTAL(u1, 13), CLEAR(13))
    PACKET2(TOTAL(w0, 14), CLEAR(14))
    "{ " TOTAL(w1, 15) "; " CLEAR(15) " }" END(1)
    : [from] "+r"(from), [to] "+r"(at), [kq] "+r"(kq), [word] "+r"(word), [u0] "+v"(u0),
      [u1] "+v"(u1), [w0] "+v"(w0), [w1] "+v"(w1), [greatest0] "+v"(greatest0),
      [greatest1] "+v"(greatest1), [least0] "+v"(least0), [least1] "+v"(least1)
    : [shift0] "v"(of->shift[b]), [shift1] "v"(of->shift[b + 1]), [d0] "v"(of->d[b]),
      [d1] "v"(of->d[b + 1]), [past] "r"((2 * blocks - 3) * NPURT_VECTOR),
      [segments] "r"(2 * parts), [quarter] "r"(2)
    : "memory", "lc0", "sa0", "lc1", "sa1", "m0", "r8", "r9", "r10", "r12", "r13", "v12", "v13",
      "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26",
      "v27", "v28");
    to[0] = (found) {u0, w0, greatest0, least0};
    to[1] = (found) {u1, w1, greatest1, least1};
}
/* clang-format on */

#endif
