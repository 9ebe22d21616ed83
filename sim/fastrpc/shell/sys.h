/* System calls of Linux, which qemu-hexagon emulates, and registers. */
#ifndef SYS_H
#define SYS_H

#include <stddef.h>
#include <stdint.h>

/* Numbers: Linux include/uapi/asm-generic/unistd.h. */
enum {
    SYS_CLOSE = 57,
    SYS_LLSEEK = 62,
    SYS_READ = 63,
    SYS_WRITE = 64,
    SYS_EXIT = 93,
    SYS_EXIT_GROUP = 94,
    SYS_SCHED_YIELD = 124,
    SYS_RECVMSG = 212,
    SYS_MUNMAP = 215,
    SYS_CLONE = 220,
    SYS_MMAP = 222, /* offset in units of 4096 bytes */
    SYS_MPROTECT = 226,
    SYS_CLOCK_GETTIME64 = 403,
    SYS_CLOCK_NANOSLEEP64 = 407,
    SYS_FUTEX64 = 422,
};

enum { PROT_NONE = 0, PROT_READ = 1, PROT_WRITE = 2, PROT_EXEC = 4 };
enum { MAP_SHARED = 1, MAP_PRIVATE = 2, MAP_FIXED = 0x10, MAP_ANONYMOUS = 0x20 };
enum { ENOENT = 2, EINTR = 4, EAGAIN = 11, ETIMEDOUT = 110 };

static inline long sys_call(long number, long a, long b, long c, long d, long e, long f)
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
                     : "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r5), "r"(r6)
                     : "memory");
    return r0;
}

/* Return whether a call that returns an address failed: a result in the last page is -errno. */
static inline int sys_failed(long result)
{
    return (unsigned long) result > 0xfffff000ul;
}

static inline void *sys_map(void *at, size_t bytes, int protection, int flags, int fd)
{
    long got = sys_call(SYS_MMAP, (long) at, (long) bytes, protection, flags, fd, 0);
    return sys_failed(got) ? NULL : (void *) got;
}

static inline void sys_unmap(void *at, size_t bytes)
{
    sys_call(SYS_MUNMAP, (long) at, (long) bytes, 0, 0, 0, 0);
}

static inline void sys_close(int fd)
{
    sys_call(SYS_CLOSE, fd, 0, 0, 0, 0, 0);
}

/* Return the monotonic time in microseconds. */
static inline uint64_t sys_time(void)
{
    int64_t now[2] = {0, 0};
    sys_call(SYS_CLOCK_GETTIME64, 1, (long) now, 0, 0, 0, 0);
    return (uint64_t) now[0] * 1000000u + (uint64_t) ((uint32_t) now[1] / 1000u);
}

/* Return the packets that this thread has executed: control register 20 of qemu, which has no name
 * in Clang. */
static inline uint32_t sys_packets(void)
{
    register uint32_t r0 __asm__("r0");
    __asm__ volatile(".word 0x6a14c000" : "=r"(r0)::"memory");
    return r0;
}

/* Return the user general pointer, which holds the thread's slot (thread.c). */
static inline void *sys_self(void)
{
    void *self;
    __asm__ volatile("%0 = ugp" : "=r"(self));
    return self;
}

static inline void sys_set_self(void *self)
{
    __asm__ volatile("ugp = %0" ::"r"(self));
}

#endif
