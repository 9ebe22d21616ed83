/*
 * Native calls that one thread makes for others.  Handing a call over needs Python's lock on neither
 * side.  cffi reads this header.
 */
#ifndef NPURT_NATIVE_CALL_H
#define NPURT_NATIVE_CALL_H

#include <stdint.h>

#ifdef __GNUC__
#define NPURT_API __attribute__((visibility("default")))
#else
#define NPURT_API
#endif

/* What became of a call. */
enum {
    NPURT_CALL_DONE = 0,
    NPURT_CALL_BUSY,        /* it was not taken: another is under way, or the caller is closed */
    NPURT_CALL_INTERRUPTED, /* a signal came: it is still under way */
    NPURT_CALL_DROPPED,     /* it was taken back before it had begun */
    NPURT_CALL_LATE         /* it had begun, and is still under way */
};

typedef struct npurt_native_caller npurt_native_caller;

/* Returns NULL when there is no memory. */
NPURT_API npurt_native_caller *npurt_native_new(void);

/* Only when no thread serves or waits any more. */
NPURT_API void npurt_native_free(npurt_native_caller *caller);

/* Makes the calls that are asked for, on this thread, until npurt_native_wake. */
NPURT_API void npurt_native_serve(npurt_native_caller *caller);

/* Lets npurt_native_serve return, after the call that it makes. */
NPURT_API void npurt_native_wake(npurt_native_caller *caller);

/* On the thread that serves: later calls get BUSY, and so does one that waits. */
NPURT_API void npurt_native_close(npurt_native_caller *caller);

/*
 * Has the other thread call invoke(handle, scalars, arguments), and waits for it.  What it returned
 * and the errno it left are in result[0] and result[1] after NPURT_CALL_DONE; result[2] is the time
 * it took, in nanoseconds.  arguments stay where they are until it is over.  One thread at a time.
 */
NPURT_API int npurt_native_call(npurt_native_caller *caller, uintptr_t invoke, uint64_t handle,
                                uint32_t scalars, void *arguments, int64_t nanoseconds,
                                int64_t *result);

/* Waits again after NPURT_CALL_INTERRUPTED, or sees with 0 nanoseconds whether it is LATE. */
NPURT_API int npurt_native_wait(npurt_native_caller *caller, int64_t nanoseconds, int64_t *result);

/* Whether a call is under way. */
NPURT_API int npurt_native_busy(npurt_native_caller *caller);

#endif
