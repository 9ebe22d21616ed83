/*
 * Blocks of memory that the host shares with this PD, and the calls of HAP_mem.h that map them.
 *
 * The library identifies a block by a number that it assigns; skels use the number of the block's
 * descriptor on the host.  Either the library maps a block (`held`: FASTRPC_MAP_FD and arguments of
 * calls), or a skel does (FASTRPC_MAP_FD_DELAYED).  The total size of mapped blocks is limited,
 * like the address space of a PD.
 *
 * With `shadow`, a skel uses a copy of the block, which acts as a cache that never writes back or
 * evicts a line by itself.  An invalidate copies the host's writes to the skel's copy.  A flush
 * copies the lines that the skel changed to the host.  Arguments have no copy, because they need no
 * cache maintenance on a real DSP.
 */
#include "memory.h"

enum { BLOCKS = 512, PAGE = 1 << 16, LINE = 64 };
enum { SOL_SOCKET = 1, SCM_RIGHTS = 1 };

typedef struct {
    uint32_t id; /* assigned by the library; 0: this entry is free */
    int fd;      /* on the host; LINK_NO_FD: skels cannot look the block up */
    bool argument;
    int mine; /* descriptor in this process */
    uint32_t bytes;
    uint8_t *address; /* address for skels; NULL while not mapped */
    uint8_t *window;  /* the host's memory; without `shadow`, equal to `address` */
    uint8_t *synced;  /* content of the copy at its last maintenance */
    bool held;        /* mapped by the library */
    uint32_t uses;    /* number of mappings by skels */
} block;

static block blocks[BLOCKS];
static uint32_t mapped; /* bytes */
static lock table;

int receive_descriptor(void)
{
    uint8_t byte;
    struct {
        void *base;
        uint32_t bytes;
    } part = {&byte, 1};
    struct {
        uint32_t bytes;
        int level, type, fd;
    } control = {.fd = -1};
    struct {
        void *name;
        uint32_t name_bytes;
        void *parts;
        uint32_t part_count;
        void *control;
        uint32_t control_bytes;
        int flags;
    } message = {.parts = &part, .part_count = 1, .control = &control};
    message.control_bytes = sizeof(control);
    long got = sys_call(SYS_RECVMSG, LINK_SOCKET_FD, (long) &message, 0, 0, 0, 0);
    if (got != 1 || control.level != SOL_SOCKET || control.type != SCM_RIGHTS) {
        die("a descriptor did not arrive: %ld", got);
    }
    return control.fd;
}

/* --- mapping --------------------------------------------------------------------------------- */

/* Return the bytes of the PD's address space that a block is charged: 0 for arguments, which are
 * mapped only during a call. */
static uint32_t charge_of(const block *b)
{
    return b->argument ? 0 : b->bytes;
}

