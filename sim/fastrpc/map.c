/* Memory mapped to the DSP by fastrpc_mmap or for a call. */
#define _GNU_SOURCE
#include "sim.h"
#include <string.h>
#include <sys/stat.h>

enum { MAP_STATIC = 0, MAP_RESERVED = 1, MAP_FD = 2, MAP_FD_DELAYED = 3, MAP_FD_NOMAP = 16 };
enum { REMOTE_MAP_FLAGS = 1 };         /* REMOTE_MAP_MEM_STATIC alone */
#define DMA_SPACE ((uint64_t) 1 << 32) /* bytes that the DSP's MMU can address */

mapping *map_find(session *s, int fd)
{
    for (int i = 0; i < MAPPINGS; i++) {
        mapping *m = &s->map[i];
        if (m->id && m->ready && !m->argument && m->fd == fd) {
            return m;
        }
    }
    return NULL;
}

static mapping *free_mapping(session *s)
{
    for (int i = 0; i < MAPPINGS; i++) {
        if (!s->map[i].id) {
            return &s->map[i];
        }
    }
    return NULL;
}

static uint64_t attached_bytes(const session *s)
{
    uint64_t total = 0;
    for (int i = 0; i < MAPPINGS; i++) {
        total += s->map[i].id ? s->map[i].bytes : 0;
    }
    return total;
}

/* --- requests to the shell ------------------------------------------------------------------- */

static int detach(session *s, channel *l, uint32_t id)
{
    channel_link(s, l)->value[0] = id;
    return channel_call(s, l, LINK_DETACH);
}

/* Detach blocks that were attached for calls and that no call uses now; true if there was one. */
static bool evict(session *s, channel *l)
{
    bool some = false;
    for (int i = 0; i < MAPPINGS; i++) {
        pthread_mutex_lock(&sim_lock);
        mapping *m = &s->map[i];
        uint32_t id = m->argument && m->ready && m->users == 0 ? m->id : 0;
        m->id = id ? 0 : m->id;
        pthread_mutex_unlock(&sim_lock);
        if (id) {
            detach(s, l, id);
            some = true;
        }
    }
    return some;
}

static int try_attach(session *s, channel *l, mapping *m, int fd, bool map)
{
    uint32_t *value = channel_link(s, l)->value;
    value[0] = m->id;
    value[1] = (uint32_t) (m->argument ? LINK_NO_FD : m->fd);
    value[2] = (uint32_t) m->bytes;
    value[3] = map;
    int result = channel_call_with(s, l, LINK_ATTACH, fd);
    m->address = result == AEE_SUCCESS ? value[0] : 0;
    return result;
}

static int attach(session *s, channel *l, mapping *m, int fd, bool map)
{
    int result = try_attach(s, l, m, fd, map);
    if (result != AEE_SUCCESS && !load(&s->ended) && evict(s, l)) {
        result = try_attach(s, l, m, fd, map);
    }
    return result;
}

/* Mark a mapping ready after a successful attach, or free after a failed one. */
static void settle(mapping *m, int result)
{
    pthread_mutex_lock(&sim_lock);
    m->ready = result == AEE_SUCCESS;
    m->id = m->ready ? m->id : 0;
    pthread_cond_broadcast(&sim_changed);
    pthread_mutex_unlock(&sim_lock);
}

/* --- fastrpc_mmap ---------------------------------------------------------------------------- */

/* Set *s to the session of a domain, live or dead; return AEE_SUCCESS, or an error code if there is
 * none. */
static int open_session(int domain, int fd, session **s)
{
    domain = domain == -1 ? CDSP : domain;
    *s = session_of(domain);
    if (fd < 0 || domain < 0 || domain >= DOMAINS * SESSIONS) {
        return AEE_EBADPARM;
    }
    return !*s || (*s)->state == IDLE || (*s)->state == STARTING ? AEE_ENOTINITIALIZED
                                                                 : AEE_SUCCESS;
}

static int check_map(session *s, int fd, size_t bytes, uint32_t flags)
{
    struct stat about;
    uint32_t code;
    if (map_find(s, fd)) {
        return AEE_EALREADY; /* also if the session is dead */
    }
    if (s->state != LIVE) {
        return AEE_EFAILED;
    }
    if (flags != MAP_STATIC && flags != MAP_FD && flags != MAP_FD_DELAYED &&
        flags != MAP_FD_NOMAP) {
        return AEE_EFAILED; /* unknown to the DSP */
    }
    if (fault_due(FAULT_MAP, &code)) {
        return (int) code;
    }
    if (fstat(fd, &about) || bytes == 0 || bytes > (uint64_t) about.st_size ||
        attached_bytes(s) + bytes >= DMA_SPACE) {
        return AEE_EFAILED; /* the code of every refusal by the kernel */
    }
    return AEE_SUCCESS;
}

