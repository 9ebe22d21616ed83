/*
 * A line to a thread that makes calls for others, so that a hand-over needs Python's lock on neither
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
    NPURT_CALL_BUSY,        /* it was not taken: another is under way, or the line is closed */
    NPURT_CALL_INTERRUPTED, /* a signal came: it is still under way */
    NPURT_CALL_DROPPED,     /* it was taken back before it had begun */
    NPURT_CALL_LATE         /* it had begun, and is still under way */
};

typedef struct npurt_native_call npurt_native_call;

/* NULL: there is no memory. */
NPURT_API npurt_native_call *npurt_native_call_new(void);

/* Nobody serves or waits any more. */
NPURT_API void npurt_native_call_free(npurt_native_call *line);

/* Makes the calls that are asked for, on this thread, until somebody rings; at once if they have. */
NPURT_API void npurt_native_call_serve(npurt_native_call *line);

/* Has npurt_native_call_serve return after the call it makes. */
NPURT_API void npurt_native_call_ring(npurt_native_call *line);

/* On the thread that serves: no call is taken any more, and none is left waiting. */
NPURT_API void npurt_native_call_close(npurt_native_call *line);

/*
 * Has the other thread call invoke(handle, scalars, arguments), and waits for it.  What it returned
 * and the errno it left are in result[0] and result[1] after NPURT_CALL_DONE; result[2] is the time
 * it took, in nanoseconds.  arguments stay where they are until it is over.  One thread at a time.
 */
NPURT_API int npurt_native_call_make(npurt_native_call *line, uintptr_t invoke, uint64_t handle, uint32_t scalars,
                              void *arguments, int64_t nanoseconds, int64_t *result);

/* Waits again after NPURT_CALL_INTERRUPTED, or sees with 0 nanoseconds whether it is LATE. */
NPURT_API int npurt_native_call_wait(npurt_native_call *line, int64_t nanoseconds, int64_t *result);

/* Whether a call is under way. */
NPURT_API int npurt_native_call_busy(npurt_native_call *line);

#endif
