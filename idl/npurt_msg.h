/*
 * The batch, which is the request of one call, and the reply.  Little-endian; the same bytes
 * go through FastRPC invoke and through dspqueue.  npurt/hexagon/session/messages.py reads the numbers of
 * this file and has the same structs; tests/hexagon compares the two.
 *
 * Tensors live in mapped rpcmem blocks and are named by (fd, offset).  FastRPC maintains caches only
 * for buffers that are arguments.  For memory that a batch names by fd, the skel maintains the DSP's
 * caches, and the host its own.
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
#define NPURT_MAX_WIDTH 128u  /* DELTA: of a head, and a multiple of 16 */

typedef struct {
    int32_t fd;      /* of a mapped block */
    uint32_t offset; /* bytes; a multiple of 128 */
    uint32_t nbytes; /* the part the op may touch */
    uint32_t
        stride; /* bytes from row to row: of x a multiple of 128, of y of 4 (DELTA: 128); of w 0 */
} npurt_ref;

enum { NPURT_OP_MATMUL = 1, NPURT_OP_DELTA = 2 };

/* op.flags; MATMUL: */
#define NPURT_SAME_X 1u /* x is that of the op before; its quantised rows are used again */
#define NPURT_NEW_W 2u  /* the host wrote w since the DSP last read it, or mapped it */
/* DELTA: */
#define NPURT_GROUPED 4u /* head h has head h / (n / format) of k, not h % format */
#define NPURT_GATES 8u   /* a decay for each element of k, not one for a head */

/*
 * MATMUL  y[m, n] = x[m, k] @ w[n, k].T
 * DELTA   a gated delta net of heads of k, over m tokens of each of `group` sequences: a row of x
 *         and of y for each token of the first, then of the next sequence; w is the heads' states,
 *         read and written.  dsp/kernels/delta.h has the rows and the states.
 */
typedef struct {
    uint32_t kind;    /* NPURT_OP_* */
    uint32_t flags;   /* as above, others 0 */
    uint32_t m, k, n; /* MATMUL: k is the real one, a multiple of 32; DELTA: n is heads of v */
    uint32_t format;  /* MATMUL: of w, a row of dsp/formats.inc; DELTA: heads of q and k */
    uint32_t group;   /* MATMUL: columns that share an activation scale: 32, 128, or 0: all (i8) */
    uint32_t scale;   /* DELTA: of results, bits of a float32; else 0 */
    npurt_ref x;      /* float32, may be y of an earlier op */
    npurt_ref w;      /* MATMUL: an image as in npurt/hexagon/layout/images.py */
    npurt_ref y;      /* float32 */
} npurt_op;

typedef struct {
    uint32_t magic;    /* NPURT_BATCH_MAGIC */
    uint32_t protocol; /* NPURT_PROTOCOL */
    uint32_t sequence; /* comes back in the reply */
    uint32_t count;    /* ops that follow */
} npurt_batch;

typedef struct {
    uint32_t magic;    /* NPURT_REPLY_MAGIC */
    uint32_t sequence; /* of the batch; 0 when it could not be read */
    uint32_t status;   /* 0, or NPURT_E_* */
    uint32_t done;     /* ops that are complete; the first failed op is the next one */
    uint32_t check;    /* from 0, for the last word w of y of each of those ops: check ^= w;
                          rotate check left by 13; check *= NPURT_CHECK_FACTOR */
    uint32_t reserved;
    uint64_t pcycles; /* processor cycles spent, 0 where the DSP does not tell */
} npurt_reply;

enum {
    NPURT_E_BATCH = 1, /* magic, protocol, count or length is wrong */
    NPURT_E_OP = 2,    /* unknown kind, format, flag or group */
    NPURT_E_SHAPE = 3, /* k not a multiple of 32 (DELTA: 16), a size 0 or too large, a bad stride */
    NPURT_E_MAP = 4,   /* fd not mapped, or a part outside the block, or misaligned */
    NPURT_E_MEMORY = 5,  /* no room for what ops need beside their operands */
    NPURT_E_THREADS = 6, /* threads could not be started */
    NPURT_E_VALUE = 7,   /* x holds NaN or infinity */
};

#endif