/* Undo channel_take(), unless *l* is NULL, and session_enter(). */
static void leave(session *s, channel *l)
{
    if (l) {
        channel_leave(s, l);
    }
    pthread_mutex_lock(&sim_lock);
    session_leave(s);
    pthread_mutex_unlock(&sim_lock);
}

int fastrpc_mmap(int domain, int fd, void *address, int offset, size_t bytes, uint32_t flags)
{
    (void) address;
    if (offset != 0 || flags == MAP_RESERVED || flags > MAP_FD_NOMAP) {
        return AEE_EBADPARM;
    }
    session *s;
    pthread_mutex_lock(&sim_lock);
    int result = open_session(domain, fd, &s);
    result = result == AEE_SUCCESS ? check_map(s, fd, bytes, flags) : result;
    mapping *m = result == AEE_SUCCESS ? free_mapping(s) : NULL;
    int memory_fd = fd;
    if (m) {
        const block *b = block_of_fd(fd);
        *m = (mapping){.id = channel_block_id(s), .fd = fd, .bytes = bytes};
        if (b) {
            m->serial = b->serial;
            memory_fd = b->memory_fd;
            block_all_to_dsp(b);
        }
        session_enter(s);
    }
    pthread_mutex_unlock(&sim_lock);
    if (!m) {
        return result == AEE_SUCCESS ? AEE_EFAILED : result;
    }
    channel *l = channel_take(s);
    result = l ? attach(s, l, m, memory_fd, flags == MAP_FD || flags == MAP_STATIC) : AEE_EFAILED;
    settle(m, result);
    leave(s, l);
    return result == AEE_SUCCESS ? AEE_SUCCESS : AEE_EFAILED;
}

int fastrpc_munmap(int domain, int fd, void *address, size_t bytes)
{
    (void) address;
    (void) bytes;
    session *s;
    pthread_mutex_lock(&sim_lock);
    int result = open_session(domain, fd, &s);
    result = result == AEE_SUCCESS && s->state != LIVE ? AEE_EFAILED : result;
    mapping *m = result == AEE_SUCCESS ? map_find(s, fd) : NULL;
    if (result == AEE_SUCCESS) {
        result = !m ? AEE_ENOSUCHMAP : m->references ? AEE_EBADPARM : AEE_SUCCESS;
    }
    uint32_t id = m ? m->id : 0;
    if (result == AEE_SUCCESS) {
        m->id = 0;
        session_enter(s);
    }
    pthread_mutex_unlock(&sim_lock);
    if (result != AEE_SUCCESS) {
        return result;
    }
    channel *l = channel_take(s);
    result = l ? detach(s, l, id) : AEE_EFAILED;
    leave(s, l);
    pthread_mutex_lock(&sim_lock);
    const block *b = block_of_fd(fd);
    if (b) {
        block_all_to_host(b);
    }
    pthread_mutex_unlock(&sim_lock);
    return result == AEE_SUCCESS ? AEE_SUCCESS : AEE_EFAILED;
}

/* --- maps by address ------------------------------------------------------------------------- */

/* Return the descriptor that is mapped at *address* of the DSP, or -1. */
static int fd_at(const session *s, uint64_t address)
{
    for (int i = 0; i < MAPPINGS; i++) {
        const mapping *m = &s->map[i];
        if (m->id && m->ready && !m->argument && m->address && m->address == address) {
            return m->fd;
        }
    }
    return -1;
}

int remote_mmap64(int fd, uint32_t flags, uint64_t address, int64_t bytes, uint64_t *mapped)
{
    if (flags != MAP_STATIC || fd < 0 || bytes < 0 || !mapped) {
        return AEE_EBADPARM;
    }
    void *at = (void *) (uintptr_t) address;
    int result = fastrpc_mmap(CDSP, fd, at, 0, (size_t) bytes, MAP_STATIC);
    if (result == AEE_SUCCESS) {
        pthread_mutex_lock(&sim_lock);
        const mapping *m = map_find(session_of(CDSP), fd);
        *mapped = m ? m->address : 0;
        pthread_mutex_unlock(&sim_lock);
    }
    return result;
}

int remote_munmap64(uint64_t mapped, int64_t bytes)
{
    session *s;
    pthread_mutex_lock(&sim_lock);
    int result = open_session(CDSP, 0, &s);
    int fd = result == AEE_SUCCESS ? fd_at(s, mapped) : -1;
    pthread_mutex_unlock(&sim_lock);
    if (result != AEE_SUCCESS) {
        return result;
    }
    return fd < 0 ? AEE_EBADPARM : fastrpc_munmap(CDSP, fd, NULL, (size_t) bytes);
}

