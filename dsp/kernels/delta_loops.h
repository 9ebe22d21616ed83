/*
 * The passes over a state of heads of 128 without gates, with every packet written out.  What they
 * compute is in delta_passes.h, of which the compiler makes half as many again.  Packets of a pair
 * of rows, four blocks:
 *
 *            v69 on  v68
 *   read     8       9       8 loads, and 21 others; on v68 a multiplication takes the room of two
 *                            instructions, so 36 in all
 *   update   8.25    10      8 loads and 8 stores, each packet one of both; then it has no room for
 *                            a word of k, nor on v68 for a shift beside a multiplication
 *
 * A block's rows are loaded, packets later rounded or shifted, then used, then stored: loops work
 * on several blocks at a time.  After a segment the sums go to the totals and start at zero, and so
 * do rows and h, so that the next segment begins with work on nothing.
 *
 * Registers: r9:8 words of q and k (read), r11:8 words of k (update); v24, v25 rows, v26..v29 h;
 * v16..v19 sums of k and v20..v23 of q (read), v16..v19 rows to be stored (update).
 */
#ifndef NPURT_DELTA_LOOPS_H
#define NPURT_DELTA_LOOPS_H

#include "delta_passes.h"

/* clang-format off */
#define PACKET1(a) "{ " a " }\n"
#define PACKET2(a, b) "{ " a "; " b " }\n"
#define PACKET3(a, b, c) "{ " a "; " b "; " c " }\n"
#define PACKET4(a, b, c, d) "{ " a "; " b "; " c "; " d " }\n"
#define LAST2(a, b, loop) "{ " a "; " b " }:endloop" #loop "\n"
#define LAST3(a, b, c, loop) "{ " a "; " b "; " c " }:endloop" #loop "\n"
#define LAST4(a, b, c, d, loop) "{ " a "; " b "; " c "; " d " }:endloop" #loop "\n"

#define LOAD(v) "v" #v " = vmem(%[from]++#1)"
#define STORE(v) "vmem(%[to]++#1) = v" #v
#define CLEAR(v) "v" #v " = vxor(v" #v ",v" #v ")"
#define LOOP_PAIRS(label) "loop0(" #label ",#16)"
#define LOAD_KQ "r9:8 = memd(%[kq]++#8)"
#define ROUND(h) "v" #h ".h = vround(v25.w,v24.w):sat"
#define U(v, h) "v" #v ".w += vdmpy(v" #h ".h,r8.h):sat"
#define W(v, h) "v" #v ".w += vdmpy(v" #h ".h,r9.h):sat"
#define GREATEST(b, h) "%[greatest" #b "].h = vmax(%[greatest" #b "].h,v" #h ".h)"
#define LEAST(b, h) "%[least" #b "].h = vmin(%[least" #b "].h,v" #h ".h)"
#define TOTAL(sum, v) "%[" #sum "].w += vasr(v" #v ".w,%[two])"
#define SHIFT(to, v, b) "v" #to ".w = vasr(v" #v ".w,%[shift" #b "].w)"
#define LOAD_WORDS "r9:8 = memd(%[k]++#8)"
#define LOAD_MORE_WORDS "r11:10 = memd(%[k]++#8)"

#define READ_START                                                                                 \
    PACKET4(CLEAR(16), CLEAR(17), CLEAR(18), CLEAR(19))                                            \
    PACKET4(CLEAR(20), CLEAR(21), CLEAR(22), CLEAR(23))                                            \
    PACKET4(CLEAR(24), CLEAR(25), CLEAR(28), LOOP_PAIRS(1f))                                       \
    PACKET3(CLEAR(26), CLEAR(27), "loop1(1f,#4)")
#define READ_OPERANDS                                                                              \
    [from] "+r"(from), [kq] "+r"(kq), [u0] "+v"(to->u[0]), [u1] "+v"(to->u[1]),                    \
        [u2] "+v"(to->u[2]), [u3] "+v"(to->u[3]), [w0] "+v"(to->w[0]), [w1] "+v"(to->w[1]),        \
        [w2] "+v"(to->w[2]), [w3] "+v"(to->w[3]), [greatest0] "+v"(to->greatest[0]),               \
        [greatest1] "+v"(to->greatest[1]), [greatest2] "+v"(to->greatest[2]),                      \
        [greatest3] "+v"(to->greatest[3]), [least0] "+v"(to->least[0]),                            \
        [least1] "+v"(to->least[1]), [least2] "+v"(to->least[2]), [least3] "+v"(to->least[3])
#define READ_CHANGED                                                                               \
    "memory", "lc0", "sa0", "lc1", "sa1", "r8", "r9", "v16", "v17", "v18", "v19", "v20", "v21",    \
        "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29"
#define UPDATE_CHANGED                                                                             \
    "memory", "lc0", "sa0", "r8", "r9", "r10", "r11", "v16", "v17", "v18", "v19", "v24", "v25"

