/*
 * Move packets between the rings of a library's queue and the simulator's queue (`twin`).
 *
 * A packet is a header of 8 bytes (total bytes, flags << 32, buffers << 48, serial << 56), its
 * buffers and its message, each at a multiple of 8.  If a packet does not fit before the end of the
 * ring, its header is written there and again at the start of the ring, and the rest follows the
 * second header.  Source: qualcomm/fastrpc inc/dspqueue_shared.h.
 */
#define _GNU_SOURCE
#include "kernel.h"
#include <stdlib.h>
#include <string.h>

enum { HAS_MESSAGE = 1, HAS_BUFFERS = 2, USER_READY = 0x10 };
enum { MOST_MESSAGE = 65536, MOST_BUFFERS = 64, HEAD = 8, BUFFER = sizeof(packet_buffer) };
enum { LATE = 0xc, WRITE_US = 100000, READ_US = 50000 };

typedef struct {
    uint8_t *at;
    uint32_t bytes;
    queue_state *reader, *writer;
} ring;

typedef struct {
    uint32_t flags, buffers, bytes;
    packet_buffer buffer[MOST_BUFFERS];
    uint8_t message[MOST_MESSAGE];
} packet;

static ring ring_of(const queue *q, int which)
{
    uint8_t *start = (uint8_t *) q->header;
    return (ring){start + q->header->ring[which].at, q->header->ring[which].bytes,
                  (queue_state *) (start + q->header->ring[which].reader),
                  (queue_state *) (start + q->header->ring[which].writer)};
}

static uint32_t load(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

/* Return the position in the ring after *bytes* bytes at *at*. */
static uint32_t step(const ring *r, uint32_t at, uint32_t bytes)
{
    at += (bytes + 7) & ~7u;
    return at >= r->bytes ? 0 : at;
}

/* --- from the library to the DSP ------------------------------------------------------------- */

/* Wait for a packet; false: the queue has ended. */
static bool await_packet(const queue *q, const ring *r)
{
    while (!q->stop && load(&r->writer->at) == r->reader->at) {
        __atomic_add_fetch(&r->reader->waits, 1, __ATOMIC_SEQ_CST);
        if (load(&r->writer->at) == r->reader->at && !q->stop) {
            queue_nap();
        }
        __atomic_sub_fetch(&r->reader->waits, 1, __ATOMIC_SEQ_CST);
    }
    return !q->stop;
}

static void take(const ring *r, packet *p)
{
    uint64_t head;
    uint32_t at = r->reader->at;
    memcpy(&head, r->at + at, HEAD);
    p->flags = head >> 32 & 0xffff;
    p->buffers = p->flags & HAS_BUFFERS ? head >> 48 & 0xff : 0;
    p->bytes = p->flags & HAS_MESSAGE ? (uint32_t) head - HEAD - BUFFER * p->buffers : 0;
    at = r->bytes - at < (uint32_t) head ? HEAD : step(r, at, HEAD);
    memcpy(p->buffer, r->at + at, BUFFER * p->buffers);
    at = step(r, at, BUFFER * p->buffers);
    memcpy(p->message, r->at + at, p->bytes);
    __atomic_store_n(&r->reader->at, step(r, at, p->bytes), __ATOMIC_SEQ_CST);
    r->reader->packets++;
}

void *ring_out(void *given)
{
    queue *q = given;
    ring r = ring_of(q, 0);
    packet *p = malloc(sizeof(*p));
    while (p && await_packet(q, &r)) {
        take(&r, p);
        __atomic_add_fetch(&q->owner->counts->request_space[q->id], 1, __ATOMIC_SEQ_CST);
        if (load(&r.writer->waits)) {
            queue_signal(q->owner);
        }
        uint32_t flags = p->flags & ~(uint32_t) (HAS_MESSAGE | HAS_BUFFERS);
        int code = LATE;
        while (code == LATE && !q->stop) {
            code = dsp.queue_write(q->twin, flags, p->buffers, p->buffer, p->bytes, p->message,
                                   WRITE_US);
        }
        say("queue %d: %u bytes, %u buffers: %#x", q->id, p->bytes, p->buffers, (unsigned) code);
    }
    free(p);
    return NULL;
}

/* --- from the DSP to the library ------------------------------------------------------------- */

/* Wait until a packet of *bytes* fits, with two headers if it wraps; false: the queue has ended. */
static bool await_room(const queue *q, const ring *r, uint32_t bytes)
{
    for (; !q->stop; queue_nap()) {
        uint32_t read = load(&r->reader->at), at = r->writer->at, end = r->bytes - at;
        uint32_t room = read == at  ? r->bytes - HEAD
                        : at > read ? end + read - HEAD
                                    : read - at - HEAD;
        if (room >= bytes && (end >= bytes || room - end >= bytes)) {
            return true;
        }
    }
    return false;
}

static void put(const ring *r, const packet *p, uint8_t serial)
{
    uint32_t bytes = HEAD + BUFFER * p->buffers + p->bytes, at = r->writer->at;
    uint32_t flags =
        p->flags | USER_READY | (p->buffers ? HAS_BUFFERS : 0u) | (p->bytes ? HAS_MESSAGE : 0u);
    uint64_t head =
        bytes | (uint64_t) flags << 32 | (uint64_t) p->buffers << 48 | (uint64_t) serial << 56;
    bool wraps = r->bytes - at < ((bytes + 7) & ~7u);
    memcpy(r->at + at, &head, HEAD);
    at = step(r, at, HEAD);
    if (wraps) {
        memcpy(r->at, &head, HEAD);
        at = HEAD;
    }
    memcpy(r->at + at, p->buffer, BUFFER * p->buffers);
    at = step(r, at, BUFFER * p->buffers);
    memcpy(r->at + at, p->message, p->bytes);
    __atomic_store_n(&r->writer->at, step(r, at, p->bytes), __ATOMIC_SEQ_CST);
    r->writer->packets++;
}

void *ring_back(void *given)
{
    queue *q = given;
    ring r = ring_of(q, 1);
    packet *p = malloc(sizeof(*p));
    uint8_t serial = 0;
    while (p && !q->stop) {
        if (dsp.queue_read(q->twin, &p->flags, MOST_BUFFERS, &p->buffers, p->buffer, MOST_MESSAGE,
                           &p->bytes, p->message, READ_US)) {
            queue_nap();
        } else if (await_room(q, &r, (HEAD + BUFFER * p->buffers + p->bytes + 7) & ~7u)) {
            put(&r, p, serial++);
            __atomic_add_fetch(&q->owner->counts->answer_packets[q->id], 1, __ATOMIC_SEQ_CST);
            if (load(&r.reader->waits)) {
                queue_signal(q->owner);
            }
        }
    }
    free(p);
    return NULL;
}
