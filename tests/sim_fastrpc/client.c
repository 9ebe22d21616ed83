/*
 * A program that uses libcdsprpc, written from its public headers alone: finds the functions of the
 * library it is given, asks for an unsigned PD, opens a skel, calls it with memory of both kinds,
 * maps, uses a queue and closes.  Prints what it got; tests/sim_fastrpc/test_client.py reads it.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    void *pv;
    size_t nLen;
} remote_buf;

typedef union {
    remote_buf buf;
    uint32_t h;
    uint64_t h64;
    struct {
        int32_t fd;
        uint32_t offset;
    } dma;
} remote_arg;

struct dspqueue_buffer {
    uint32_t fd, size, offset, flags;
    union {
        void *ptr;
        uint64_t address;
    };
};

typedef struct dspqueue *dspqueue_t;
typedef void (*queue_callback)(dspqueue_t, int, void *);

static int (*session_control)(uint32_t, void *, uint32_t);
static int (*handle_control)(uint32_t, void *, uint32_t);
static int (*handle64_open)(const char *, uint64_t *);
static int (*handle64_invoke)(uint64_t, uint32_t, remote_arg *);
static int (*handle64_close)(uint64_t);
static void *(*mem_alloc)(int, uint32_t, int);
static void (*mem_free)(void *);
static int (*mem_to_fd)(void *);
static int (*rpc_mmap)(int, int, void *, int, size_t, uint32_t);
static int (*rpc_munmap)(int, int, void *, size_t);
static int (*queue_create)(int, uint32_t, uint32_t, uint32_t, queue_callback, queue_callback,
                           void *, dspqueue_t *);
static int (*queue_export)(dspqueue_t, uint64_t *);
static int (*queue_write)(dspqueue_t, uint32_t, uint32_t, struct dspqueue_buffer *, uint32_t,
                          const uint8_t *, uint32_t);
static int (*queue_read)(dspqueue_t, uint32_t *, uint32_t, uint32_t *, struct dspqueue_buffer *,
                         uint32_t, uint32_t *, uint8_t *, uint32_t);
static int (*queue_close)(dspqueue_t);

static const struct {
    const char *name;
    void *to;
} functions[] = {
    {"remote_session_control", &session_control},
    {"remote_handle_control", &handle_control},
    {"remote_handle64_open", &handle64_open},
    {"remote_handle64_invoke", &handle64_invoke},
    {"remote_handle64_close", &handle64_close},
    {"rpcmem_alloc", &mem_alloc},
    {"rpcmem_free", &mem_free},
    {"rpcmem_to_fd", &mem_to_fd},
    {"fastrpc_mmap", &rpc_mmap},
    {"fastrpc_munmap", &rpc_munmap},
    {"dspqueue_create", &queue_create},
    {"dspqueue_export", &queue_export},
    {"dspqueue_write", &queue_write},
    {"dspqueue_read", &queue_read},
    {"dspqueue_close", &queue_close},
};

static int load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("%s\n", dlerror());
        return 1;
    }
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *found = dlsym(library, functions[i].name);
        if (!found) {
            printf("no %s\n", functions[i].name);
            return 1;
        }
        memcpy(functions[i].to, &found, sizeof(found));
    }
    return 0;
}

enum { CDSP = 3, BYTES = 8192, FD_DELAYED = 3 };
enum { INVERT = 2, SUM_MAPPED = 4, IMPORT = 2, FORGET = 3 }; /* methods of the test's skels */

static uint64_t open_skel(const char *uri)
{
    uint64_t handle = 0;
    printf("open %#x\n", (unsigned) handle64_open(uri, &handle));
    return handle;
}

/* One in and one out buffer. */
static int call(uint64_t handle, uint32_t method, void *in, size_t in_bytes, void *out,
                size_t out_bytes)
{
    remote_arg arguments[2] = {{.buf = {in, in_bytes}}, {.buf = {out, out_bytes}}};
    return handle64_invoke(handle, method << 24 | 1u << 16 | (out ? 1u << 8 : 0), arguments);
}

static void use_memory(uint64_t handle)
{
    uint8_t in[4] = {1, 2, 3, 4}, out[4] = {0};
    int code = call(handle, INVERT, in, sizeof(in), out, sizeof(out));
    printf("copied %d: %d %d %d %d\n", code, out[0], out[1], out[2], out[3]);

    uint8_t *block = mem_alloc(25, 1, BYTES);
    int fd = mem_to_fd(block);
    memset(block, 1, BYTES);
    code = call(handle, INVERT, block, 4, block + 4096, 4);
    printf("shared %d: %d\n", code, block[4096]);

    printf("mmap %d\n", rpc_mmap(CDSP, fd, block, 0, BYTES, FD_DELAYED));
    uint32_t words[3] = {(uint32_t) fd, BYTES, 0}, sum = 0;
    code = call(handle, SUM_MAPPED, words, sizeof(words), &sum, sizeof(sum));
    printf("mapped %d: %u, first %d\n", code, (unsigned) sum, block[0]);
    printf("munmap %d\n", rpc_munmap(CDSP, fd, block, BYTES));
    mem_free(block);
}

static void use_queue(uint64_t handle)
{
    dspqueue_t queue = NULL;
    uint64_t id = 0;
    printf("queue %d\n", queue_create(CDSP, 0, 0, 0, NULL, NULL, NULL, &queue));
    queue_export(queue, &id);
    uint32_t words[2] = {(uint32_t) id, 1}, flags, buffers, bytes;
    struct dspqueue_buffer buffer[4];
    uint8_t message[64] = "HAL";
    printf("import %d\n", call(handle, IMPORT, words, sizeof(words), NULL, 0));
    int code = queue_write(queue, 0, 0, NULL, 3, message, 1000000);
    printf("write %d\n", code);
    code =
        queue_read(queue, &flags, 4, &buffers, buffer, sizeof(message), &bytes, message, 10000000);
    printf("read %d: %.*s flags %#x\n", code, (int) bytes, (const char *) message,
           (unsigned) flags);
    call(handle, FORGET, words, sizeof(words), NULL, 0);
    printf("close queue %d\n", queue_close(queue));
}

int main(int count, char **arguments)
{
    if (count < 2 || load(arguments[1])) {
        return 1;
    }
    uint32_t arch[3] = {CDSP, 6, 0};
    printf("info %d: v%x\n", handle_control(2, arch, sizeof(arch)), (unsigned) arch[2]);
    int unsigned_pd[2] = {CDSP, 1};
    printf("unsigned %d\n", session_control(2, unsigned_pd, sizeof(unsigned_pd)));
    uint64_t probe = open_skel("file:///libprobe_skel.so?probe_skel_handle_invoke"
                               "&_modver=1.0&_dom=cdsp");
    uint64_t packets = open_skel("file:///libpackets_skel.so?packets_skel_handle_invoke"
                                 "&_modver=1.0&_dom=cdsp");
    use_memory(probe);
    use_queue(packets);
    printf("close %d %d\n", handle64_close(packets), handle64_close(probe));
    return 0;
}
