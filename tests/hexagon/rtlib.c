/*
 * Calls dsp/rtlib.c as compiled code does, for test_rtlib.py: reads records from standard input
 * until it ends, and writes 8 bytes for each division, 64 for each copy, to standard output.
 * System calls of Linux on the Hexagon: musl, arch/hexagon/syscall_arch.h.
 */
#include <stddef.h>
#include <stdint.h>

enum { READ = 63, WRITE = 64, EXIT = 94 };
enum { AREA = 64 };

typedef struct {
    uint32_t what; /* the order of the cases below */
    uint32_t to, from, count;
    uint64_t a, b;
} record;

void *memcpy(void *to, const void *from, size_t n);
void *memmove(void *to, const void *from, size_t n);
void *memset(void *to, int value, size_t n);
int memcmp(const void *a, const void *b, size_t n);
void *__hexagon_memcpy_likely_aligned_min32bytes_mult8bytes(void *, const void *, size_t);

static long call(long number, long a, long b, long c)
{
    register long r6 __asm__("r6") = number;
    register long r0 __asm__("r0") = a;
    register long r1 __asm__("r1") = b;
    register long r2 __asm__("r2") = c;
    __asm__ volatile("trap0(#1)" : "+r"(r0) : "r"(r1), "r"(r2), "r"(r6) : "memory");
    return r0;
}

/* Operands that the compiler does not know: it calls the library. */
static uint64_t divide(const volatile record *r)
{
    switch (r->what) {
    case 0:
        return r->a / r->b;
    case 1:
        return r->a % r->b;
    case 2:
        return (uint64_t) ((int64_t) r->a / (int64_t) r->b);
    case 3:
        return (uint64_t) ((int64_t) r->a % (int64_t) r->b);
    case 4:
        return (uint32_t) r->a / (uint32_t) r->b;
    case 5:
        return (uint32_t) r->a % (uint32_t) r->b;
    case 6:
        return (uint64_t) (int64_t) ((int32_t) r->a / (int32_t) r->b);
    default:
        return (uint64_t) (int64_t) ((int32_t) r->a % (int32_t) r->b);
    }
}

static void copy(const volatile record *r)
{
    static uint8_t area[AREA] __attribute__((aligned(8)));
    for (volatile int i = 0; i < AREA; i++) {
        area[i] = (uint8_t) (i + 1);
    }
    switch (r->what) {
    case 8:
        memcpy(area + r->to, area + r->from, r->count);
        break;
    case 9:
        memmove(area + r->to, area + r->from, r->count);
        break;
    case 10:
        memset(area + r->to, (int) r->a, r->count);
        break;
    case 11:
        area[0] = (uint8_t) memcmp(area + r->to, area + r->from, r->count);
        break;
    default:
        __hexagon_memcpy_likely_aligned_min32bytes_mult8bytes(area + r->to, area + r->from,
                                                              r->count);
    }
    call(WRITE, 1, (long) area, AREA);
}

void _start(void);
void _start(void)
{
    record r;
    while (call(READ, 0, (long) &r, sizeof r) == sizeof r) {
        if (r.what < 8) {
            uint64_t result = divide(&r);
            call(WRITE, 1, (long) &result, sizeof result);
        } else {
            copy(&r);
        }
    }
    call(EXIT, 0, 0, 0);
}
