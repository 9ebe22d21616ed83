/* Reads a batch from the host and checks all its numbers against the mapped memory. */
#include "batch.h"

enum { ALIGNMENT = NPURT_VECTOR, K_STEP = 32 };

/* Return the address of a range of memory; NULL if it has fewer than `nbytes` bytes. */
static char *locate(const npurt_ref *ref, uint64_t nbytes, const maps *maps)
{
    if (ref->offset % ALIGNMENT || nbytes > ref->nbytes) {
        return NULL;
    }
    return maps_find(maps, ref->fd, ref->offset, nbytes);
}

static uint32_t check_kind(const npurt_op *op, const npurt_format *format, int first)
{
    if (op->flags & ~(NPURT_SAME_X | NPURT_NEW_W) || op->scale) {
        return NPURT_E_OP;
    }
    if (!format || npurt_format_arch(format) > __HVX_ARCH__ ||
        !npurt_takes_group(format, op->group)) {
        return NPURT_E_OP;
    }
    return first && op->flags & NPURT_SAME_X ? NPURT_E_OP : 0;
}

static uint32_t check_shape(const npurt_op *op)
{
    uint64_t x_row = (uint64_t) op->k * sizeof(float), y_row = (uint64_t) op->n * sizeof(float);
    if (op->m == 0 || op->m > NPURT_MAX_M || op->n == 0 || op->n > NPURT_MAX_N || op->k == 0 ||
        op->k > NPURT_MAX_K || op->k % K_STEP) {
        return NPURT_E_SHAPE;
    }
    if (op->x.stride < x_row || op->x.stride % ALIGNMENT || op->y.stride < y_row ||
        op->y.stride % sizeof(float) || op->w.stride) {
        return NPURT_E_SHAPE;
    }
    return 0;
}

/* Return whether `op` can use the quantised rows of the op `before` it. */
static int same_x(const batch_op *op, const batch_op *before)
{
    return before->kind == NPURT_OP_MATMUL && op->x.x == before->x.x &&
           op->x.x_stride == before->x.x_stride && op->x.m == before->x.m &&
           op->x.k == before->x.k && op->x.group == before->x.group;
}

static uint32_t read_matmul(batch_op *out, const npurt_op *op, const batch_op *before,
                            const maps *maps)
{
    const npurt_format *format = npurt_find_format(op->format);
    uint32_t status = check_kind(op, format, before == NULL);
    status = status ? status : check_shape(op);
    if (status) {
        return status;
    }
    out->flags = op->flags;
    out->tile_bytes = npurt_tile_bytes(format, op->k);
    out->tiles_count = (op->n + NPURT_TILE - 1) / NPURT_TILE;
    out->tiles = locate(&op->w, (uint64_t) out->tile_bytes * out->tiles_count, maps);
    uint64_t x_bytes = batch_extent(op->m, op->x.stride, (uint64_t) op->k * sizeof(float));
    uint64_t y_bytes = batch_extent(op->m, op->y.stride, (uint64_t) op->n * sizeof(float));
    out->x = (npurt_quantisation){
        .x = (const float *) locate(&op->x, x_bytes, maps),
        .x_stride = op->x.stride,
        .m = op->m,
        .k = op->k,
        .group = op->group,
    };
    out->y = (npurt_product){
        .format = format,
        .y = (float *) locate(&op->y, y_bytes, maps),
        .y_stride = op->y.stride,
        .m = op->m,
        .k = op->k,
        .n = op->n,
    };
    if (!out->tiles || !out->x.x || !out->y.y) {
        return NPURT_E_MAP;
    }
    return op->flags & NPURT_SAME_X && !same_x(out, before) ? NPURT_E_OP : 0;
}

static uint32_t check_delta(const npurt_op *op)
{
    if (op->flags & ~(NPURT_GROUPED | NPURT_GATES)) {
        return NPURT_E_OP;
    }
    if (op->k == 0 || op->k > NPURT_MAX_WIDTH || op->k % 16 || op->n == 0 ||
        op->n > NPURT_MAX_HEADS || op->format == 0 || op->n % op->format) {
        return NPURT_E_SHAPE;
    }
    uint64_t rows = (uint64_t) op->m * op->group;
    return rows == 0 || rows > NPURT_MAX_M ? NPURT_E_SHAPE : 0;
}

static uint32_t read_delta(batch_op *out, const npurt_op *op, const maps *maps)
{
    uint32_t status = check_delta(op);
    if (status) {
        return status;
    }
    npurt_delta *delta = &out->delta;
    *delta = (npurt_delta){
        .x_stride = op->x.stride,
        .y_stride = op->y.stride,
        .tokens = op->m,
        .sequences = op->group,
        .k_heads = op->format,
        .heads = op->n,
        .width = op->k,
        .share = op->n / op->format,
        .grouped = (op->flags & NPURT_GROUPED) != 0,
        .gates = (op->flags & NPURT_GATES) != 0,
        .scale = op->scale,
    };
    uint32_t rows = batch_tokens(delta);
    uint64_t x_row = npurt_delta_x_bytes(delta), y_row = npurt_delta_y_bytes(delta);
    if (op->x.stride < x_row || op->x.stride % ALIGNMENT || op->y.stride < y_row ||
        op->y.stride % ALIGNMENT || op->w.stride) {
        return NPURT_E_SHAPE;
    }
    delta->x = locate(&op->x, batch_extent(rows, op->x.stride, x_row), maps);
    delta->y = locate(&op->y, batch_extent(rows, op->y.stride, y_row), maps);
    out->state = locate(&op->w, batch_state_bytes(delta), maps);
    return delta->x && delta->y && out->state ? 0 : NPURT_E_MAP;
}

static uint32_t read_op(batch_op *out, const npurt_op *op, const batch_op *before, const maps *maps)
{
    *out = (batch_op){.kind = op->kind};
    switch (op->kind) {
    case NPURT_OP_MATMUL:
        return read_matmul(out, op, before, maps);
    case NPURT_OP_DELTA:
        return read_delta(out, op, maps);
    default:
        return NPURT_E_OP;
    }
}

void batch_read(batch *batch, const uint8_t *bytes, uint32_t nbytes, const maps *maps)
{
    npurt_batch head = {0};
    batch->count = 0;
    batch->sequence = 0;
    batch->status = NPURT_E_BATCH;
    if (nbytes < sizeof head) {
        return;
    }
    __builtin_memcpy(&head, bytes, sizeof head);
    if (head.magic != NPURT_BATCH_MAGIC) {
        return;
    }
    batch->sequence = head.sequence;
    if (head.protocol != NPURT_PROTOCOL || head.count > NPURT_MAX_OPS ||
        nbytes != sizeof head + head.count * sizeof(npurt_op)) {
        return;
    }
    batch->status = 0;
    while (batch->count < head.count && !batch->status) {
        npurt_op op; /* a copy, because the host could change the original after the check */
        uint32_t i = batch->count;
        __builtin_memcpy(&op, bytes + sizeof head + i * sizeof op, sizeof op);
        batch->status = read_op(&batch->op[i], &op, i ? &batch->op[i - 1] : NULL, maps);
        batch->count += batch->status == 0;
    }
}
