/*
 * Runs kernels under qemu-hexagon: reads jobs from standard input, writes results to standard
 * output, until the input ends.  tests/hexagon/kernels.py is the other side.
 *
 * Every buffer ends where its memory ends, so that a byte beyond it is a fault.  Outputs are filled
 * with FILL first.  Packets are what qemu's counter c20 counts between two points of this program.
 */
#include "kernels/kernels.h"

enum { SYS_READ = 63, SYS_WRITE = 64, SYS_EXIT = 94, SYS_UNMAP = 215, SYS_MAP = 222 };
enum { SYS_PROTECT = 226, PAGE = 65536, FILL = 0xa5 };

typedef struct {
    uint32_t m, k, n, group, format;
    uint32_t x_stride, y_stride; /* bytes */
    uint32_t first, last;        /* tiles to multiply by; their image follows x */
    uint32_t split;              /* rows of x that the first call quantises; the rest is another */
} job;

typedef struct {
    uint32_t failed; /* npurt_quantise said so, and nothing was multiplied */
    uint32_t quantise_packets, multiply_packets;
    uint32_t activation_bytes; /* they follow, and then y: m * y_stride bytes */
} answer;

static long call(long number, long a, long b, long c, long d, long e, long f)
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

static __attribute__((noreturn)) void leave(int status)
{
    for (;;) {
        call(SYS_EXIT, status, 0, 0, 0, 0, 0);
    }
}

/* The counter of packets; the assembler has no name for c20.  r0 = c20 */
static uint32_t packets(void)
{
    register uint32_t r0 __asm__("r0");
    __asm__ volatile(".word 0x6a14c000" : "=r"(r0) : : "memory");
    return r0;
}

/* 0 when the input ended before the first byte. */
static int receive(void *to, size_t nbytes)
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

static void answer_with(const void *from, size_t nbytes)
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

static memory allocate(size_t nbytes)
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

static void release(memory of)
{
    call(SYS_UNMAP, (long) of.whole, (long) of.mapped, 0, 0, 0, 0);
}

static uint32_t quantise(const job *job, const char *x, char *activations, char *scratch)
{
    npurt_quantisation q = {.x = (const float *) x,
                            .x_stride = job->x_stride,
                            .m = job->m,
                            .k = job->k,
                            .group = job->group,
                            .activations = activations};
    int failed = job->split ? npurt_quantise(&q, 0, job->split, scratch) : 0;
    return (uint32_t) (npurt_quantise(&q, job->split, job->m, scratch) | failed);
}

static void multiply(const job *job, const npurt_format *format, const char *activations,
                     const char *tiles, char *y)
{
    npurt_product p = {.format = format,
                       .activations = activations,
                       .y = (float *) y,
                       .y_stride = job->y_stride,
                       .m = job->m,
                       .k = job->k,
                       .n = job->n};
    npurt_multiply(&p, tiles, job->first, job->last);
}

static void run(const job *job)
{
    const npurt_format *format = npurt_find_format(job->format);
    if (!format || !npurt_takes_group(format, job->group)) {
        leave(5);
    }
    answer answer = {.activation_bytes = (uint32_t) npurt_activation_bytes(job->m, job->k)};
    memory x = allocate((size_t) job->m * job->x_stride);
    memory tiles = allocate((job->last - job->first) * npurt_tile_bytes(format, job->k));
    memory activations = allocate(answer.activation_bytes);
    memory scratch = allocate(npurt_quantise_scratch(job->k));
    memory y = allocate((size_t) job->m * job->y_stride);
    receive(x.at, (size_t) job->m * job->x_stride);
    receive(tiles.at, (job->last - job->first) * npurt_tile_bytes(format, job->k));
    uint32_t start = packets();
    answer.failed = quantise(job, x.at, activations.at, scratch.at);
    uint32_t middle = packets();
    if (!answer.failed) {
        multiply(job, format, activations.at, tiles.at, y.at);
    }
    answer.quantise_packets = middle - start;
    answer.multiply_packets = packets() - middle;
    answer_with(&answer, sizeof(answer));
    answer_with(activations.at, answer.activation_bytes);
    answer_with(y.at, (size_t) job->m * job->y_stride);
    release(x);
    release(tiles);
    release(activations);
    release(scratch);
    release(y);
}

void work(void);

void work(void)
{
    job next;
    while (receive(&next, sizeof(next))) {
        run(&next);
    }
    leave(0);
}

__attribute__((naked, noreturn)) void _start(void);

__attribute__((naked, noreturn)) void _start(void)
{
    __asm__ volatile("call work");
}
