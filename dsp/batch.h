/* What a batch of the host asks for, checked, with addresses. */
#ifndef NPURT_BATCH_H
#define NPURT_BATCH_H

#include "kernels/kernels.h"
#include "maps.h"
#include "npurt_msg.h"

typedef struct {
    uint32_t flags;    /* NPURT_SAME_X, NPURT_NEW_W */
    const char *tiles; /* of w */
    size_t tile_bytes;
    uint32_t tiles_count;
    npurt_quantisation x; /* without activations */
    npurt_product y;      /* without activations */
} batch_op;

typedef struct {
    uint32_t sequence;
    uint32_t status; /* why op[count] cannot run, or 0 */
    uint32_t count;  /* ops that can run */
    batch_op op[NPURT_MAX_OPS];
} batch;

/*
 * Read a batch of `nbytes` bytes that nothing is known of.  Every address in ops 0..count-1 then
 * lies in a mapped block, with as many bytes as the kernels touch.
 */
void batch_read(batch *batch, const uint8_t *bytes, uint32_t nbytes, const maps *maps);

/* Bytes from the first to past the last of rows of `width` bytes. */
static inline uint64_t batch_extent(uint32_t rows, uint64_t stride, uint64_t width)
{
    return (uint64_t) (rows - 1) * stride + width;
}

#endif
