/* The part of libcdsprpc's public interface that this library implements: types and calls of
 * qualcomm/fastrpc inc/remote.h, rpcmem.h and dspqueue.h, with the layout of 64-bit programs. */
#ifndef REMOTE_H
#define REMOTE_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef union {
    struct {
        void *at;
        size_t bytes;
    } buffer;
    uint64_t handle;
    struct {
        int32_t fd;
        uint32_t offset;
    } dma;
} remote_arg;

_Static_assert(sizeof(remote_arg) == 16, "as in remote.h");

EXPORT int remote_handle64_open(const char *uri, uint64_t *handle);
EXPORT int remote_handle64_invoke(uint64_t handle, uint32_t scalars, remote_arg *arguments);
EXPORT int remote_handle64_close(uint64_t handle);
EXPORT int remote_handle64_control(uint64_t handle, uint32_t request, void *data, uint32_t bytes);
EXPORT int remote_handle_open(const char *name, uint32_t *handle);
EXPORT int remote_handle_invoke(uint32_t handle, uint32_t scalars, remote_arg *arguments);
EXPORT int remote_handle_close(uint32_t handle);
EXPORT int remote_handle_control(uint32_t request, void *data, uint32_t bytes);
EXPORT int remote_session_control(uint32_t request, void *data, uint32_t bytes);
EXPORT int remote_set_mode(uint32_t mode);

EXPORT void rpcmem_init(void);
EXPORT void rpcmem_deinit(void);
EXPORT void *rpcmem_alloc(int heap, uint32_t flags, int bytes);
EXPORT void *rpcmem_alloc2(int heap, uint32_t flags, size_t bytes);
EXPORT void rpcmem_free(void *memory);
EXPORT int rpcmem_to_fd(void *memory);
EXPORT void remote_register_buf(void *memory, int bytes, int fd);
EXPORT void remote_register_buf_attr(void *memory, int bytes, int fd, int attributes);
EXPORT void remote_register_buf_attr2(void *memory, size_t bytes, int fd, int attributes);
EXPORT void *remote_register_fd(int fd, int bytes);
EXPORT void *remote_register_fd2(int fd, size_t bytes);
EXPORT int remote_register_dma_handle(int fd, uint32_t bytes);
EXPORT int remote_register_dma_handle_attr(int fd, uint32_t bytes, uint32_t attributes);

EXPORT int fastrpc_mmap(int domain, int fd, void *address, int offset, size_t bytes,
                        uint32_t flags);
EXPORT int fastrpc_munmap(int domain, int fd, void *address, size_t bytes);
EXPORT int remote_mmap(int fd, uint32_t flags, uint32_t address, int bytes, uint32_t *mapped);
EXPORT int remote_munmap(uint32_t mapped, int bytes);
EXPORT int remote_mmap64(int fd, uint32_t flags, uint64_t address, int64_t bytes, uint64_t *mapped);
EXPORT int remote_munmap64(uint64_t mapped, int64_t bytes);
EXPORT int remote_mem_map(int domain, int fd, int flags, uint64_t address, size_t bytes,
                          uint64_t *mapped);
EXPORT int remote_mem_unmap(int domain, uint64_t mapped, size_t bytes);
EXPORT int fastrpc_async_get_status(uint64_t job, int timeout_us, int *result);
EXPORT int fastrpc_release_async_job(uint64_t job);
EXPORT void HAP_debug_v2(int level, const char *file, int line, const char *format, ...);
EXPORT void HAP_debug_runtime(int level, const char *file, int line, const char *format, ...);

typedef struct dspqueue *dspqueue_t;
typedef void (*dspqueue_callback)(dspqueue_t queue, int error, void *context);

typedef struct {
    uint32_t fd, size, offset, flags;
    union {
        void *at;
        uint64_t address;
    };
} dspqueue_buffer;

_Static_assert(sizeof(dspqueue_buffer) == 24, "as in dspqueue.h");

EXPORT int dspqueue_create(int domain, uint32_t flags, uint32_t request_bytes,
                           uint32_t response_bytes, dspqueue_callback packet,
                           dspqueue_callback error, void *context, dspqueue_t *queue);
EXPORT int dspqueue_close(dspqueue_t queue);
EXPORT int dspqueue_export(dspqueue_t queue, uint64_t *id);
EXPORT int dspqueue_request(void *request);
EXPORT int dspqueue_write(dspqueue_t queue, uint32_t flags, uint32_t buffers,
                          dspqueue_buffer *buffer, uint32_t bytes, const uint8_t *message,
                          uint32_t timeout_us);
EXPORT int dspqueue_write_noblock(dspqueue_t queue, uint32_t flags, uint32_t buffers,
                                  dspqueue_buffer *buffer, uint32_t bytes, const uint8_t *message);
EXPORT int dspqueue_write_early_wakeup_noblock(dspqueue_t queue, uint32_t delay_us, uint32_t flags);
EXPORT int dspqueue_read(dspqueue_t queue, uint32_t *flags, uint32_t most_buffers,
                         uint32_t *buffers, dspqueue_buffer *buffer, uint32_t most_bytes,
                         uint32_t *bytes, uint8_t *message, uint32_t timeout_us);
EXPORT int dspqueue_read_noblock(dspqueue_t queue, uint32_t *flags, uint32_t most_buffers,
                                 uint32_t *buffers, dspqueue_buffer *buffer, uint32_t most_bytes,
                                 uint32_t *bytes, uint8_t *message);
EXPORT int dspqueue_peek(dspqueue_t queue, uint32_t *flags, uint32_t *buffers, uint32_t *bytes,
                         uint32_t timeout_us);
EXPORT int dspqueue_peek_noblock(dspqueue_t queue, uint32_t *flags, uint32_t *buffers,
                                 uint32_t *bytes);
EXPORT int dspqueue_get_stat(dspqueue_t queue, int what, uint64_t *value);

/* Serve DMA_BUF_IOCTL_SYNC for rpcmem blocks; pass every other request to the kernel. */
EXPORT int ioctl(int fd, unsigned long request, ...);

/* Calls that only the simulator has; see docs/simulators.md. */
EXPORT int npurt_sim_control(const char *settings);
EXPORT size_t npurt_sim_error(char *text, size_t bytes);
EXPORT uint64_t npurt_sim_packets(uint64_t handle);
EXPORT uint64_t npurt_sim_total_packets(int domain);
EXPORT uint64_t npurt_sim_syncs(uint64_t *bytes);
EXPORT int npurt_sim_process(int domain);
EXPORT size_t npurt_sim_log(int domain, char *text, size_t bytes);

#endif
