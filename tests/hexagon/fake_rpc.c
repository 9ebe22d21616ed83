/*
 * A libcdsprpc that does as it is told: for answers that the simulator has no reason to give.
 *
 * fake_answer(call, code, errno, times) makes the next calls of that name fail; a negative number
 * means all.  fake_delay(call, ms) makes the next calls slow, and fake_release(call) ends the
 * wait of calls that have begun.  fake_count(call) returns the number of calls.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#pragma GCC visibility push(default)

enum { CALLS = 64, BLOCKS = 256 };

static struct call {
    char name[40];
    int code, error, times, count;
    long delay_ms;
    volatile int released;
} calls[CALLS];

static struct call *call(const char *name)
{
    for (int i = 0; i < CALLS; i++) {
        if (!calls[i].name[0]) {
            snprintf(calls[i].name, sizeof calls[i].name, "%s", name);
        }
        if (!strcmp(calls[i].name, name)) {
            return &calls[i];
        }
    }
    abort();
}

static int reserved;

void fake_reset(void)
{
    reserved = 0;
    memset(calls, 0, sizeof calls);
}

void fake_answer(const char *name, int code, int error, int times)
{
    struct call *c = call(name);
    c->code = code, c->error = error, c->times = times;
}

void fake_delay(const char *name, long ms)
{
    call(name)->delay_ms = ms;
}

void fake_release(const char *name)
{
    call(name)->released++;
}

int fake_count(const char *name)
{
    return call(name)->count;
}

/* Count a call, wait if told to, and return what it must answer. */
static int arrive(const char *name)
{
    struct call *c = call(name);
    c->count++;
    const int released = c->released;
    for (long ms = c->delay_ms; ms > 0 && c->released == released; ms--) {
        struct timespec t = {0, 1000000};
        while (nanosleep(&t, &t) && errno == EINTR) {
            call("interrupted")->count++;
        }
    }
    if (!c->times) {
        return 0;
    }
    c->times -= c->times > 0;
    errno = c->error;
    return c->code;
}

/* --- sessions --------------------------------------------------------------------------------- */

typedef union {
    struct {
        void *pv;
        size_t nLen;
    } buf;
    uint64_t h64;
} argument;

static char opened[1024];

const char *fake_opened(void)
{
    return opened;
}

int remote_handle64_open(const char *uri, uint64_t *handle)
{
    int code = arrive("open");
    snprintf(opened, sizeof opened, "%s", uri);
    if (!code) {
        *handle = call("no handle")->code ? 0 : 0x7f1200345678u; /* does not fit 32 bits */
    }
    return code;
}

int remote_handle64_invoke(uint64_t handle, uint32_t scalars, argument *a)
{
    static uint64_t mask = 0x9E3779B97F4A7C15u;
    char name[16];
    snprintf(name, sizeof name, "invoke%u", scalars >> 24);
    call("invoke")->count++;
    int code = arrive(name);
    if (code || handle != 0x7f1200345678u) {
        return code;
    }
    if (scalars >> 24 == 2) {
        *(uint64_t *) a[1].buf.pv = *(uint64_t *) a[0].buf.pv ^ mask;
    }
    if (scalars >> 24 == 3) {
        uint32_t info[] = {3 + call("protocol")->code, 68, 2, 4, 0, 1, 15, 0};
        memcpy(a[0].buf.pv, info, sizeof info);
    }
    return 0;
}

int remote_handle64_close(uint64_t handle)
{
    (void) handle;
    return arrive("close");
}

#ifndef OLD
int remote_handle64_control(uint64_t handle, uint32_t request, void *data, uint32_t nbytes)
{
    (void) handle, (void) request, (void) data, (void) nbytes;
    return arrive("control");
}

int remote_handle_control(uint32_t request, void *data, uint32_t nbytes)
{
    static const uint32_t answers[] = {1, 1, 1, 4, 0x400000, 2, 0xdead68, 0, 0};
    uint32_t *info = data;
    int code = arrive("info");
    if (!code && request == 2 && nbytes == 12) {
        info[2] = answers[info[1]];
    }
    return code;
}

#endif

int remote_session_control(uint32_t request, void *data, uint32_t nbytes)
{
    char name[24];
    char *bytes = data;
    snprintf(name, sizeof name, "session%u", request);
    int code = arrive(name);
    if (code) {
        return code;
    }
    if (request == 13 && nbytes == 40) {
        uint32_t id = (uint32_t) ++reserved, domain = 3 + 8 * id;
        memcpy(bytes + 28, &domain, 4);
        memcpy(bytes + 32, &id, 4);
        return id > 3 ? 0x8a : 0;
    }
    if (request == 15 && nbytes == 48) {
        uint32_t id;
        char *module, *uri;
        memcpy(&id, bytes + 12, 4);
        memcpy(&module, bytes + 16, 8);
        memcpy(&uri, bytes + 32, 8);
        sprintf(uri, "%s&_dom=cdsp&_session=%u", module, id);
    }
    return 0;
}

/* --- memory ----------------------------------------------------------------------------------- */

static struct {
    void *memory;
    size_t nbytes;
    int fd;
} blocks[BLOCKS];

static void *allocate(size_t nbytes)
{
    int code = arrive("alloc");
    if (code) {
        return (void *) (intptr_t) (code == 1 ? 0 : -1);
    }
    for (int i = 0; i < BLOCKS; i++) {
        if (!blocks[i].memory) {
            int fd = memfd_create("fake", 0);
            ftruncate(fd, (off_t) nbytes);
            blocks[i].memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            blocks[i].nbytes = nbytes, blocks[i].fd = fd;
            return blocks[i].memory;
        }
    }
    return NULL;
}

#ifndef OLD
void *rpcmem_alloc2(int heap, uint32_t flags, size_t nbytes)
{
    (void) heap, (void) flags;
    return allocate(nbytes);
}
#endif

void *rpcmem_alloc(int heap, uint32_t flags, int nbytes)
{
    (void) heap, (void) flags;
    return allocate((size_t) nbytes);
}

void rpcmem_free(void *memory)
{
    arrive("free");
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i].memory == memory) {
            munmap(memory, blocks[i].nbytes);
            close(blocks[i].fd);
            blocks[i].memory = NULL;
        }
    }
}

int rpcmem_to_fd(void *memory)
{
    if (arrive("to_fd")) {
        return -1;
    }
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i].memory == memory) {
            return blocks[i].fd;
        }
    }
    return -1;
}

/* DMA_BUF_IOCTL_SYNC; another request, and one of a block that is none, is an error. */
int ioctl(int fd, unsigned long request, ...)
{
    va_list arguments;
    va_start(arguments, request);
    const uint64_t *flags = va_arg(arguments, const uint64_t *);
    va_end(arguments);
    char name[24];
    snprintf(name, sizeof name, "sync%u", (unsigned) *flags);
    int known = 0;
    for (int i = 0; i < BLOCKS; i++) {
        known |= blocks[i].memory && blocks[i].fd == fd;
    }
    if (!known || request != (1u << 30 | 8u << 16 | 'b' << 8)) {
        errno = ENOTTY;
        return -1;
    }
    call(name)->count++;
    return arrive("sync") ? -1 : 0;
}

int fastrpc_mmap(int domain, int fd, void *address, int offset, size_t nbytes, uint32_t flags)
{
    (void) domain, (void) fd, (void) address, (void) offset, (void) nbytes, (void) flags;
    return arrive("mmap");
}

int fastrpc_munmap(int domain, int fd, void *address, size_t nbytes)
{
    (void) domain, (void) fd, (void) address, (void) nbytes;
    return arrive("munmap");
}
