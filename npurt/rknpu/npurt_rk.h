/*
 * What the host does for a product on the RK3588 NPU: rotate and round rows to int8, make the
 * driver's requests, and give the exact sums their scales.  cffi reads this header.
 */
#ifndef NPURT_RK_H
#define NPURT_RK_H

#include <stdint.h>

#ifdef __GNUC__
#define NPURT_API __attribute__((visibility("default")))
#else
#define NPURT_API
#endif

/*
 * Round m rows of k floats, row i at x + i * pitch, to int8 with one scale a row.
 *
 * Each row is padded with zeros to kp, multiplied by signs (kp of +-1; NULL: left as it is) and
 * transformed by an unnormalised Walsh-Hadamard matrix in every block of columns (a power of two
 * that divides kp; 1: not at all).  Then, in float32: scale = amax / 127, code = rint(z * (127 /
 * amax)); with two passes the rest follows in row m + i, low = rint((z * (127 / amax) - code) * 254),
 * so that z is about scale * (code + low / 254).  A row whose 127 / amax is not finite is zero.
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

/* npurt_rk_round for each part of x; scratch holds the largest kp. */
NPURT_API int npurt_rk_write(const npurt_rk_part *parts, int count, const float *x, int64_t pitch,
                             int m, int passes, float *scratch);

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

/*
 * y[i][first + j] (+)= sum[i][j] * scales[i] * w[j] for m rows of each block; with two passes a sum
 * is (254 sum[i] + sum[m + i]) / 254.  Integers are added exactly and scaled in double, rounded
 * once; with add, once more.  Row i of y[b] is at y[b] + i * pitch[b].
 */
NPURT_API void npurt_rk_read(const npurt_rk_block *blocks, int count, int m, int passes, int floats,
                             float *const *y, const int64_t *pitch);

/* A request to a driver: one ioctl. */
typedef struct {
    uint64_t number;
    void *argument;
    int32_t fd;
} npurt_rk_request;

/* Requests that are made together, and what the NPU must have written when they are through. */
typedef struct {
    const npurt_rk_request *requests;
    void *const *marks; /* where mark is put before, and must not be afterwards */
    const void *mark;
    int32_t count, mark_count, mark_bytes;
    int32_t tries; /* of a request that signals interrupt */
    int32_t error; /* errno of the request that failed */
} npurt_rk_calls;

typedef int npurt_rk_ioctl(int fd, unsigned long number, void *argument);

/*
 * Put the marks, then make the requests in order until one fails.
 * Returns 0; i + 1 when request i failed; -1 - i when mark i is still there.
 */
NPURT_API int npurt_rk_make(npurt_rk_ioctl *ioctl, npurt_rk_calls *calls);

#endif
