/* A batch from the host after all checks, with addresses in place of descriptors. */
#ifndef NPURT_BATCH_H
#define NPURT_BATCH_H

#include "kernels/delta.h"
#include "kernels/kernels.h"
#include "maps.h"
#include "npurt_msg.h"

/* A checked op.  Fields that its kind does not use are zero. */
typedef struct {
    uint32_t kind;
    uint32_t flags; /* NPURT_SAME_X, NPURT_NEW_W */

    const char *tiles; /* of w */
    size_t tile_bytes;
    uint32_t tiles_count;
    npurt_quantisation x; /* the field activations is not set */
    npurt_product y;      /* the field activations is not set */

    npurt_delta delta;
    char *state; /* of all heads of all sequences */
} batch_op;

typedef struct {
    uint32_t sequence;
    uint32_t status; /* 0, or the reason why op[count] cannot run */
    uint32_t count;  /* ops that can run */
    batch_op op[NPURT_MAX_OPS];
} batch;

/*
 * Read and check an untrusted batch of `nbytes` bytes.  Afterwards ops 0..count-1 access only
 * memory in mapped blocks.
 */
void batch_read(batch *batch, const uint8_t *bytes, uint32_t nbytes, const maps *maps);

/* Return the bytes from the start of the first row to the end of the last; a row has `width`
 * bytes. */
static inline uint64_t batch_extent(uint32_t rows, uint64_t stride, uint64_t width)
{
    return (uint64_t) (rows - 1) * stride + width;
}

/* Return the number of rows of x, and of y, of a delta net. */
static inline uint32_t batch_tokens(const npurt_delta *delta)
{
    return delta->sequences * delta->tokens;
}

static inline uint64_t batch_state_bytes(const npurt_delta *delta)
{
    return (uint64_t) delta->sequences * delta->heads * npurt_delta_state_bytes(delta->width);
}

#endif
