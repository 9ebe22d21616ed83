/* See helpers.h.  A division takes one step per bit, because the DSP has no instruction for it. */
#include "helpers.h"

uint64_t __hexagon_udivdi3(uint64_t a, uint64_t b)
{
    uint64_t quotient = 0, rest = 0;
    for (int bit = 63; bit >= 0; bit--) {
        bool carry = rest >> 63;
        rest = rest << 1 | (a >> bit & 1);
        if (carry || rest >= b) { /* always, if b is 0: the quotient has all bits then */
            rest -= b;
            quotient |= 1ull << bit;
        }
    }
    return quotient;
}

uint64_t __hexagon_umoddi3(uint64_t a, uint64_t b)
{
    return a - __hexagon_udivdi3(a, b) * b;
}

int64_t __hexagon_divdi3(int64_t a, int64_t b)
{
    uint64_t x = a < 0 ? -(uint64_t) a : (uint64_t) a, y = b < 0 ? -(uint64_t) b : (uint64_t) b;
    uint64_t quotient = __hexagon_udivdi3(x, y);
    return (int64_t) ((a < 0) != (b < 0) ? -quotient : quotient);
}

int64_t __hexagon_moddi3(int64_t a, int64_t b)
{
    return (int64_t) ((uint64_t) a - (uint64_t) __hexagon_divdi3(a, b) * (uint64_t) b);
}

uint32_t __hexagon_udivsi3(uint32_t a, uint32_t b)
{
    return (uint32_t) __hexagon_udivdi3(a, b);
}

uint32_t __hexagon_umodsi3(uint32_t a, uint32_t b)
{
    return (uint32_t) __hexagon_umoddi3(a, b);
}

int32_t __hexagon_divsi3(int32_t a, int32_t b)
{
    return (int32_t) __hexagon_divdi3(a, b);
}

int32_t __hexagon_modsi3(int32_t a, int32_t b)
{
    return (int32_t) __hexagon_moddi3(a, b);
}

/* --- registers that a function keeps for its caller: r16 and r17 lie below the frame pointer, the
 * others below them.  The functions fall through, from the last pair to the first. --------------- */

/* In one packet, `jumpr r31` uses the register's value from before `deallocframe`. */
__asm__(".text\n.p2align 4\n"
        ".globl __save_r16_through_r27, __save_r16_through_r25, __save_r16_through_r23\n"
        ".globl __save_r16_through_r21, __save_r16_through_r19, __save_r16_through_r17\n"
        "__save_r16_through_r27: memd(r30+#-48) = r27:26\n"
        "__save_r16_through_r25: memd(r30+#-40) = r25:24\n"
        "__save_r16_through_r23: memd(r30+#-32) = r23:22\n"
        "__save_r16_through_r21: memd(r30+#-24) = r21:20\n"
        "__save_r16_through_r19: memd(r30+#-16) = r19:18\n"
        "__save_r16_through_r17: memd(r30+#-8) = r17:16\n"
        "jumpr r31\n");

#define RESTORES(ending, end)                                                                      \
    __asm__(".text\n.p2align 4\n"                                                                  \
            ".globl __restore_r16_through_r27_" ending "\n"                                        \
            ".globl __restore_r16_through_r25_" ending "\n"                                        \
            ".globl __restore_r16_through_r23_" ending "\n"                                        \
            ".globl __restore_r16_through_r21_" ending "\n"                                        \
            ".globl __restore_r16_through_r19_" ending "\n"                                        \
            ".globl __restore_r16_through_r17_" ending "\n"                                        \
            "__restore_r16_through_r27_" ending ": r27:26 = memd(r30+#-48)\n"                      \
            "__restore_r16_through_r25_" ending ": r25:24 = memd(r30+#-40)\n"                      \
            "__restore_r16_through_r23_" ending ": r23:22 = memd(r30+#-32)\n"                      \
            "__restore_r16_through_r21_" ending ": r21:20 = memd(r30+#-24)\n"                      \
            "__restore_r16_through_r19_" ending ": r19:18 = memd(r30+#-16)\n"                      \
            "__restore_r16_through_r17_" ending ": r17:16 = memd(r30+#-8)\n" end)

RESTORES("and_deallocframe", "dealloc_return\n");
RESTORES("and_deallocframe_before_tailcall", "{ deallocframe\n  jumpr r31 }\n");
