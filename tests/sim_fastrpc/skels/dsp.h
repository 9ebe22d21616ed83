/* What a skel knows of the DSP, written from the public headers of remote.h, QuRT and HAP, and from
 * nothing of npurt's. */
#ifndef DSP_H
#define DSP_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef union {
    struct {
        void *at;
        uint32_t bytes;
    } buffer;
    uint64_t handle;
    struct {
        int fd;
        uint32_t offset;
    } dma;
} remote_arg;

enum { UNKNOWN_METHOD = (int) 0x80000414 };

void HAP_debug_v2(int level, const char *file, int line, const char *format, ...);
void *HAP_mmap(void *address, int bytes, int protection, int flags, int fd, long offset);
int HAP_munmap(void *address, int bytes);
int HAP_mmap_get(int fd, void **address, uint64_t *physical);
int HAP_mmap_put(int fd);
int HAP_power_set(void *client, void *request);
uint64_t HAP_perf_get_time_us(void);
uint64_t HAP_perf_get_pcycles(void);
void *malloc(size_t bytes);
void free(void *memory);
int snprintf(char *to, size_t bytes, const char *format, ...);

typedef struct {
    char name[16];
    uint8_t tcb_partition, stid;
    uint16_t priority;
    uint8_t flags, bus_priority;
    uint16_t timetest_id;
    uint32_t stack_size;
    void *stack_addr;
    uint16_t detach_state;
} qurt_thread_attr_t;

typedef struct {
    uint64_t opaque[2];
} qurt_object;

int qurt_thread_create(uint32_t *id, qurt_thread_attr_t *attributes, void (*entry)(void *),
                       void *argument);
void qurt_thread_exit(int status);
int qurt_thread_join(uint32_t id, int *status);
void qurt_mutex_init(qurt_object *mutex);
void qurt_mutex_lock(qurt_object *mutex);
void qurt_mutex_unlock(qurt_object *mutex);
int qurt_barrier_init(qurt_object *barrier, uint32_t threads);
int qurt_barrier_wait(qurt_object *barrier);
void qurt_sem_init_val(qurt_object *semaphore, uint16_t value);
int qurt_sem_add(qurt_object *semaphore, uint32_t amount);
int qurt_sem_down(qurt_object *semaphore);
void qurt_signal_init(qurt_object *signal);
void qurt_signal_set(qurt_object *signal, uint32_t mask);
uint32_t qurt_signal_wait(qurt_object *signal, uint32_t mask, uint32_t attribute);
int qurt_futex_wait(void *word, int value);
int qurt_futex_wake(void *word, int threads);
int qurt_timer_sleep(uint64_t microseconds);
int qurt_hvx_get_units(void);
int qurt_mem_cache_clean(void *address, uint32_t bytes, int operation, int cache);

typedef struct {
    uint64_t opaque[8];
} compute_res_attr_t;

int compute_resource_attr_init(compute_res_attr_t *request);
int compute_resource_attr_set_vtcm_param_v2(compute_res_attr_t *request, uint32_t bytes,
                                            uint32_t page, uint32_t least);
int compute_resource_attr_get_vtcm_ptr_v2(compute_res_attr_t *request, void **at, uint32_t *bytes);
int compute_resource_query_VTCM(uint32_t application, uint32_t *total, void *total_layout,
                                uint32_t *available, void *available_layout);
uint32_t compute_resource_acquire(compute_res_attr_t *request, uint32_t microseconds);
int compute_resource_release(uint32_t id);

typedef struct queue *dspqueue_t;
typedef void (*dspqueue_callback)(dspqueue_t queue, int error, void *context);
typedef struct {
    uint32_t fd, size, offset, flags;
    uint64_t address;
} dspqueue_buffer;

int dspqueue_import(uint64_t id, dspqueue_callback packet, dspqueue_callback error, void *context,
                    dspqueue_t *queue);
int dspqueue_close(dspqueue_t queue);
int dspqueue_read(dspqueue_t queue, uint32_t *flags, uint32_t most_buffers, uint32_t *buffers,
                  dspqueue_buffer *buffer, uint32_t most_bytes, uint32_t *bytes, uint8_t *message,
                  uint32_t timeout_us);
int dspqueue_read_noblock(dspqueue_t queue, uint32_t *flags, uint32_t most_buffers,
                          uint32_t *buffers, dspqueue_buffer *buffer, uint32_t most_bytes,
                          uint32_t *bytes, uint8_t *message);
int dspqueue_write(dspqueue_t queue, uint32_t flags, uint32_t buffers, dspqueue_buffer *buffer,
                   uint32_t bytes, const uint8_t *message, uint32_t timeout_us);

#endif
