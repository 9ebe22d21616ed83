/* rpcmem blocks (shared memory with a descriptor), and memory that the program registers. */
#define _GNU_SOURCE
#include "sim.h"
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCKS = 4096, PAGE = 4096 };
/* Largest block in strict mode: the real library stores sizes as int. */
#define LARGEST ((size_t) 0x7ffff000)

static block blocks[BLOCKS];
static int used;       /* entries at the start of `blocks` that were ever in use */
static uint64_t total; /* bytes of rpcmem */
static uint32_t serial;

block *block_containing(const void *address)
{
    for (int i = 0; i < used; i++) {
        size_t offset = (size_t) ((const uint8_t *) address - blocks[i].at);
        if (blocks[i].serial && offset < blocks[i].bytes) {
            return &blocks[i];
        }
    }
    return NULL;
}

block *block_of_fd(int fd)
{
    for (int i = 0; i < used; i++) {
        if (blocks[i].serial && blocks[i].fd == fd) {
            return &blocks[i];
        }
    }
    return NULL;
}

block *block_next(block *last)
{
    for (int i = last ? (int) (last - blocks) + 1 : 0; i < used; i++) {
        if (blocks[i].serial) {
            return &blocks[i];
        }
    }
    return NULL;
}

static block *block_starting(const void *address)
{
    block *b = block_containing(address);
    return b && b->at == address ? b : NULL;
}

static bool enter(block b)
{
    for (int i = 0; i < BLOCKS; i++) {
        if (!blocks[i].serial) {
            b.serial = ++serial;
            blocks[i] = b;
            used = i < used ? used : i + 1;
            return true;
        }
    }
    return false;
}

/* --- rpcmem ---------------------------------------------------------------------------------- */

static bool deinitialised;

/* Start a new list of blocks: rpcmem_free and rpcmem_to_fd no longer accept the older blocks.  The
 * library is already initialised when it is loaded. */
void rpcmem_init(void)
{
    pthread_mutex_lock(&sim_lock);
    deinitialised = false;
    for (block *b = block_next(NULL); b; b = block_next(b)) {
        b->listed = false;
    }
    pthread_mutex_unlock(&sim_lock);
}

void rpcmem_deinit(void)
{
    pthread_mutex_lock(&sim_lock);
    deinitialised = true;
    pthread_mutex_unlock(&sim_lock);
}

