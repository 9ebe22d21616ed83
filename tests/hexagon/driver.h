/*
 * What a program under qemu-hexagon needs to run kernels: it reads jobs from standard input and
 * writes results to standard output, until the input ends.
 *
 * Every buffer ends where its memory ends, so that a byte beyond it is a fault.  Outputs are filled
 * with FILL first.  Packets are what qemu's counter c20 counts between two points of a program.
 */
#ifndef DRIVER_H
#define DRIVER_H

#include <stddef.h>
#include <stdint.h>

enum { SYS_READ = 63, SYS_WRITE = 64, SYS_EXIT = 94, SYS_UNMAP = 215, SYS_MAP = 222 };
enum { SYS_PROTECT = 226, PAGE = 65536, FILL = 0xa5 };

static inline long call(long number, long a, long b, long c, long d, long e, long f)
{
    register long r6 __asm__("r6") = number;
    register long r0 __asm__("r0") = a;
    register long r1 __asm__("r1") = b;
    register long r2 __asm__("r2") = c;
    register long r3 __asm__("r3") = d;
    register long r4 __asm__("r4") = e;
    register long r5 __asm__("r5") = f;
    __asm__ volatile("trap0(#1)"
                     : "+r"(r0)
                     : "r"(r6), "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r5)
                     : "memory");
    return r0;
}

static inline __attribute__((noreturn)) void leave(int status)
{
    for (;;) {
        call(SYS_EXIT, status, 0, 0, 0, 0, 0);
    }
}

/* The counter of packets; the assembler has no name for c20.  r0 = c20 */
static inline uint32_t packets(void)
{
    register uint32_t r0 __asm__("r0");
    __asm__ volatile(".word 0x6a14c000" : "=r"(r0) : : "memory");
    return r0;
}

/* 0 when the input ended before the first byte. */
static inline int receive(void *to, size_t nbytes)
{
    for (size_t done = 0; done < nbytes;) {
        long got = call(SYS_READ, 0, (long) to + (long) done, (long) (nbytes - done), 0, 0, 0);
        if (got <= 0) {
            if (done) {
                leave(2);
            }
            return 0;
        }
        done += (size_t) got;
    }
    return 1;
}

static inline void answer_with(const void *from, size_t nbytes)
{
    for (size_t done = 0; done < nbytes;) {
        long sent = call(SYS_WRITE, 1, (long) from + (long) done, (long) (nbytes - done), 0, 0, 0);
        if (sent <= 0) {
            leave(3);
        }
        done += (size_t) sent;
    }
}

typedef struct {
    char *whole, *at;
    size_t mapped;
} memory;

static inline memory allocate(size_t nbytes)
{
    memory of;
    size_t usable = (nbytes + PAGE - 1) / PAGE * PAGE;
    of.mapped = usable + PAGE;
    of.whole = (char *) call(SYS_MAP, 0, (long) of.mapped, 3, 0x22, -1, 0);
    if ((uintptr_t) of.whole > 0xfffff000u ||
        call(SYS_PROTECT, (long) of.whole + (long) usable, PAGE, 0, 0, 0, 0)) {
        leave(4);
    }
    of.at = of.whole + usable - nbytes;
    for (size_t i = 0; i < nbytes; i++) {
        of.at[i] = (char) FILL;
    }
    return of;
}

static inline void release(memory of)
{
    call(SYS_UNMAP, (long) of.whole, (long) of.mapped, 0, 0, 0, 0);
}

/* The program: reads jobs until there are none. */
void work(void);

__attribute__((naked, noreturn)) void _start(void);

__attribute__((naked, noreturn)) void _start(void)
{
    __asm__ volatile("call work");
}

#endif
