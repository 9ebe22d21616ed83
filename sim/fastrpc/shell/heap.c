/*
 * malloc for skels.  Block sizes are powers of two, and each block has a header; large blocks come
 * directly from the kernel.  Blocks of the arena are filled with a pattern, so that code that
 * expects zeros fails.  A double free or an overwritten header ends the PD.
 */
#include "libc.h"

enum { SMALLEST = 5, LARGEST = 15, CHUNK = 1 << 20 }; /* log2 of bytes; bytes of an arena */
enum { LIVE = 0x4c495645, FREE = 0x46524545, PATTERN = 0xa5 };

typedef struct header {
    uint32_t state; /* LIVE or FREE */
    uint32_t power; /* log2 of the block's size; 0: `bytes` from the kernel */
    uint32_t bytes; /* for the caller; with `power` 0, of the whole block */
    void *start;    /* the block; a free block stores the next one's address there */
} header;

static void *free_blocks[LARGEST + 1];
static char *arena;
static uint32_t arena_left;
static lock table;

static void *pages(uint32_t bytes)
{
    return sys_map(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static void *take_small(uint32_t power)
{
    void *block = free_blocks[power];
    if (block) {
        free_blocks[power] = *(void **) block;
        return block;
    }
    uint32_t bytes = 1u << power;
    if (arena_left < bytes) {
        arena = pages(CHUNK);
        arena_left = arena ? CHUNK : 0;
    }
    if (!arena_left) {
        return NULL;
    }
    block = arena;
    arena += bytes;
    arena_left -= bytes;
    return block;
}

static void *allocate(size_t alignment, size_t bytes)
{
    alignment = alignment < 16 ? 16 : alignment;
    uint32_t whole = bytes + alignment + sizeof(header);
    if (alignment & (alignment - 1) || whole < bytes) {
        return NULL;
    }
    uint32_t power = SMALLEST;
    while (power <= LARGEST && 1u << power < whole) {
        power++;
    }
    power = power <= LARGEST ? power : 0;
    lock_take(&table);
    char *start = power ? take_small(power) : pages(whole);
    lock_leave(&table);
    if (!start) {
        return NULL;
    }
    uintptr_t at = ((uintptr_t) start + sizeof(header) + alignment - 1) & ~(alignment - 1);
    *((header *) at - 1) = (header){LIVE, power, power ? bytes : whole, start};
    return power ? memset((void *) at, PATTERN, bytes) : (void *) at;
}

/* The heap's packets are not counted, because a real PD has another heap. */
void *memalign(size_t alignment, size_t bytes)
{
    account_pause();
    void *memory = allocate(alignment, bytes);
    account_resume();
    return memory;
}

static header *header_of(void *memory)
{
    header *h = (header *) memory - 1;
    if ((uintptr_t) memory & 15 || h->state != LIVE) {
        die("heap: %p is not allocated, was freed twice, or was overrun", memory);
    }
    return h;
}

/* Return the number of usable bytes at *memory*. */
static uint32_t usable(void *memory)
{
    const header *h = header_of(memory);
    uint32_t before = (uint32_t) memory - (uint32_t) h->start;
    return h->power ? h->bytes : h->bytes - before;
}

static void give_back(void *memory)
{
    lock_take(&table);
    header *h = header_of(memory);
    h->state = FREE;
    if (h->power) {
        void *start = h->start;
        uint32_t power = h->power;
        memset(memory, PATTERN, h->bytes);
        *(void **) start = free_blocks[power];
        free_blocks[power] = start;
    } else {
        sys_unmap(h->start, h->bytes);
    }
    lock_leave(&table);
}

void free(void *memory)
{
    account_pause();
    if (memory) {
        give_back(memory);
    }
    account_resume();
}

void *malloc(size_t bytes)
{
    return memalign(16, bytes);
}

void *calloc(size_t count, size_t bytes)
{
    uint64_t total = (uint64_t) count * bytes;
    void *memory = total >> 32 ? NULL : malloc((size_t) total);
    return memory ? memset(memory, 0, (size_t) total) : NULL;
}

void *realloc(void *memory, size_t bytes)
{
    void *grown = malloc(bytes);
    if (grown && memory) {
        uint32_t old = usable(memory);
        memcpy(grown, memory, old < bytes ? old : bytes);
        free(memory);
    }
    return grown;
}
