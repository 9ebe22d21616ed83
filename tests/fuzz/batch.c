/*
 * Batches as the skel reads them, done by dsp/reference: a library of the host, so that a sanitizer
 * sees each byte that an accepted batch would touch.  Before and after each block that the host
 * shares lies a page that is none.
 */
#define _GNU_SOURCE
#include "batch.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))

enum { BLOCKS = 8, PAGE = 4096 };

static struct {
    int32_t fd;
    uint32_t nbytes;
    char *at;
} block[BLOCKS];
static int blocks;
static maps mapped;
static batch read;

/* Of hap.h, which has another malloc. */
void *HAP_mmap(void *address, int bytes, int prot, int flags, int fd, long offset);
int HAP_munmap(void *address, int bytes);

void *HAP_mmap(void *address, int bytes, int prot, int flags, int fd, long offset)
{
    (void) address, (void) bytes, (void) prot, (void) flags, (void) offset;
    for (int i = 0; i < blocks; i++) {
        if (block[i].fd == fd) {
            return block[i].at;
        }
    }
    return (void *) -1;
}

int HAP_munmap(void *address, int bytes)
{
    (void) address, (void) bytes;
    return 0;
}

/* --- the sizes of a delta net, by the description in delta.h ---------------------------------- */

static size_t along_k(const npurt_delta *op)
{
    return (op->width + 63) / 64 * 64 * sizeof(float);
}

static size_t along_v(const npurt_delta *op)
{
    return (op->width + 31) / 32 * 32 * sizeof(float);
}

static size_t in_vectors(size_t nbytes)
{
    return (nbytes + NPURT_VECTOR - 1) / NPURT_VECTOR * NPURT_VECTOR;
}

size_t npurt_delta_state_bytes(uint32_t width)
{
    size_t b = (width + 31) / 32, p = (width + 63) / 64;
    return (p * 32 * b * 2 + p + b + b + b + 2 * p) * NPURT_VECTOR;
}

size_t npurt_delta_x_bytes(const npurt_delta *op)
{
    size_t gates = in_vectors(op->heads * sizeof(float));
    size_t decay = op->gates ? op->heads * along_k(op) : gates;
    return 2 * op->k_heads * along_k(op) + op->heads * along_v(op) + gates + decay;
}

size_t npurt_delta_y_bytes(const npurt_delta *op)
{
    return op->heads * along_v(op);
}

/* --- a run ------------------------------------------------------------------------------------ */

static unsigned sum;

static void look_at(const char *at, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++) {
        sum += (unsigned char) at[i];
    }
}

/* The kernels of delta nets have no C of the host: all that they may touch is touched. */
static void touch_delta(const batch_op *op)
{
    const npurt_delta *net = &op->delta;
    uint32_t rows = batch_tokens(net);
    for (uint32_t i = 0; i < rows; i++) {
        look_at(net->x + i * net->x_stride, npurt_delta_x_bytes(net));
        memset(net->y + i * net->y_stride, 0, npurt_delta_y_bytes(net));
    }
    memset(op->state, 0, batch_state_bytes(net));
}

/* Returns 1 when x holds what is not finite. */
static int run_matmul(const batch_op *op, void **activations)
{
    npurt_quantisation x = op->x;
    npurt_product y = op->y;
    if (!(op->flags & NPURT_SAME_X)) {
        free(*activations);
        if (posix_memalign(activations, NPURT_VECTOR, npurt_activation_bytes(x.m, x.k))) {
            abort();
        }
        memset(*activations, 0, npurt_activation_bytes(x.m, x.k));
        x.activations = *activations;
        if (npurt_quantise(&x, 0, x.m, NULL)) {
            return 1;
        }
    }
    y.activations = *activations;
    npurt_multiply(&y, op->tiles, 0, op->tiles_count);
    return 0;
}

/* A new set of blocks. */
EXPORT void fuzz_reset(void);
EXPORT char *fuzz_block(int32_t fd, uint32_t nbytes);
EXPORT void fuzz_execute(const uint8_t *bytes, uint32_t nbytes, uint32_t answer[3]);

void fuzz_reset(void)
{
    maps_clear(&mapped);
    while (blocks) {
        blocks--;
        munmap(block[blocks].at - PAGE, block[blocks].nbytes + 2 * PAGE);
    }
}

/* A block that a batch may name, of whole pages. */
char *fuzz_block(int32_t fd, uint32_t nbytes)
{
    char *at = mmap(NULL, nbytes + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (blocks == BLOCKS || at == MAP_FAILED ||
        mprotect(at + PAGE, nbytes, PROT_READ | PROT_WRITE)) {
        abort();
    }
    block[blocks].fd = fd;
    block[blocks].nbytes = nbytes;
    block[blocks++].at = at + PAGE;
    return maps_add(&mapped, fd, nbytes) ? NULL : at + PAGE;
}

/* Do a batch; answer with sequence, status, done. */
void fuzz_execute(const uint8_t *bytes, uint32_t nbytes, uint32_t answer[3])
{
    uint8_t *copy = malloc(nbytes);
    if (!copy) {
        abort();
    }
    memcpy(copy, bytes, nbytes);
    batch_read(&read, copy, nbytes, &mapped);
    free(copy);
    answer[0] = read.sequence;
    answer[1] = read.status;
    void *activations = NULL;
    uint32_t i;
    for (i = 0; i < read.count; i++) {
        const batch_op *op = &read.op[i];
        if (op->kind == NPURT_OP_DELTA) {
            touch_delta(op);
        } else if (run_matmul(op, &activations)) {
            answer[1] = NPURT_E_VALUE;
            break;
        }
    }
    answer[2] = i;
    free(activations);
}
