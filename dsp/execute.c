/*
 * Runs a batch.  All threads work on the same op.  For each op they divide the rows of x, quantise
 * them, wait for each other, and divide the tiles of w.
 *
 * The caches of the DSP and the host are not coherent.  Before the first op of a batch, the cache
 * lines of its inputs are invalidated.  After the last op, the outputs are written to memory and
 * their lines invalidated.  So between batches the caches hold no line that the host may change,
 * except lines of weights.  If the host has changed a weight, the op has the flag NPURT_NEW_W.
 */
#include "execute.h"
#include "cache.h"
#include "fetch.h"
#include "hap.h"
#include "timer.h"
#include <hexagon_types.h>

enum {
    TILES_AT_ONCE = 4,  /* tiles that a kernel for one row multiplies together */
    SHARE = 256 << 10,  /* bytes of L2 for the tiles of one thread */
    ROWS_TO_COPY = 64,  /* with this many rows, copying to VTCM is less than 2 % of the work */
    TOKENS_TO_COPY = 4, /* with this many tokens, copying a state should save time; not measured */
};

typedef struct {
    workspace *work;
    pool *pool;
    const vtcm *vtcm;
    uint32_t done;   /* complete ops; thread 0 counts them */
    uint32_t failed; /* 1: a row of x is not finite */
} run;

/* The items first..last-1 of some work. */
typedef struct {
    uint32_t first, last;
} range;