static uint8_t *anonymous(uint32_t bytes)
{
    return sys_map(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static bool map_block(block *b)
{
    if (b->address) {
        return true;
    }
    uint32_t bytes = charge_of(b);
    if (bytes > shared->machine.space - mapped) {
        say("no space to map %u bytes: %u of %u are mapped", (unsigned) b->bytes, (unsigned) mapped,
            (unsigned) shared->machine.space);
        return false;
    }
    b->window = sys_map(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, b->mine);
    b->address = b->window;
    if (b->window && shared->machine.shadow && !b->argument) {
        b->address = anonymous(b->bytes);
        b->synced = anonymous(b->bytes);
        if (!b->address || !b->synced) {
            die("no memory for a shadow of %u bytes", (unsigned) b->bytes);
        }
        __builtin_memcpy(b->address, b->window, b->bytes);
        __builtin_memcpy(b->synced, b->window, b->bytes);
    }
    mapped += b->address ? bytes : 0;
    return b->address != NULL;
}

static void unmap_block(block *b)
{
    if (!b->address || b->held || b->uses) {
        return;
    }
    sys_unmap(b->window, b->bytes);
    if (b->address != b->window) {
        sys_unmap(b->address, b->bytes);
        sys_unmap(b->synced, b->bytes);
    }
    b->address = NULL;
    mapped -= charge_of(b);
}

static block *block_of_id(uint32_t id)
{
    for (uint32_t i = 0; i < BLOCKS; i++) {
        if (blocks[i].id == id) {
            return &blocks[i];
        }
    }
    return NULL;
}

static block *block_of_fd(int fd)
{
    for (uint32_t i = 0; i < BLOCKS && fd >= 0; i++) {
        if (blocks[i].id && blocks[i].fd == fd) {
            return &blocks[i];
        }
    }
    return NULL;
}

static block *block_at(const void *address)
{
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint32_t offset = (uint32_t) address - (uint32_t) blocks[i].address;
        if (blocks[i].address && offset < blocks[i].bytes) {
            return &blocks[i];
        }
    }
    return NULL;
}

int block_attach(uint32_t id, int fd, uint32_t bytes, bool map, uint32_t *address)
{
    int mine = receive_descriptor();
    lock_take(&table);
    block *b = block_of_id(0);
    int result = b ? DSP_OK : DSP_NO_MEMORY;
    if (b) {
        *b = (block){.id = id, .fd = fd, .mine = mine, .bytes = bytes};
        b->argument = fd == LINK_NO_FD;
        b->held = map && map_block(b);
        *address = (uint32_t) b->address;
        if (map && !b->held) {
            b->id = 0;
            result = DSP_NO_MEMORY;
        }
    }
    lock_leave(&table);
    if (result != DSP_OK) {
        sys_close(mine);
    }
    return result;
}

/* Make a block inaccessible although skels still use it, as the MMU does after the host's unmap:
 * the next access ends the PD. */
static void revoke(block *b)
{
    say("the host unmapped fd %d, of which skels still hold %u mappings", b->fd,
        (unsigned) b->uses);
    int fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    sys_map(b->address, b->bytes, PROT_NONE, fixed, -1);
}

int block_detach(uint32_t id)
{
    lock_take(&table);
    block *b = block_of_id(id);
    if (b) {
        b->held = false;
        if (b->uses) {
            revoke(b);
        }
        sys_close(b->mine);
        unmap_block(b);
        b->fd = LINK_NO_FD;
        b->id = b->uses ? b->id : 0;
    }
    lock_leave(&table);
    return b ? DSP_OK : DSP_NO_MAP;
}

void *block_address(int fd, uint32_t offset, uint32_t bytes)
{
    lock_take(&table);
    const block *b = block_of_fd(fd);
    bool inside = b && b->address && offset <= b->bytes && bytes <= b->bytes - offset;
    void *address = inside ? b->address + offset : NULL;
    lock_leave(&table);
    return address;
}

/* --- HAP_mem.h ------------------------------------------------------------------------------- */

void *HAP_mmap2(void *address, size_t bytes, int protection, int flags, int fd, long offset)
{
    (void) address;
    (void) protection;
    lock_take(&table);
    block *b = block_of_fd(fd);
    const char *wrong = NULL;
    if (!b) {
        wrong = "the host has not mapped it with fastrpc_mmap";
    } else if (b->held) {
        wrong = "the host mapped it with FASTRPC_MAP_FD: use HAP_mmap_get";
    } else if (flags || offset < 0 || (uint32_t) offset > b->bytes || !bytes ||
               bytes > b->bytes - (uint32_t) offset) {
        wrong = "flags, offset or length do not fit";
    } else if (!map_block(b)) {
        wrong = "the PD's address space is full";
    }
    void *got = (void *) -1;
    if (wrong) {
        say("HAP_mmap of fd %d: %s", fd, wrong);
    } else {
        b->uses++;
        got = b->address + offset;
    }
    lock_leave(&table);
    return got;
}

void *HAP_mmap(void *address, int bytes, int protection, int flags, int fd, long offset)
{
    return HAP_mmap2(address, bytes < 0 ? 0 : (size_t) bytes, protection, flags, fd, offset);
}

int HAP_munmap2(void *address, size_t bytes)
{
    (void) bytes;
    lock_take(&table);
    block *b = block_at(address);
    bool used = b && b->uses && !b->held;
    if (used) {
        b->uses--;
        unmap_block(b);
        b->id = b->fd == LINK_NO_FD && !b->uses ? 0 : b->id;
    }
    lock_leave(&table);
    return used ? DSP_OK : DSP_NO_MAP;
}

int HAP_munmap(void *address, int bytes)
{
    return HAP_munmap2(address, (size_t) bytes);
}

int HAP_mmap_get(int fd, void **address, uint64_t *physical)
{
    lock_take(&table);
    block *b = block_of_fd(fd);
    bool there = b && b->held;
    if (there) {
        b->uses++;
        if (address) {
            *address = b->address;
        }
        if (physical) {
            *physical = 0x80000000u + (uint64_t) b->id * PAGE; /* an invented address */
        }
    }
    lock_leave(&table);
    return there ? DSP_OK : DSP_NO_MAP;
}

int HAP_mmap_put(int fd)
{
    lock_take(&table);
    block *b = block_of_fd(fd);
    bool used = b && b->held && b->uses;
    if (used) {
        b->uses--;
    }
    lock_leave(&table);
    return used ? DSP_OK : b ? DSP_BAD_REFERENCES : DSP_NO_MAP;
}

/* --- caches ---------------------------------------------------------------------------------- */

static void maintain_line(block *b, uint32_t at, int operation)
{
    uint32_t bytes = b->bytes - at < LINE ? b->bytes - at : LINE;
    uint8_t *skel = b->address + at, *host = b->window + at, *synced = b->synced + at;
    bool write = operation != CACHE_INVALIDATE;
    if (write && __builtin_memcmp(skel, synced, bytes)) {
        __builtin_memcpy(host, skel, bytes);
        __builtin_memcpy(synced, skel, bytes);
    }
    if (operation == CACHE_INVALIDATE || operation == CACHE_FLUSH_INVALIDATE) {
        __builtin_memcpy(skel, host, bytes);
        __builtin_memcpy(synced, host, bytes);
    }
}

static void maintain(block *b, uint32_t at, uint32_t bytes, int operation)
{
    uint32_t end = bytes < b->bytes - at ? at + bytes : b->bytes;
    for (at &= ~(uint32_t) (LINE - 1); at < end; at += LINE) {
        maintain_line(b, at, operation);
    }
}

void cache_maintain(void *address, uint32_t bytes, int operation)
{
    if (!shared->machine.shadow) {
        return;
    }
    lock_take(&table);
    if (operation >= CACHE_FLUSH_ALL) {
        operation = operation == CACHE_FLUSH_ALL ? CACHE_FLUSH : CACHE_FLUSH_INVALIDATE;
        for (uint32_t i = 0; i < BLOCKS; i++) {
            if (blocks[i].address != blocks[i].window) {
                maintain(&blocks[i], 0, blocks[i].bytes, operation);
            }
        }
    } else {
        block *b = block_at(address);
        if (b && b->address != b->window) {
            maintain(b, (uint32_t) address - (uint32_t) b->address, bytes, operation);
        }
    }
    lock_leave(&table);
}

int qurt_mem_cache_clean(void *address, uint32_t bytes, int operation, int cache)
{
    if (operation < CACHE_FLUSH || operation > CACHE_FLUSH_INVALIDATE_ALL || cache < 0 ||
        cache > 1) {
        return QURT_EVAL;
    }
    cache_maintain(address, bytes, operation);
    return QURT_EOK;
}
