/*
 * The batch, which is the request of one call, and the reply.  Numbers are little-endian.  FastRPC
 * invoke and dspqueue carry the same bytes.  npurt/hexagon/session/messages.py reads the numbers of
 * this file and has the same structs; tests/hexagon compares the structs of C and Python.
 *
 * Tensors are in mapped rpcmem blocks and are named by (fd, offset).  FastRPC maintains the caches
 * only for buffers that are arguments of a call.  For memory that a batch names by fd, the skel
 * maintains the DSP's caches and the host its own caches.
 */
#ifndef NPURT_MSG_H
#define NPURT_MSG_H

#include <stdint.h>

#define NPURT_PROTOCOL 3u
#define NPURT_BATCH_MAGIC 0x4254504eu /* "NPTB" */
#define NPURT_REPLY_MAGIC 0x5254504eu /* "NPTR" */
#define NPURT_CHECK_FACTOR 0x9e3779b1u
#define NPURT_MAX_OPS 256u
#define NPURT_MAX_M 65536u
#define NPURT_MAX_N 16777216u
#define NPURT_MAX_K 65536u
#define NPURT_MAX_HEADS 4096u /* DELTA: heads of v */
#define NPURT_MAX_WIDTH 128u  /* DELTA: of a head; widths are multiples of 16 */

typedef struct {
    int32_t fd;      /* of a mapped block */
    uint32_t offset; /* bytes; a multiple of 128 */
    uint32_t nbytes; /* bytes that the op may access */
    /* bytes from row to row; a multiple of 128 in x, of 4 in y (DELTA: of 128); 0 in w */
    uint32_t stride;
} npurt_ref;

enum { NPURT_OP_MATMUL = 1, NPURT_OP_DELTA = 2 };

/* Flags of a MATMUL op. */
#define NPURT_SAME_X 1u /* x is the x of the previous op, whose quantised rows are used again */
#define NPURT_NEW_W 2u  /* the host has written or mapped w since the DSP last read w */
/* Flags of a DELTA op. */
#define NPURT_GROUPED 4u /* set: head h has head h / (n / format) of k; clear: h % format */
#define NPURT_GATES 8u   /* set: a decay for each element of k; clear: one decay per head */

/*
 * MATMUL  y[m, n] = x[m, k] @ w[n, k].T
 * DELTA   a gated delta net with heads of width k, over m tokens of each of `group` sequences.  x
 *         and y have a row for each token of the first sequence, then of the next, and so on.
 *         w holds the states of the heads, which the op reads and writes.  dsp/kernels/delta.h
 *         defines the rows and the states.
 */
typedef struct {
    uint32_t kind;    /* NPURT_OP_* */
    uint32_t flags;   /* the flags above; all other bits are 0 */
    uint32_t m, k, n; /* MATMUL: k is not padded, a multiple of 32; DELTA: n is heads of v */
    uint32_t format;  /* MATMUL: of w, a number in dsp/formats.inc; DELTA: heads of q and k */
    uint32_t group;   /* MATMUL: columns per activation scale: 32, 128, or 0: the whole row (i8) */
    uint32_t scale;   /* DELTA: factor of results, the bits of a float32; MATMUL: 0 */
    npurt_ref x;      /* float32; may be y of an earlier op */
    npurt_ref w;      /* MATMUL: an image (npurt/hexagon/layout/images.py) */
    npurt_ref y;      /* float32 */
} npurt_op;

typedef struct {
    uint32_t magic;    /* NPURT_BATCH_MAGIC */
    uint32_t protocol; /* NPURT_PROTOCOL */
    uint32_t sequence; /* number of the batch, repeated in the reply */
    uint32_t count;    /* number of ops, which follow */
} npurt_batch;

typedef struct {
    uint32_t magic;    /* NPURT_REPLY_MAGIC */
    uint32_t sequence; /* of the batch; 0 if the batch could not be read */
    uint32_t status;   /* 0, or NPURT_E_* */
    uint32_t done;     /* complete ops; if status is not 0, the next op failed */
    uint32_t check;    /* a checksum that starts at 0; for the last word w of y of each complete op:
                          check ^= w; rotate check left by 13; check *= NPURT_CHECK_FACTOR */
    uint32_t reserved;
    uint64_t pcycles; /* processor cycles spent; 0 if the DSP does not count them */
} npurt_reply;

enum {
    NPURT_E_BATCH = 1, /* magic, protocol, count or length is wrong */
    NPURT_E_OP = 2,    /* unknown kind, format, flag or group */
    NPURT_E_SHAPE = 3, /* k not a multiple of 32 (DELTA: 16), a size 0 or too large, a bad stride */
    NPURT_E_MAP = 4,   /* fd not mapped, or a range outside the block, or misaligned */
    NPURT_E_MEMORY = 5,  /* no memory for activations or scratch */
    NPURT_E_THREADS = 6, /* threads could not be started */
    NPURT_E_VALUE = 7,   /* x holds NaN or infinity */
    NPURT_E_CACHE = 8,   /* QuRT refused to maintain the cache, so that results may be old */
};

#endif
