/* Sleep until a word of memory changes; another process may change it. */
#define _GNU_SOURCE
#include "sim.h"
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t clock_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000u + (uint64_t) t.tv_nsec / 1000u;
}

void futex_wake(uint32_t *word, int threads)
{
    syscall(SYS_futex, word, FUTEX_WAKE, threads, NULL, NULL, 0);
}

bool futex_wait(uint32_t *word, uint32_t value, uint64_t end)
{
    uint64_t now = clock_us();
    if (now >= end) {
        return false;
    }
    uint64_t left = end - now < 1000000u ? end - now : 1000000u;
    struct timespec wait = {(time_t) (left / 1000000u), (long) (left % 1000000u) * 1000};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &wait, NULL, 0);
    return true;
}