int remote_mmap(int fd, uint32_t flags, uint32_t address, int bytes, uint32_t *mapped)
{
    uint64_t at = 0;
    int result = remote_mmap64(fd, flags, address, bytes, mapped ? &at : NULL);
    if (result == AEE_SUCCESS) {
        *mapped = (uint32_t) at;
    }
    return result;
}

int remote_munmap(uint32_t mapped, int bytes)
{
    return remote_munmap64(mapped, bytes);
}

/* Return the code of a request that the upstream driver refuses, or of a missing session. */
static int refused(int domain)
{
    session *s;
    pthread_mutex_lock(&sim_lock);
    int result = open_session(domain, 0, &s);
    pthread_mutex_unlock(&sim_lock);
    return result == AEE_SUCCESS ? AEE_EBADPARM : result;
}

int remote_mem_map(int domain, int fd, int flags, uint64_t address, size_t bytes, uint64_t *mapped)
{
    (void) address;
    (void) bytes;
    bool good = fd >= 0 && flags >= 0 && flags < REMOTE_MAP_FLAGS && mapped;
    return good ? refused(domain) : AEE_EBADPARM;
}

int remote_mem_unmap(int domain, uint64_t mapped, size_t bytes)
{
    (void) bytes;
    return mapped ? refused(domain) : AEE_EBADPARM;
}

/* --- arguments ------------------------------------------------------------------------------- */

/* Return a mapping of the block *serial* that calls can use, even if its attach is still running;
 * NULL: there is none. */
static mapping *mapping_of_block(session *s, uint32_t serial)
{
    bool shadow = s->link->machine.shadow; /* then only mappings made for arguments are coherent */
    for (int i = 0; i < MAPPINGS; i++) {
        mapping *m = &s->map[i];
        bool fits = m->argument || (m->ready && m->address && !shadow);
        if (m->id && m->serial == serial && fits) {
            return m;
        }
    }
    return NULL;
}

/* Find the mapping of a block.  If there is none, reserve one and set *reserved: the caller must
 * attach it. sim_lock held. */
static mapping *find_or_reserve(session *s, const block *b, bool *reserved)
{
    mapping *m = mapping_of_block(s, b->serial);
    while (m && !m->ready && !load(&s->ended)) {
        pthread_cond_wait(&sim_changed, &sim_lock);
        m = mapping_of_block(s, b->serial);
    }
    *reserved = m == NULL;
    if (!m) {
        m = free_mapping(s);
        if (m) {
            *m = (mapping){.id = channel_block_id(s), .serial = b->serial, .fd = b->fd};
            m->bytes = b->bytes;
            m->argument = true;
        }
    }
    if (m) {
        m->users++;
    }
    return m;
}

int map_argument(session *s, channel *l, const block *b, uint32_t *address, mapping **used)
{
    bool reserved;
    *used = NULL;
    pthread_mutex_lock(&sim_lock);
    mapping *m = find_or_reserve(s, b, &reserved);
    pthread_mutex_unlock(&sim_lock);
    if (!m && evict(s, l)) {
        pthread_mutex_lock(&sim_lock);
        m = find_or_reserve(s, b, &reserved);
        pthread_mutex_unlock(&sim_lock);
    }
    if (!m) {
        return AEE_ENOMEMORY;
    }
    int result = AEE_SUCCESS;
    *address = m->address;
    if (reserved) {
        result = b->bytes < DMA_SPACE ? attach(s, l, m, b->memory_fd, true) : AEE_ENOMEMORY;
        *address = m->address;
        settle(m, result); /* after a failure the mapping is free again */
    }
    *used = result == AEE_SUCCESS ? m : NULL;
    return result;
}

/* Detach the mapping of a block that is freed, and leave the session. */
static void forget_in(session *s, uint32_t id)
{
    channel *l = channel_take(s);
    if (l) {
        detach(s, l, id);
    }
    leave(s, l);
}

void map_forget(uint32_t serial)
{
    for (int i = 0; i < SESSIONS; i++) {
        session *s = &sessions[i];
        uint32_t id = 0;
        pthread_mutex_lock(&sim_lock);
        for (int k = 0; k < MAPPINGS && s->state == LIVE; k++) {
            mapping *m = &s->map[k];
            if (!m->id || m->serial != serial) {
                continue;
            }
            m->serial = 0;
            if (!m->argument && !settings()->faithful) {
                report(
                    "rpcmem_free of fd %d while domain %d has it mapped: call fastrpc_munmap first",
                    m->fd, s->domain);
            } else if (m->argument && m->users == 0) {
                id = m->id;
                m->id = 0;
                session_enter(s);
            }
        }
        pthread_mutex_unlock(&sim_lock);
        if (id) {
            forget_in(s, id);
        }
    }
}
