/*
 * C calls that one thread makes for other threads.  Neither thread needs Python's GIL to pass a
 * call to the other thread.  cffi reads this header.
 */
#ifndef NPURT_NATIVE_CALL_H
#define NPURT_NATIVE_CALL_H

#include <stdint.h>

#ifdef __GNUC__
#define NPURT_API __attribute__((visibility("default")))
#else
#define NPURT_API
#endif

/* The outcome of a call. */
enum {
    NPURT_CALL_DONE = 0,
    NPURT_CALL_BUSY,        /* not made: another call is running, or the caller is closed */
    NPURT_CALL_INTERRUPTED, /* a signal interrupted the wait; the call is still running */
    NPURT_CALL_DROPPED,     /* timeout before the call began; it will not begin */
    NPURT_CALL_LATE         /* timeout; the call has begun and is still running */
};

typedef struct npurt_native_caller npurt_native_caller;

/* Create a caller; return NULL if there is no memory. */
NPURT_API npurt_native_caller *npurt_native_new(void);

/* Free `caller`; no thread may be in npurt_native_serve, _call or _wait. */
NPURT_API void npurt_native_free(npurt_native_caller *caller);

/* Make the requested calls on this thread until npurt_native_wake is called. */
NPURT_API void npurt_native_serve(npurt_native_caller *caller);

/* Make npurt_native_serve return, after the running call if there is one. */
NPURT_API void npurt_native_wake(npurt_native_caller *caller);

/* Return BUSY for all later calls and for a call that waits; must run on the serving thread. */
NPURT_API void npurt_native_close(npurt_native_caller *caller);

/*
 * Make the serving thread call invoke(handle, scalars, arguments), and wait for the end of the call
 * for at most `nanoseconds`; return the outcome.  After NPURT_CALL_DONE, result[0] is the return
 * value of the call, result[1] its errno, and result[2] its duration in nanoseconds.  `arguments`
 * must remain valid until the call has ended.  Only one thread at a time may use this function.
 */
NPURT_API int npurt_native_call(npurt_native_caller *caller, uintptr_t invoke, uint64_t handle,
                                uint32_t scalars, void *arguments, int64_t nanoseconds,
                                int64_t *result);

/* Wait again for the call, for example after NPURT_CALL_INTERRUPTED; 0 nanoseconds: do not wait. */
NPURT_API int npurt_native_wait(npurt_native_caller *caller, int64_t nanoseconds, int64_t *result);

/* Return whether a call is running or waits for the serving thread. */
NPURT_API int npurt_native_busy(npurt_native_caller *caller);

#endif
