/*
 * What the host does for a product on the RK3588 NPU, in one call: rotate and round rows to int8,
 * make the driver's requests, and give the exact sums their scales.  cffi reads this header.
 */
#ifndef NPURT_RK_H
#define NPURT_RK_H

#include <stdint.h>

#ifdef __GNUC__
#define NPURT_API __attribute__((visibility("default")))
#else
#define NPURT_API
#endif

/* Steps of a remainder in one step of a code: twice the largest code. */
enum { NPURT_RK_REMAINDER_STEPS = 254 };

/*
 * Round m rows of k floats, row i at x + i * pitch, to int8 with one scale a row.
 *
 * Each row is padded with zeros to kp, multiplied by signs (kp of +-1; NULL: left as it is) and
 * transformed by an unnormalised Walsh-Hadamard matrix in every block of columns (a power of two
 * that divides kp; 1: not at all).  Then, in float32: scale = amax / 127, code = rint(z * (127 /
 * amax)); with two passes the rest follows in row m + i, low = rint((z * (127 / amax) - code) *
 * 254), so that z is about scale * (code + low / 254).  A row whose 127 / amax is not finite is
 * zero.
 *
 * codes: [passes * m][kp]; scales: [m]; scratch: kp floats.
 * Returns 0, or i + 1 when row i holds NaN or infinity or overflows in the transform.
 */
NPURT_API int npurt_rk_round(const float *x, int64_t pitch, int m, int k, int kp,
                             const int8_t *signs, int block, int passes, int8_t *codes,
                             float *scales, float *scratch);

/* Some columns of K, rounded with scales of their own. */
typedef struct {
    const int8_t *signs; /* [kp], or NULL */
    int8_t *codes;       /* [passes * m][kp] */
    float *scales;       /* [m] */
    int32_t first, k, kp, block;
} npurt_rk_part;

/* A rectangle of sums: what one core wrote for some columns of one weight. */
typedef struct {
    const void *sums;    /* [slices][passes * m][columns], int32 or float32 */
    const float *w;      /* [n] scales of the weight */
    const float *scales; /* [m] of x */
    int64_t slice;       /* elements from one slice to the next; slices are added up */
    int32_t slices, columns, n;
    int32_t y, first; /* where it goes: which y, and the column of it */
    int32_t add;      /* 1: add to what is there */
} npurt_rk_block;

/* A request to a driver: one ioctl. */
typedef struct {
    uint64_t number;
    void *argument;
    int64_t *until; /* where it says when to give up, in ns of CLOCK_MONOTONIC; or NULL */
    int32_t fd;
} npurt_rk_request;

/* The requests of one core: submit, then wait.  With rknpu, one queue serves all cores. */
typedef struct {
    const npurt_rk_request *requests;
    void *copy;     /* where its core reads x, when that is not where the first queue's does */
    int32_t starts; /* requests up to the one that submits */
    int32_t count;
    int32_t made;  /* how many succeeded */
    int32_t error; /* errno of the one after them, or 0 */
} npurt_rk_queue;

/* Threads that run queues side by side. */
typedef struct npurt_rk_pool npurt_rk_pool;

/* A prepared product; what is called m above is rows. */
typedef struct {
    const npurt_rk_part *parts;   /* how x is rounded; none: the caller did */
    const npurt_rk_block *blocks; /* how results are read */
    npurt_rk_queue *queues;
    npurt_rk_pool *pool; /* NULL: the caller runs all queues */
    const float *x;      /* [rows][pitch]; NULL: it is in place */
    float **y;           /* of each weight, [rows][y_pitch of it]; NULL: they are left in place */
    const int64_t *y_pitch;
    float *scratch;         /* the largest kp */
    const void *a;          /* where the first queue's core reads x */
    void *const *sentinels; /* where the run writes the sentinel; it must be gone afterwards */
    const void *sentinel;
    int64_t pitch, a_bytes;
    int64_t timeout; /* ns */
    int32_t part_count, block_count, queue_count, sentinel_count, sentinel_bytes;
    int32_t rows, passes, floats; /* floats: 1 when sums are float32 */
    int32_t tries;                /* of a request that signals interrupt */
    int32_t at;                   /* which row, queue or sentinel it was, when a run fails */
} npurt_rk_job;

/* What failed, and job->at says where: a row of x holds NaN or infinity; a queue's request failed;
 * a sentinel is still there. */
enum { NPURT_RK_BAD_ROW = 1, NPURT_RK_REFUSED = 2, NPURT_RK_UNWRITTEN = 3 };

typedef int npurt_rk_ioctl(int fd, unsigned long number, ...); /* as ioctl of the C library */

/*
 * Run a job: round x, write the sentinels, make the requests of each queue until one fails, check
 * that the sentinels were overwritten, read the results.
 *
 * y[i][first + j] (+)= sum[i][j] * scales[i] * w[j] for the rows of each block; with two passes a
 * sum is (254 sum[i] + sum[rows + i]) / 254.  Integers are added exactly and scaled in double,
 * rounded once; with add, once more.
 *
 * Returns 0, or what failed.
 */
NPURT_API int npurt_rk_run(npurt_rk_ioctl *ioctl, npurt_rk_job *job);

/* Start threads for all queues but the caller's, the first.  Returns NULL and errno on failure. */
NPURT_API npurt_rk_pool *npurt_rk_pool_start(int count);

/* End them, between two runs, in the process that started them. */
NPURT_API void npurt_rk_pool_stop(npurt_rk_pool *pool);

#endif