/* Create and map a memfd; on failure return NULL and set *fd to -1. */
static uint8_t *make_memory(size_t bytes, int *fd)
{
    *fd = memfd_create("rpcmem", MFD_CLOEXEC);
    void *at = MAP_FAILED;
    if (*fd >= 0 && ftruncate(*fd, (off_t) bytes) == 0) {
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    }
    if (at == MAP_FAILED && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return at == MAP_FAILED ? NULL : at;
}

static void discard_memory(uint8_t *at, size_t bytes, int fd)
{
    if (at) {
        munmap(at, bytes);
        close(fd);
    }
}

static void discard(const block *b)
{
    if (b->memory != b->at) {
        discard_memory(b->memory, b->bytes, b->memory_fd);
    }
    discard_memory(b->at, b->bytes, b->fd);
}

/* Make a block, with sim_lock held. */
static void *make_block(size_t bytes, bool coherent)
{
    block b = {.bytes = bytes, .ours = true, .listed = true};
    b.at = b.memory = make_memory(bytes, &b.fd);
    b.memory_fd = b.fd;
    if (b.at && !coherent) {
        b.memory = make_memory(bytes, &b.memory_fd);
    }
    if (b.at && b.memory && enter(b)) {
        total += bytes;
        return b.at;
    }
    discard(&b);
    return NULL;
}

void *rpcmem_alloc2(int heap, uint32_t flags, size_t bytes)
{
    (void) heap;
    (void) flags;
    if (bytes == 0 || bytes > SIZE_MAX - PAGE) {
        return NULL;
    }
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    pthread_mutex_lock(&sim_lock);
    const sim_settings *set = settings();
    uint32_t argument;
    void *at = NULL;
    if (fault_due(FAULT_BAD_MEMORY, &argument)) {
        at = (void *) -1;
    } else if (!fault_due(FAULT_NO_MEMORY, &argument) && !deinitialised &&
               bytes <= set->rpcmem - (total < set->rpcmem ? total : set->rpcmem) &&
               (set->faithful || bytes <= LARGEST)) {
        at = make_block(bytes, set->coherent);
    }
    pthread_mutex_unlock(&sim_lock);
    return at;
}

void *rpcmem_alloc(int heap, uint32_t flags, int bytes)
{
    return bytes > 0 ? rpcmem_alloc2(heap, flags, (size_t) bytes) : NULL;
}

void rpcmem_free(void *memory)
{
    pthread_mutex_lock(&sim_lock);
    block *b = block_starting(memory);
    block gone = b && b->ours && b->listed ? *b : (block){0};
    if (gone.serial) {
        b->serial = 0;
        total -= gone.bytes;
    }
    pthread_mutex_unlock(&sim_lock);
    if (gone.serial) {
        map_forget(gone.serial);
        discard(&gone);
    }
}

int rpcmem_to_fd(void *memory)
{
    pthread_mutex_lock(&sim_lock);
    block *b = block_starting(memory);
    int fd = b && (b->listed || !b->ours) ? b->fd : -1;
    pthread_mutex_unlock(&sim_lock);
    return fd;
}

/* --- memory that the program registers ------------------------------------------------------- */

/* Remove registered *memory* from the table; false: it was registered with another size. */
static bool forget(const void *memory, size_t bytes)
{
    block *b = block_starting(memory);
    if (!b || b->ours) {
        return true;
    }
    bool same = b->bytes == bytes;
    b->serial = same ? 0 : b->serial;
    return same;
}

void remote_register_buf_attr2(void *memory, size_t bytes, int fd, int attributes)
{
    (void) attributes;
    pthread_mutex_lock(&sim_lock);
    bool good = true, faithful = settings()->faithful;
    if (fd < 0) {
        good = forget(memory, bytes);
    } else if (memory && bytes && !block_starting(memory)) {
        enter((block){.at = memory, .memory = memory, .bytes = bytes, .fd = fd, .memory_fd = fd});
    }
    pthread_mutex_unlock(&sim_lock);
    if (!good) {
        report("remote_register_buf: %p was registered with another size", memory);
        if (faithful) {
            raise(SIGABRT);
        }
    }
}

void remote_register_buf_attr(void *memory, int bytes, int fd, int attributes)
{
    if (bytes > 0) {
        remote_register_buf_attr2(memory, (size_t) bytes, fd, attributes);
    }
}

void remote_register_buf(void *memory, int bytes, int fd)
{
    remote_register_buf_attr(memory, bytes, fd, 0);
}

/* Reserve addresses for a descriptor, without access rights: the program passes them as arguments
 * of calls.  The first such call checks the descriptor. */
void *remote_register_fd2(int fd, size_t bytes)
{
    void *at = MAP_FAILED;
    if (fd >= 0 && bytes) {
        at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (at == MAP_FAILED) {
        return NULL;
    }
    block b = {.at = at, .memory = at, .bytes = bytes, .fd = fd, .memory_fd = fd, .opaque = true};
    pthread_mutex_lock(&sim_lock);
    enter(b);
    pthread_mutex_unlock(&sim_lock);
    return at;
}

void *remote_register_fd(int fd, int bytes)
{
    return bytes > 0 ? remote_register_fd2(fd, (size_t) bytes) : NULL;
}

enum { DMA_HANDLES = 256, NO_MAP = 16 };

/* Register a descriptor for handle arguments.  The length is not stored: a handle argument contains
 * its descriptor and offset, and the DSP checks the length. */
int remote_register_dma_handle_attr(int fd, uint32_t bytes, uint32_t attributes)
{
    static int known[DMA_HANDLES], count;
    (void) bytes;
    if (fd < 0 || (attributes && attributes != NO_MAP)) {
        return AEE_EBADPARM;
    }
    pthread_mutex_lock(&sim_lock);
    int i = 0;
    while (i < count && known[i] != fd) {
        i++;
    }
    if (i == count && count < DMA_HANDLES) {
        known[count++] = fd;
    }
    bool good = i < count;
    pthread_mutex_unlock(&sim_lock);
    return good ? AEE_SUCCESS : AEE_EINVHANDLE;
}

int remote_register_dma_handle(int fd, uint32_t bytes)
{
    return remote_register_dma_handle_attr(fd, bytes, 0);
}
