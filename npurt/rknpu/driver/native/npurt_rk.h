/*
 * The host's part of a product on the RK3588 NPU, in one call: rotate and round rows to int8, make
 * the driver's requests, and scale the exact sums.  cffi reads this header.
 */
#ifndef NPURT_RK_H
#define NPURT_RK_H

#include <stdint.h>

#ifdef __GNUC__
#define NPURT_API __attribute__((visibility("default")))
#else
#define NPURT_API
#endif

/* Steps of a remainder code in one step of a code; twice the largest code. */
enum { NPURT_RK_REMAINDER_STEPS = 254 };

/*
 * Round m rows of k floats to int8, with one scale for each row.  Row i begins at x + i * pitch.
 *
 * First, each row is rotated: it is padded with zeros to kp columns and multiplied by signs, and
 * each block of columns is multiplied by an unnormalised Walsh-Hadamard matrix.  signs has kp
 * values +1 or -1; NULL means no multiplication.  block is a power of two that divides kp; 1 means
 * no transform.
 *
 * Then each rotated row z is rounded in float32.  With amax = max |z|, scale = amax / 127 and
 * code = rint(z * (127 / amax)).  With two passes, row m + i has the remainders of row i: low =
 * rint((z * (127 / amax) - code) * 254), and z is about scale * (code + low / 254).  If 127 / amax
 * is not finite, scale and codes of the row are zero.
 *
 * codes: [passes * m][kp]; scales: [m]; scratch: kp floats.
 * Returns 0, or i + 1 if row i holds NaN or infinity, or overflows in the transform.
 */
NPURT_API int npurt_rk_round(const float *x, int64_t pitch, int m, int k, int kp,
                             const int8_t *signs, int block, int passes, int8_t *codes,
                             float *scales, float *scratch);

/* A range of columns of x that is rounded with separate scales. */
typedef struct {
    const int8_t *signs; /* [kp], or NULL */
    int8_t *codes;       /* [passes * m][kp] */
    float *scales;       /* [m] */
    int32_t first, k, kp, block;
} npurt_rk_part;

/* A rectangle of sums: the results of one core for some columns of one weight. */
typedef struct {
    const void *sums;    /* [slices][passes * m][columns], int32 or float32 */
    const float *w;      /* [n] scales of the weight */
    const float *scales; /* [m] of x */
    int64_t slice;       /* elements from one slice to the next; slices are added up */
    int32_t slices, columns, n;
    int32_t y, first; /* index of the result in job->y, and first column in this result */
    int32_t add;      /* 1: add to the values of the result; 0: overwrite them */
} npurt_rk_block;

/* A request to a driver: one ioctl. */
typedef struct {
    uint64_t number;
    void *argument;
    int64_t *until; /* the deadline in the argument, in ns of CLOCK_MONOTONIC; or NULL */
    int32_t fd;
} npurt_rk_request;

/* The requests of one core: submit, then wait.  With rknpu, one queue serves all cores. */
typedef struct {
    const npurt_rk_request *requests;
    void *copy;     /* the core's copy of x; NULL if the core reads the first queue's x */
    int32_t starts; /* number of requests up to the submit, included */
    int32_t count;  /* number of all requests */
    int32_t made;   /* number of requests that succeeded */
    int32_t error;  /* errno of the request that failed, or 0 */
} npurt_rk_queue;

/* Threads that run queues in parallel. */
typedef struct npurt_rk_pool npurt_rk_pool;

/* A prepared product.  rows is the m of the structs above. */
typedef struct {
    const npurt_rk_part *parts;   /* the column ranges of x to round */
    const npurt_rk_block *blocks; /* the rectangles of sums to scale */
    npurt_rk_queue *queues;
    npurt_rk_pool *pool;    /* NULL: the caller's thread runs all queues */
    const float *x;         /* [rows][pitch]; NULL: the caller wrote the codes of x to a */
    float **y;              /* result i is y[i], [rows][y_pitch[i]]; NULL: do not scale the sums */
    const int64_t *y_pitch; /* elements from one row of a result to the next */
    float *scratch;         /* as many floats as the largest kp of the parts */
    const void *a;          /* the memory from which the first queue's core reads x */
    void *const *sentinels; /* the places of the sentinel; the run writes it before the requests,
                             * and the NPU must overwrite it */
    const void *sentinel;
    int64_t pitch, a_bytes;
    int64_t timeout; /* ns */
    int32_t part_count, block_count, queue_count, sentinel_count, sentinel_bytes;
    int32_t rows, passes, floats; /* floats: 1 if sums are float32 */
    int32_t tries;                /* attempts of a request that signals interrupt */
    int32_t at;                   /* after a failure: the index of the row, queue or sentinel */
} npurt_rk_job;

/* Failures of a run: a row of x holds NaN or infinity; a request of a queue failed; a sentinel was
 * not overwritten.  job->at is the index of the row, queue or sentinel. */
enum { NPURT_RK_BAD_ROW = 1, NPURT_RK_REFUSED = 2, NPURT_RK_UNWRITTEN = 3 };

typedef int npurt_rk_ioctl(int fd, unsigned long number, ...); /* the C library's ioctl */

/*
 * Run a job: round x, write the sentinels, make the requests of each queue until one fails, check
 * that the sentinels were overwritten, and scale the sums into y.
 *
 * For each block and row i, y[i][first + j] = sum[i][j] * scales[i] * w[j]; with add, the product
 * is added to y.  With two passes, (254 * sum[i] + sum[rows + i]) / 254 replaces sum[i].  Sums are
 * added exactly and scaled in double; the product is rounded to float32.  With add, the addition
 * rounds again.
 *
 * Returns 0, or the failure: NPURT_RK_BAD_ROW, NPURT_RK_REFUSED or NPURT_RK_UNWRITTEN.
 */
NPURT_API int npurt_rk_run(npurt_rk_ioctl *ioctl, npurt_rk_job *job);

/* Compute on the host the sums [m][n] that the NPU computes: x [m][k] times w [n][k] transposed. */
NPURT_API void npurt_rk_integer_sums(const int8_t *x, const int8_t *w, int m, int n, int k,
                                     int32_t *sums);

/*
 * The same for float16 values, stored as float32.  Slice s of k begins at slices[s] and ends at
 * slices[s + 1]; both are multiples of 8.  The sum of a slice is rounded to float32, and the slices
 * are added in double.
 *
 * A slice is computed in double: eight lanes, j modulo 8, are added as a tree.  Products of float16
 * values are exact in double.  The simulator adds in this order; the order of the hardware is not
 * published.
 */
NPURT_API void npurt_rk_float_sums(const float *x, const float *w, int m, int n, int k,
                                   const int32_t *slices, int slice_count, double *sums);

/* Start count threads, each of which runs one queue; the caller of npurt_rk_run runs the first
 * queue.  Returns NULL and sets errno on failure. */
NPURT_API npurt_rk_pool *npurt_rk_pool_start(int count);

/* End the threads of a pool that no run uses, in the process that started the pool. */
NPURT_API void npurt_rk_pool_stop(npurt_rk_pool *pool);

#endif
