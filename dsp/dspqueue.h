/*
 * Message queues between the host and the DSP.  Source: qualcomm/fastrpc inc/dspqueue.h;
 * dspqueue_import exists only on the DSP.  The functions are weak, because firmware before 2021
 * does not have them.
 */
#ifndef NPURT_DSPQUEUE_H
#define NPURT_DSPQUEUE_H

#include <stdint.h>

typedef struct dspqueue *dspqueue_t;
typedef void (*dspqueue_callback_t)(dspqueue_t queue, int error, void *context);
struct dspqueue_buffer;

enum { DSPQUEUE_WOULD_BLOCK = 516 }; /* AEE_EWOULDBLOCK, without the DSP's offset */

#define DSPQUEUE_API __attribute__((weak))

DSPQUEUE_API int dspqueue_import(uint64_t id, dspqueue_callback_t packet, dspqueue_callback_t error,
                                 void *context, dspqueue_t *queue);
DSPQUEUE_API int dspqueue_close(dspqueue_t queue);
DSPQUEUE_API int dspqueue_read_noblock(dspqueue_t queue, uint32_t *flags, uint32_t max_buffers,
                                       uint32_t *num_buffers, struct dspqueue_buffer *buffers,
                                       uint32_t max_message, uint32_t *message_bytes,
                                       uint8_t *message);
DSPQUEUE_API int dspqueue_write(dspqueue_t queue, uint32_t flags, uint32_t num_buffers,
                                struct dspqueue_buffer *buffers, uint32_t message_bytes,
                                const uint8_t *message, uint32_t timeout_us);

#endif
