/* dspqueue on the DSP. Source: qualcomm/fastrpc inc/dspqueue.h, whose dspqueue_import exists only
 * on the DSP. */
#ifndef QUEUE_H
#define QUEUE_H

#include "shell.h"

typedef struct queue queue;
typedef void (*queue_callback)(queue *q, int error, void *context);

int dspqueue_import(uint64_t id, queue_callback packet, queue_callback error, void *context,
                    queue **imported);
int dspqueue_close(queue *q);
int dspqueue_write(queue *q, uint32_t flags, uint32_t buffers, link_buffer *buffer, uint32_t bytes,
                   const uint8_t *message, uint32_t microseconds);
int dspqueue_write_noblock(queue *q, uint32_t flags, uint32_t buffers, link_buffer *buffer,
                           uint32_t bytes, const uint8_t *message);
int dspqueue_write_early_wakeup_noblock(queue *q, uint32_t microseconds, uint32_t flags);
int dspqueue_read(queue *q, uint32_t *flags, uint32_t most_buffers, uint32_t *buffers,
                  link_buffer *buffer, uint32_t most_bytes, uint32_t *bytes, uint8_t *message,
                  uint32_t microseconds);
int dspqueue_read_noblock(queue *q, uint32_t *flags, uint32_t most_buffers, uint32_t *buffers,
                          link_buffer *buffer, uint32_t most_bytes, uint32_t *bytes,
                          uint8_t *message);
int dspqueue_peek(queue *q, uint32_t *flags, uint32_t *buffers, uint32_t *bytes,
                  uint32_t microseconds);
int dspqueue_peek_noblock(queue *q, uint32_t *flags, uint32_t *buffers, uint32_t *bytes);

#endif