/* Return this thread's part of `count` items, in multiples of `unit`; units * threads < 2^32. */
static range share(const pool *pool, uint32_t thread, uint32_t count, uint32_t unit)
{
    uint32_t units = (count + unit - 1) / unit;
    uint32_t first = (uint32_t) ((uint64_t) (units * thread) * pool->part >> 31) * unit;
    uint32_t last = (uint32_t) ((uint64_t) (units * (thread + 1)) * pool->part >> 31) * unit;
    return (range){first, last < count ? last : count};
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* --- memory ---------------------------------------------------------------------------------- */

/* Allocate memory aligned to a vector.  A protection domain has malloc, which aligns to 8, but may
 * lack memalign.  The address from malloc is stored before the aligned memory. */
static void *allocate(size_t nbytes)
{
    char *whole = nbytes < INT32_MAX ? malloc(nbytes + NPURT_VECTOR + sizeof(void *)) : NULL;
    if (!whole) {
        return NULL;
    }
    uintptr_t at = (uintptr_t) whole + sizeof(void *) + NPURT_VECTOR - 1;
    void **aligned = (void **) (at - at % NPURT_VECTOR);
    aligned[-1] = whole;
    return aligned;
}

static void release(void *aligned)
{
    if (aligned) {
        free(((void **) aligned)[-1]);
    }
}

/* Grow *memory to `wanted` bytes and drop its content; return 0 if the allocation fails. */
static int grow(void **memory, size_t *nbytes, size_t wanted)
{
    if (*nbytes >= wanted) {
        return 1;
    }
    release(*memory);
    *memory = allocate(wanted);
    *nbytes = *memory ? wanted : 0;
    return *memory != NULL;
}

void workspace_free(workspace *work)
{
    release(work->activations);
    release(work->scratch);
    work->activations = work->scratch = NULL;
    work->activations_bytes = work->scratch_bytes = 0;
}

/* Bytes of scratch memory for one thread. */
static size_t scratch_part(const batch_op *op)
{
    int delta = op->kind == NPURT_OP_DELTA;
    size_t nbytes = delta ? npurt_delta_scratch() : npurt_quantise_scratch(op->x.k);
    return (nbytes + NPURT_VECTOR - 1) & ~(size_t) (NPURT_VECTOR - 1);
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Allocate memory for all ops; if there is too little, remove ops from the end of the batch. */
static void reserve(workspace *work, uint32_t threads)
{
    batch *batch = &work->batch;
    for (;; batch->count--, batch->status = NPURT_E_MEMORY) {
        size_t activations = 0, scratch = 0;
        for (uint32_t i = 0; i < batch->count; i++) {
            const npurt_quantisation *x = &batch->op[i].x;
            activations = most(activations, npurt_activation_bytes(x->m, x->k));
            scratch = most(scratch, threads * scratch_part(&batch->op[i]));
        }
        if (grow(&work->activations, &work->activations_bytes, activations) &&
            grow(&work->scratch, &work->scratch_bytes, scratch)) {
            return;
        }
    }
}

/* --- caches ---------------------------------------------------------------------------------- */

static uint64_t extent_of_y(const batch_op *op)
{
    return batch_extent(op->y.m, op->y.y_stride, (uint64_t) op->y.n * sizeof(float));
}

/* Invalidate the cache lines of the inputs and outputs of a delta net; return 0 if it worked. */
static int take_delta(const batch_op *op)
{
    const npurt_delta *delta = &op->delta;
    uint32_t rows = batch_tokens(delta);
    return cache_take(delta->x, batch_extent(rows, delta->x_stride, npurt_delta_x_bytes(delta))) |
           cache_take(delta->y, batch_extent(rows, delta->y_stride, npurt_delta_y_bytes(delta))) |
           cache_take(op->state, batch_state_bytes(delta));
}

static int give_delta(const batch_op *op)
{
    const npurt_delta *delta = &op->delta;
    uint32_t rows = batch_tokens(delta);
    return cache_give(delta->y, batch_extent(rows, delta->y_stride, npurt_delta_y_bytes(delta))) |
           cache_give(op->state, batch_state_bytes(delta));
}

/* Invalidate the cache lines of the inputs and outputs of a product; return 0 if it worked. */
static int take_matmul(const batch_op *op)
{
    const npurt_quantisation *x = &op->x;
    int error = cache_take(op->y.y, extent_of_y(op)); /* the host may have written between rows */
    if (!(op->flags & NPURT_SAME_X)) {
        error |= cache_take(x->x, batch_extent(x->m, x->x_stride, (uint64_t) x->k * sizeof(float)));
    }
    if (op->flags & NPURT_NEW_W) {
        error |= cache_take(op->tiles, (uint64_t) op->tile_bytes * op->tiles_count);
    }
    return error;
}

/* Prepare the caches; return 0 if it worked, and otherwise run no op. */
static int before_batch(const batch *batch)
{
    int error = 0;
    for (const batch_op *op = batch->op; op < batch->op + batch->count; op++) {
        error |= op->kind == NPURT_OP_DELTA ? take_delta(op) : take_matmul(op);
    }
    return error;
}

/* Return the last word of an op's results, which is still in the DSP's cache. */
static uint32_t last_word(const batch_op *op)
{
    if (op->kind != NPURT_OP_DELTA) {
        const char *end = (const char *) op->y.y + extent_of_y(op);
        return ((const uint32_t *) end)[-1];
    }
    const npurt_delta *delta = &op->delta;
    uint32_t y_bytes = npurt_delta_y_bytes(delta);
    uint32_t last_row = (batch_tokens(delta) - 1) * delta->y_stride;
    const char *head = (const char *) delta->y + last_row + y_bytes - y_bytes / delta->heads;
    return ((const uint32_t *) head)[delta->width - 1];
}

/* Compute the field `check` of npurt_reply.  The rotation makes the checksum detect equal changes
 * of the sign or exponent of all results. */
static uint32_t check_of(const batch *batch, uint32_t done)
{
    uint32_t check = 0;
    for (uint32_t i = 0; i < done; i++) {
        check ^= last_word(&batch->op[i]);
        check = (check << 13 | check >> 19) * NPURT_CHECK_FACTOR;
    }
    return check;
}

/* Give the results to the host; return 0 if it worked, and otherwise no op counts as complete. */
static int after_batch(const batch *batch)
{
    int error = 0;
    for (const batch_op *op = batch->op; op < batch->op + batch->count; op++) {
        error |= op->kind == NPURT_OP_DELTA ? give_delta(op) : cache_give(op->y.y, extent_of_y(op));
    }
    return error;
}

/* --- one thread's part of an op --------------------------------------------------------------- */

static void quantise(run *run, const batch_op *op, uint32_t thread)
{
    workspace *work = run->work;
    npurt_quantisation x = op->x;
    x.activations = work->activations;
    char *scratch = (char *) work->scratch + thread * scratch_part(op);
    range rows = share(run->pool, thread, x.m, NPURT_PANEL);
    if (rows.first < rows.last && npurt_quantise(&x, rows.first, rows.last, scratch)) {
        __atomic_store_n(&run->failed, 1, __ATOMIC_SEQ_CST);
    }
}

static void copy_vectors(char *to, const char *from, size_t nbytes)
{
    const HVX_Vector *in = (const HVX_Vector *) from;
    HVX_Vector *out = (HVX_Vector *) to;
#pragma clang loop unroll(disable)
    for (size_t left = nbytes / NPURT_VECTOR; left; left--) {
        *out++ = *in++;
    }
}

/* Return the number of tiles that fit into `nbytes`, at least one. */
static uint32_t tiles_in(uint32_t nbytes, const batch_op *op)
{
    uint32_t fit = (uint32_t) (nbytes / op->tile_bytes);
    return fit ? fit : 1;
}

/*
 * Multiply by this thread's tiles.  For one row or one panel, one call multiplies all tiles,
 * because kernels prefetch within a call.  For more panels, a call gets as many tiles as fit into
 * L2.  For many rows, tiles are first copied to VTCM if the session has VTCM.
 */
static void multiply(run *run, const batch_op *op, uint32_t thread)
{
    npurt_product y = op->y;
    y.activations = run->work->activations;
    range tiles = share(run->pool, thread, op->tiles_count, TILES_AT_ONCE);
    uint32_t slot_bytes = run->vtcm->slot;
    char *slot = run->vtcm->address + thread * slot_bytes;
    int copied = y.m >= ROWS_TO_COPY && op->tile_bytes <= slot_bytes;
    int once = y.m == 1 || y.m == NPURT_PANEL;
    uint32_t step = once ? op->tiles_count : tiles_in(copied ? slot_bytes : SHARE, op);
    for (uint32_t first = tiles.first, last; first < tiles.last; first = last) {
        last = least(first + step, tiles.last);
        const char *at = op->tiles + first * op->tile_bytes;
        size_t nbytes = (last - first) * op->tile_bytes;
        if (copied) {
            copy_vectors(slot, at, nbytes);
        }
        if (last < tiles.last) {
            fetch(at + nbytes, (tiles.last - last) * op->tile_bytes);
        }
        npurt_multiply(&y, copied ? slot : at, first, last);
    }
}

/* Run this thread's heads of a delta net.  For many tokens, the state is copied to VTCM. */
static void delta(run *run, const batch_op *op, uint32_t thread)
{
    const npurt_delta *net = &op->delta;
    char *scratch = (char *) run->work->scratch + thread * scratch_part(op);
    range heads = share(run->pool, thread, net->sequences * net->heads, 1);
    size_t nbytes = npurt_delta_state_bytes(net->width);
    char *slot = run->vtcm->address + thread * run->vtcm->slot;
    int copied = net->tokens >= TOKENS_TO_COPY && nbytes <= run->vtcm->slot;
    uint32_t step = copied ? 1 : heads.last - heads.first;
    int failed = 0;
    for (uint32_t first = heads.first; first < heads.last; first += step) {
        char *state = op->state + first * nbytes;
        if (copied) {
            copy_vectors(slot, state, nbytes);
        }
        failed |= npurt_delta_run(net, first, first + step, copied ? slot : state, scratch);
        if (copied) {
            copy_vectors(state, slot, nbytes);
        }
    }
    if (failed) {
        __atomic_store_n(&run->failed, 1, __ATOMIC_SEQ_CST);
    }
}

/* Run a delta net; return 1 in all threads if any thread has found a value that is not finite. */
static int run_delta(run *run, const batch_op *op, uint32_t thread)
{
    pool_barrier(run->pool); /* wait until all threads have written x, the result of earlier ops */
    delta(run, op, thread);
    pool_barrier(run->pool);
    return __atomic_load_n(&run->failed, __ATOMIC_SEQ_CST) != 0;
}

static int run_matmul(run *run, const batch_op *op, int first, uint32_t thread)
{
    if (!(op->flags & NPURT_SAME_X)) {
        if (!first) {
            pool_barrier(run->pool); /* wait for readers of the activations and writers of x */
        }
        quantise(run, op, thread);
        pool_barrier(run->pool);
    }
    if (__atomic_load_n(&run->failed, __ATOMIC_SEQ_CST)) {
        return 1;
    }
    multiply(run, op, thread);
    return 0;
}

static void run_batch(void *context, uint32_t thread)
{
    run *run = context;
    const batch *batch = &run->work->batch;
    for (uint32_t i = 0; i < batch->count; i++) {
        const batch_op *op = &batch->op[i];
        int delta = op->kind == NPURT_OP_DELTA;
        if (delta ? run_delta(run, op, thread) : run_matmul(run, op, i == 0, thread)) {
            return;
        }
        if (thread == 0) {
            run->done = i + 1;
        }
    }
}

void execute(workspace *work, pool *pool, const vtcm *vtcm, npurt_reply *reply)
{
    run run = {.work = work, .pool = pool, .vtcm = vtcm};
    uint32_t check = 0;
    uint64_t start = timer_cycles();
    if (pool->threads == 0) {
        work->batch.count = 0;
        work->batch.status = NPURT_E_THREADS;
    }
    reserve(work, pool->threads);
    if (work->batch.count && before_batch(&work->batch)) {
        work->batch.count = 0;
        work->batch.status = NPURT_E_CACHE;
    }
    if (work->batch.count) {
        pool_run(pool, run_batch, &run);
        check = check_of(&work->batch, run.done);
        if (after_batch(&work->batch)) {
            run.done = 0;
            work->batch.status = NPURT_E_CACHE;
        }
    }
    *reply = (npurt_reply){
        .magic = NPURT_REPLY_MAGIC,
        .sequence = work->batch.sequence,
        .status = run.failed ? NPURT_E_VALUE : work->batch.status,
        .done = run.done,
        .check = check,
        .pcycles = timer_cycles() - start,
    };
}