#if NPURT_VDMPY_IS_SINGLE

INLINE void read_four_blocks(const vec *from, const uint64_t *kq, found *to)
{
    clear(to, MOST_BLOCKS);
    __asm__ volatile(
    READ_START
    "1:\n"
    PACKET3(LOAD(24), ROUND(28), W(22, 28))
    PACKET4(LOAD(25), U(19, 28), GREATEST(3, 28), LEAST(3, 28))
    PACKET4(LOAD(24), ROUND(28), W(23, 28), LOAD_KQ)
    PACKET4(LOAD(25), U(16, 28), GREATEST(0, 28), LEAST(0, 28))
    PACKET3(LOAD(24), ROUND(28), W(20, 28))
    PACKET4(LOAD(25), U(17, 28), GREATEST(1, 28), LEAST(1, 28))
    PACKET3(LOAD(24), ROUND(28), W(21, 28))
    LAST4(LOAD(25), U(18, 28), GREATEST(2, 28), LEAST(2, 28), 0)
    PACKET2(ROUND(28), W(22, 28))
    PACKET4(U(19, 28), GREATEST(3, 28), LEAST(3, 28), TOTAL(u0, 16))
    PACKET4(W(23, 28), TOTAL(u1, 17), CLEAR(16), CLEAR(17))
    PACKET3(TOTAL(u2, 18), CLEAR(18), CLEAR(28))
    PACKET3(TOTAL(u3, 19), CLEAR(19), LOOP_PAIRS(1b))
    PACKET2(TOTAL(w0, 20), CLEAR(20))
    PACKET2(TOTAL(w1, 21), CLEAR(21))
    PACKET3(TOTAL(w2, 22), CLEAR(22), CLEAR(24))
    LAST3(TOTAL(w3, 23), CLEAR(23), CLEAR(25), 1)
    : READ_OPERANDS : [two] "r"(2) : READ_CHANGED);
}

/* `word` is of the block before. */
#define ADD(v, d, b, word) "v" #v ".w += vdmpy(%[" #d #b "].h,r" #word ".h):sat"
#define BLOCK(b, before, word)                                                                     \
    PACKET4(LOAD(24), SHIFT(17, 24, before), ADD(16, low, before, word), STORE(17))                \
    PACKET4(LOAD(24), SHIFT(16, 24, b), ADD(17, high, before, word), STORE(16))
#define PAIR(before, word) BLOCK(0, 3, before) BLOCK(1, 0, word) BLOCK(2, 1, word) BLOCK(3, 2, word)

INLINE void update_four_blocks(vec *to, const uint32_t *k, const vec shift[], const vec d[])
{
    const vec *from = to;
    vec low[MOST_BLOCKS], high[MOST_BLOCKS]; /* d beside 0: for the first and the second of a word */
    UNROLL
    for (unsigned b = 0; b < MOST_BLOCKS; b++) {
        low[b] = Q6_V_vand_VV(d[b], splat(0xffff));
        high[b] = Q6_V_vand_VV(d[b], splat(0xffff0000u));
    }
    __asm__ volatile(
    PACKET3(LOAD(24), LOAD_WORDS, "loop0(1f,#15)")
    PACKET3(LOAD(24), LOAD_MORE_WORDS, SHIFT(16, 24, 0))
    PACKET3(LOAD(24), SHIFT(17, 24, 0), ADD(16, low, 0, 8))
    PACKET4(LOAD(24), SHIFT(16, 24, 1), ADD(17, high, 0, 8), STORE(16))
    BLOCK(2, 1, 8) BLOCK(3, 2, 8) PAIR(8, 9) PAIR(9, 10) PAIR(10, 11)
    "1:\n"
    BLOCK(0, 3, 11)
    PACKET3("r9:8 = memd(%[k]+#0)", "r11:10 = memd(%[k]+#8)", "%[k] = add(%[k],#16)")
    BLOCK(1, 0, 8) BLOCK(2, 1, 8) BLOCK(3, 2, 8) PAIR(8, 9) PAIR(9, 10)
    BLOCK(0, 3, 10) BLOCK(1, 0, 11) BLOCK(2, 1, 11)
    PACKET4(LOAD(24), SHIFT(17, 24, 2), ADD(16, low, 2, 11), STORE(17))
    LAST4(LOAD(24), SHIFT(16, 24, 3), ADD(17, high, 2, 11), STORE(16), 0)
    PACKET3(SHIFT(17, 24, 3), ADD(16, low, 3, 11), STORE(17))
    PACKET2(ADD(17, high, 3, 11), STORE(16))
    PACKET1(STORE(17))
    : [from] "+r"(from), [to] "+r"(to), [k] "+r"(k)
    : [shift0] "v"(shift[0]), [shift1] "v"(shift[1]), [shift2] "v"(shift[2]),
      [shift3] "v"(shift[3]), [low0] "v"(low[0]), [low1] "v"(low[1]), [low2] "v"(low[2]),
      [low3] "v"(low[3]), [high0] "v"(high[0]), [high1] "v"(high[1]), [high2] "v"(high[2]),
      [high3] "v"(high[3])
    : UPDATE_CHANGED);
}

