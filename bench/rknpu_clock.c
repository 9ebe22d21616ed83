/* Wraps a driver's ioctl and counts the calling thread's CPU time in it. */
#define _GNU_SOURCE
#include <stdint.h>
#include <time.h>

typedef int driver_ioctl(int fd, unsigned long number, void *argument);

driver_ioctl *driver; /* NULL: requests do nothing and succeed */

static _Thread_local int64_t spent, calls;

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

int clocked_ioctl(int fd, unsigned long number, void *argument)
{
    if (!driver) {
        return 0;
    }
    const int64_t start = now();
    const int result = driver(fd, number, argument);
    spent += now() - start;
    calls++;
    return result;
}

/* Returns this thread's nanoseconds in requests since the last call, and stores their number. */
int64_t take_spent(int64_t *made)
{
    const int64_t result = spent;
    *made = calls;
    spent = calls = 0;
    return result;
}

static int nothing(int fd, unsigned long number, void *argument)
{
    (void) fd, (void) number, (void) argument;
    return 0;
}

/* Returns the nanoseconds that the clock adds to a request without counting them. */
double added(void)
{
    enum { CALLS = 100000 };
    driver_ioctl *const before = driver;
    int64_t made;
    driver = nothing;
    take_spent(&made);
    const int64_t start = now();
    for (int i = 0; i < CALLS; i++) {
        clocked_ioctl(0, 0, 0);
    }
    const int64_t all = now() - start;
    driver = before;
    return (double) (all - take_spent(&made)) / CALLS;
}
