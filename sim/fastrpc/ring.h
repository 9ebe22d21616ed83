/*
 * Reading and writing packets of a link_ring, for both sides of a queue.  A ring has one writer and
 * one reader at a time.  Every position and length in the ring is checked, because the other
 * process may write any value there.
 */
#ifndef RING_H
#define RING_H

#include "link.h"
#include <stdbool.h>
#include <stddef.h>

enum {
    PACKET_MESSAGE = 1, /* flags of a packet: qualcomm/fastrpc inc/dspqueue.h */
    PACKET_BUFFERS = 2,
    PACKET_WAKEUP = 4,
    PACKET_USER_READY = 0x10,
    RING_BUFFERS = 64,
    RING_MESSAGE = 1 << 16,
    RING_SLOT = 8
};

typedef enum {
    RING_DONE,
    RING_WOULD_BLOCK, /* full, or empty */
    RING_TOO_SMALL,   /* the packet is larger than the caller's buffers */
    RING_TOO_LARGE,   /* the packet can never fit */
    RING_DAMAGED
} ring_result;

/* One process's private description of a ring; the other process cannot change it. */
typedef struct {
    link_ring *state;
    uint8_t *data;
    uint32_t bytes;
} ring;

typedef struct {
    uint32_t flags, buffers, bytes;
    uint32_t next; /* offset of the packet after this one */
    uint32_t body; /* offset of its buffers */
} ring_packet;

static inline uint32_t ring_padded(uint32_t bytes)
{
    return (bytes + RING_SLOT - 1) & ~(uint32_t) (RING_SLOT - 1);
}

static inline uint32_t ring_load(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static inline void ring_store(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
}

static inline bool ring_position(const ring *r, uint32_t at)
{
    return at < r->bytes && at % RING_SLOT == 0;
}

static inline uint32_t ring_used(const ring *r, uint32_t read, uint32_t written)
{
    return written >= read ? written - read : r->bytes - read + written;
}

static inline ring_result ring_put(const ring *r, uint32_t flags, uint32_t buffers,
                                   const link_buffer *buffer, uint32_t bytes,
                                   const uint8_t *message)
{
    uint32_t length = RING_SLOT + buffers * (uint32_t) sizeof(*buffer) + bytes;
    uint32_t padded = ring_padded(length), size = r->bytes;
    uint32_t at = ring_load(&r->state->written), read = ring_load(&r->state->read);
    uint8_t *data = r->data;
    if (!ring_position(r, at) || !ring_position(r, read)) {
        return RING_DAMAGED;
    }
    if (padded > size - RING_SLOT) {
        return RING_TOO_LARGE;
    }
    uint32_t left = size - RING_SLOT - ring_used(r, read, at);
    bool wraps = size - at < padded;
    if (left < padded || (wraps && left - (size - at) < padded) || (wraps && left < size - at)) {
        return RING_WOULD_BLOCK;
    }
    flags |= (bytes ? PACKET_MESSAGE : 0) | (buffers ? PACKET_BUFFERS : 0);
    uint64_t header = length | (uint64_t) (flags & 0xffff) << 32 | (uint64_t) buffers << 48 |
                      (uint64_t) (ring_load(&r->state->packets_written) & 0xff) << 56;
    __builtin_memcpy(data + at, &header, RING_SLOT);
    at = wraps ? 0 : at;
    __builtin_memcpy(data + at, &header, RING_SLOT);
    uint8_t *body = data + at + RING_SLOT;
    if (buffers) {
        __builtin_memcpy(body, buffer, buffers * sizeof(*buffer));
    }
    if (bytes) {
        __builtin_memcpy(body + buffers * sizeof(*buffer), message, bytes);
    }
    at += padded;
    ring_store(&r->state->written, at == size ? 0 : at);
    __atomic_add_fetch(&r->state->packets_written, 1, __ATOMIC_SEQ_CST);
    return RING_DONE;
}

/* Describe the next packet without removing it. */
static inline ring_result ring_look(const ring *r, ring_packet *packet)
{
    uint32_t at = ring_load(&r->state->read), written = ring_load(&r->state->written);
    uint32_t size = r->bytes;
    if (!ring_position(r, at) || !ring_position(r, written)) {
        return RING_DAMAGED;
    }
    if (at == written) {
        return RING_WOULD_BLOCK;
    }
    uint64_t header;
    __builtin_memcpy(&header, r->data + at, RING_SLOT);
    uint32_t length = (uint32_t) header, buffers = (uint32_t) (header >> 48 & 0xff);
    uint32_t least = RING_SLOT + buffers * (uint32_t) sizeof(link_buffer);
    if (buffers > RING_BUFFERS || length < least || length > size - RING_SLOT) {
        return RING_DAMAGED;
    }
    uint32_t padded = ring_padded(length);
    at = size - at < padded ? 0 : at;
    packet->flags = (uint32_t) (header >> 32 & 0xffff);
    packet->buffers = buffers;
    packet->bytes = length - least;
    packet->body = at + RING_SLOT;
    packet->next = at + padded == size ? 0 : at + padded;
    return RING_DONE;
}

/* Remove the next packet: copy at most *most_buffers* buffers to *buffer* and *most_bytes* bytes to
 * *message*. */
static inline ring_result ring_take(const ring *r, ring_packet *packet, uint32_t most_buffers,
                                    link_buffer *buffer, uint32_t most_bytes, uint8_t *message)
{
    ring_result result = ring_look(r, packet);
    if (result != RING_DONE) {
        return result;
    }
    if (packet->buffers > most_buffers || packet->bytes > most_bytes) {
        return RING_TOO_SMALL;
    }
    uint32_t bytes = packet->buffers * (uint32_t) sizeof(*buffer);
    if (bytes) {
        __builtin_memcpy(buffer, r->data + packet->body, bytes);
    }
    if (packet->bytes) {
        __builtin_memcpy(message, r->data + packet->body + bytes, packet->bytes);
    }
    ring_store(&r->state->read, packet->next);
    __atomic_add_fetch(&r->state->packets_read, 1, __ATOMIC_SEQ_CST);
    return RING_DONE;
}

#endif