#else

INLINE void read_four_blocks(const vec *from, const uint64_t *kq, found *to)
{
    clear(to, MOST_BLOCKS);
    __asm__ volatile(
    READ_START
    "1:\n"
    PACKET3(LOAD(24), ROUND(29), W(22, 28))
    PACKET3(LOAD(25), U(19, 29), GREATEST(3, 29))
    PACKET4(LEAST(0, 26), LEAST(1, 27), LEAST(2, 28), LEAST(3, 29))
    PACKET4(LOAD(24), ROUND(26), W(23, 29), LOAD_KQ)
    PACKET3(LOAD(25), U(16, 26), GREATEST(0, 26))
    PACKET3(LOAD(24), ROUND(27), W(20, 26))
    PACKET3(LOAD(25), U(17, 27), GREATEST(1, 27))
    PACKET3(LOAD(24), ROUND(28), W(21, 27))
    LAST3(LOAD(25), U(18, 28), GREATEST(2, 28), 0)
    PACKET2(ROUND(29), W(22, 28))
    PACKET3(U(19, 29), GREATEST(3, 29), TOTAL(u0, 16))
    PACKET3(W(23, 29), TOTAL(u1, 17), CLEAR(16))
    PACKET4(TOTAL(u2, 18), CLEAR(17), LEAST(0, 26), LEAST(1, 27))
    PACKET4(TOTAL(u3, 19), CLEAR(18), LEAST(2, 28), LEAST(3, 29))
    PACKET4(TOTAL(w0, 20), CLEAR(19), CLEAR(20), LOOP_PAIRS(1b))
    PACKET3(TOTAL(w1, 21), CLEAR(21), CLEAR(28))
    PACKET3(TOTAL(w2, 22), CLEAR(22), CLEAR(24))
    LAST3(TOTAL(w3, 23), CLEAR(23), CLEAR(25), 1)
    : READ_OPERANDS : [two] "r"(2) : READ_CHANGED);
}

/* Load blocks a and b; finish c and e, which are the two before. */
#define ADD(high, low, b) "v" #high ":" #low ".w += vmpy(%[d" #b "].h,r8.h)"
#define FIRST(c, e) PACKET3(LOAD(24), SHIFT(18, 24, e), ADD(17, 16, c))
#define SECOND(e) PACKET3(LOAD(25), SHIFT(19, 25, e), STORE(16))
#define FOURTH(a) PACKET3(LOAD(24), SHIFT(17, 25, a), STORE(18))
#define BLOCKS(a, c, e)                                                                            \
    FIRST(c, e) SECOND(e) PACKET3(SHIFT(16, 24, a), ADD(19, 18, e), STORE(17)) FOURTH(a)

INLINE void update_four_blocks(vec *to, const uint32_t *k, const vec shift[], const vec d[])
{
    const vec *from = to;
    __asm__ volatile(
    PACKET2(LOAD(24), "r8 = memw(%[k]++#4)")
    PACKET2(LOAD(25), "loop0(1f,#63)")
    PACKET1(SHIFT(16, 24, 0))
    PACKET2(LOAD(24), SHIFT(17, 25, 0))
    PACKET1(LOAD(25))
    "1:\n"
    BLOCKS(2, 0, 1)
    PACKET2(LOAD(25), STORE(19))
    FIRST(2, 3) SECOND(3)
    PACKET4(SHIFT(16, 24, 0), ADD(19, 18, 3), STORE(17), "r8 = memw(%[k]++#4)")
    FOURTH(0)
    LAST2(LOAD(25), STORE(19), 0)
    BLOCKS(2, 0, 1)
    PACKET2(LOAD(25), STORE(19))
    PACKET2(SHIFT(18, 24, 3), ADD(17, 16, 2))
    PACKET2(SHIFT(19, 25, 3), STORE(16))
    PACKET2(ADD(19, 18, 3), STORE(17))
    PACKET1(STORE(18))
    PACKET1(STORE(19))
    : [from] "+r"(from), [to] "+r"(to), [k] "+r"(k)
    : [shift0] "v"(shift[0]), [shift1] "v"(shift[1]), [shift2] "v"(shift[2]),
      [shift3] "v"(shift[3]), [d0] "v"(d[0]), [d1] "v"(d[1]), [d2] "v"(d[2]), [d3] "v"(d[3])
    : UPDATE_CHANGED);
}

#endif
/* clang-format on */

#endif
