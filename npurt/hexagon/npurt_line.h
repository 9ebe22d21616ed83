/*
 * A line to a thread that makes calls for others, so that a hand-over needs Python's lock on neither
 * side.  cffi reads this header.
 */
#ifndef NPURT_LINE_H
#define NPURT_LINE_H

#include <stdint.h>

#ifdef __GNUC__
#define NPURT_API __attribute__((visibility("default")))
#else
#define NPURT_API
#endif

/* What became of a call. */
enum {
    NPURT_LINE_DONE = 0,
    NPURT_LINE_BUSY,        /* it was not taken: another is under way, or the line is closed */
    NPURT_LINE_INTERRUPTED, /* a signal came: it is still under way */
    NPURT_LINE_DROPPED,     /* it was taken back before it had begun */
    NPURT_LINE_LATE         /* it had begun, and is still under way */
};

typedef struct npurt_line npurt_line;

/* NULL: there is no memory. */
NPURT_API npurt_line *npurt_line_new(void);

/* Nobody serves or waits any more. */
NPURT_API void npurt_line_free(npurt_line *line);

/* Makes the calls that are asked for, on this thread, until somebody rings; at once if they have. */
NPURT_API void npurt_line_serve(npurt_line *line);

/* Has npurt_line_serve return after the call it makes. */
NPURT_API void npurt_line_ring(npurt_line *line);

/* On the thread that serves: no call is taken any more, and none is left waiting. */
NPURT_API void npurt_line_close(npurt_line *line);

/*
 * Has the other thread call invoke(handle, scalars, arguments), and waits for it.  What it returned
 * and the errno it left are in result[0] and result[1] after NPURT_LINE_DONE; result[2] is the time
 * it took, in nanoseconds.  arguments stay where they are until it is over.  One thread at a time.
 */
NPURT_API int npurt_line_call(npurt_line *line, uintptr_t invoke, uint64_t handle, uint32_t scalars,
                              void *arguments, int64_t nanoseconds, int64_t *result);

/* Waits again after NPURT_LINE_INTERRUPTED, or sees with 0 nanoseconds whether it is LATE. */
NPURT_API int npurt_line_wait(npurt_line *line, int64_t nanoseconds, int64_t *result);

/* Whether a call is under way. */
NPURT_API int npurt_line_busy(npurt_line *line);

#endif
