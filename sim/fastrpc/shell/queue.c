/*
 * dspqueue on the DSP: skels import queues that the library created, by their numbers.
 *
 * If a skel imports a queue with a packet callback, a thread runs the callback whenever packets
 * arrive, until the queue is closed.
 */
#include "queue.h"
#include "../ring.h"
#include "memory.h"

enum { QUEUES = 64, STACK = 1 << 14, FOREVER = -1, AT_ONCE = 0 };
enum { TIMEOUT = (int) 0x8000040c, WOULD_BLOCK = 0x204, CANCELLED = 0x2e };
enum { FLUSH_SENDER = 0x10, FLUSH_RECIPIENT = 0x40, INVALIDATE_RECIPIENT = 0x80 };

struct queue {
    uint32_t id; /* assigned by the library; 0: this entry is free */
    link_queue *memory;
    uint32_t bytes;
    ring to_dsp, to_host;
    queue_callback packet;
    void *context;
    uint32_t watched; /* 1 while the thread of `packet` runs; a futex */
    lock reading, writing;
};

static queue queues[QUEUES];
static lock table;

/* --- requests of the library ----------------------------------------------------------------- */

static queue *queue_of(uint32_t id)
{
    for (int i = 0; i < QUEUES; i++) {
        if (queues[i].id == id) {
            return &queues[i];
        }
    }
    return NULL;
}

static ring ring_of(const queue *q, int which)
{
    link_ring *state = &q->memory->ring[which];
    return (ring){state, (uint8_t *) q->memory + state->offset, state->bytes};
}

int queue_attach(uint32_t id, uint32_t bytes)
{
    int fd = receive_descriptor();
    lock_take(&table);
    queue *q = queue_of(0);
    void *memory = q ? sys_map(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd) : NULL;
    if (memory) {
        *q = (queue){.id = id, .memory = memory, .bytes = bytes};
        q->to_dsp = ring_of(q, LINK_QUEUE_TO_DSP);
        q->to_host = ring_of(q, LINK_QUEUE_TO_HOST);
    }
    lock_leave(&table);
    sys_close(fd);
    return memory ? DSP_OK : DSP_NO_MEMORY;
}

int queue_drop(uint32_t id)
{
    lock_take(&table);
    queue *q = queue_of(id);
    if (q) {
        sys_unmap(q->memory, q->bytes);
        q->id = 0;
    }
    lock_leave(&table);
    return q ? DSP_OK : DSP_BAD_PARAMETER;
}

/* --- calls of skels -------------------------------------------------------------------------- */

static void watch(void *given)
{
    queue *q = given;
    link_ring *state = q->to_dsp.state;
    uint32_t seen = load(&state->packets_read);
    while (load(&q->memory->imported) && !load(&q->memory->ended)) {
        uint32_t packets = load(&state->packets_written);
        if (packets == seen || shared->machine.queue_stuck) {
            account_pause();
            futex_wait(SHARED, &state->packets_written, packets);
            account_resume();
        } else {
            seen = packets;
            q->packet(q, 0, q->context);
        }
    }
    store(&q->watched, 0);
    futex_wake(OURS, &q->watched, 1);
}

int dspqueue_import(uint64_t id, queue_callback packet, queue_callback error, void *context,
                    queue **imported)
{
    (void) error; /* never called: a queue ends with this process */
    lock_take(&table);
    queue *q = id && id >> 32 == 0 ? queue_of((uint32_t) id) : NULL;
    int result = !q ? DSP_BAD_PARAMETER : load(&q->memory->imported) ? DSP_ALREADY : DSP_OK;
    if (result == DSP_OK) {
        q->packet = packet;
        q->context = context;
        store(&q->memory->imported, 1);
        store(&q->watched, packet != NULL);
        if (packet && thread_start(watch, q, NULL, STACK) < 0) {
            store(&q->memory->imported, 0);
            result = DSP_NO_MEMORY;
        }
    }
    lock_leave(&table);
    *imported = result == DSP_OK ? q : *imported;
    return result;
}

/* Wait for a change of *word by the host; return DSP_OK, or the code of a timeout or of the queue's
 * end. */
static int wait_on(queue *q, uint32_t *word, uint32_t seen, uint32_t microseconds, uint64_t start)
{
    if (load(&q->memory->ended)) {
        return CANCELLED;
    }
    if (microseconds == AT_ONCE) {
        return WOULD_BLOCK;
    }
    if (microseconds == (uint32_t) FOREVER) {
        futex_wait(SHARED, word, seen);
    } else if (!futex_wait_until(SHARED, word, seen, start + microseconds)) {
        return TIMEOUT;
    }
    return DSP_OK;
}

static int code_of(ring_result result)
{
    switch (result) {
    case RING_DONE:
        return DSP_OK;
    case RING_WOULD_BLOCK:
        return WOULD_BLOCK;
    default:
        return DSP_BAD_PARAMETER;
    }
}

int dspqueue_close(queue *q)
{
    link_ring *state = q->to_dsp.state;
    account_pause();
    store(&q->memory->imported, 0);
    futex_wake(SHARED, &state->packets_written, QUEUES);
    while (load(&q->watched)) {
        /* Wake the thread again: it misses a wake-up that comes just before its wait. */
        futex_wake(SHARED, &state->packets_written, QUEUES);
        futex_wait_until(OURS, &q->watched, 1, sys_time() + 1000);
    }
    account_resume();
    return DSP_OK;
}

/* Check that the buffers are mapped, and flush their cache lines where the flags request it. */
static bool prepare(uint32_t buffers, link_buffer *buffer)
{
    for (uint32_t i = 0; i < buffers; i++) {
        void *at = block_address((int) buffer[i].fd, buffer[i].offset, buffer[i].size);
        if (!at) {
            return false;
        }
        if (buffer[i].flags & FLUSH_SENDER) {
            cache_maintain(at, buffer[i].size, CACHE_FLUSH);
        }
    }
    return true;
}

static void receive(uint32_t buffers, link_buffer *buffer)
{
    for (uint32_t i = 0; i < buffers; i++) {
        void *at = block_address((int) buffer[i].fd, buffer[i].offset, buffer[i].size);
        buffer[i].address = (uint32_t) at;
        if (at && buffer[i].flags & INVALIDATE_RECIPIENT) {
            cache_maintain(at, buffer[i].size, CACHE_INVALIDATE);
        } else if (at && buffer[i].flags & FLUSH_RECIPIENT) {
            cache_maintain(at, buffer[i].size, CACHE_FLUSH);
        }
    }
}

int dspqueue_write(queue *q, uint32_t flags, uint32_t buffers, link_buffer *buffer, uint32_t bytes,
                   const uint8_t *message, uint32_t microseconds)
{
    link_ring *state = q->to_host.state;
    if (buffers > RING_BUFFERS || bytes > RING_MESSAGE) {
        return DSP_BAD_PARAMETER;
    }
    if (!prepare(buffers, buffer)) {
        return DSP_NO_MAP;
    }
    account_settle();
    uint64_t start = sys_time();
    int result = DSP_OK;
    ring_result put = RING_WOULD_BLOCK;
    while (result == DSP_OK && put == RING_WOULD_BLOCK) {
        uint32_t seen = load(&state->packets_read);
        lock_take(&q->writing);
        put = ring_put(&q->to_host, flags | PACKET_USER_READY, buffers, buffer, bytes, message);
        lock_leave(&q->writing);
        if (put == RING_WOULD_BLOCK) {
            result = wait_on(q, &state->packets_read, seen, microseconds, start);
        }
    }
    futex_wake(SHARED, &state->packets_written, 1);
    account_start();
    return result == DSP_OK ? code_of(put) : result;
}

int dspqueue_write_noblock(queue *q, uint32_t flags, uint32_t buffers, link_buffer *buffer,
                           uint32_t bytes, const uint8_t *message)
{
    return dspqueue_write(q, flags, buffers, buffer, bytes, message, AT_ONCE);
}

int dspqueue_write_early_wakeup_noblock(queue *q, uint32_t microseconds, uint32_t flags)
{
    (void) q;
    (void) microseconds;
    (void) flags;
    return DSP_OK; /* the wakeup is only a hint */
}

/* Try once to remove a packet, or only to describe it if *take* is false. */
static ring_result try_read(queue *q, ring_packet *packet, bool take, uint32_t most_buffers,
                            link_buffer *buffer, uint32_t most_bytes, uint8_t *message)
{
    if (shared->machine.queue_stuck) {
        return RING_WOULD_BLOCK;
    }
    lock_take(&q->reading);
    ring_result got = take
                          ? ring_take(&q->to_dsp, packet, most_buffers, buffer, most_bytes, message)
                          : ring_look(&q->to_dsp, packet);
    lock_leave(&q->reading);
    return got;
}

static int read_packet(queue *q, ring_packet *packet, bool take, uint32_t most_buffers,
                       link_buffer *buffer, uint32_t most_bytes, uint8_t *message,
                       uint32_t microseconds)
{
    link_ring *state = q->to_dsp.state;
    account_pause();
    uint64_t start = sys_time();
    int result = DSP_OK;
    ring_result got = RING_WOULD_BLOCK;
    while (result == DSP_OK && got == RING_WOULD_BLOCK) {
        uint32_t seen = load(&state->packets_written);
        got = try_read(q, packet, take, most_buffers, buffer, most_bytes, message);
        if (got == RING_WOULD_BLOCK) {
            result = wait_on(q, &state->packets_written, seen, microseconds, start);
        }
    }
    if (got == RING_DONE && take) {
        futex_wake(SHARED, &state->packets_read, 1);
    }
    account_resume();
    return result == DSP_OK ? code_of(got) : result;
}

static void report(const ring_packet *packet, uint32_t *flags, uint32_t *buffers, uint32_t *bytes)
{
    if (flags) {
        *flags = packet->flags;
    }
    if (buffers) {
        *buffers = packet->buffers;
    }
    if (bytes) {
        *bytes = packet->bytes;
    }
}

int dspqueue_read(queue *q, uint32_t *flags, uint32_t most_buffers, uint32_t *buffers,
                  link_buffer *buffer, uint32_t most_bytes, uint32_t *bytes, uint8_t *message,
                  uint32_t microseconds)
{
    ring_packet packet;
    int result =
        read_packet(q, &packet, true, most_buffers, buffer, most_bytes, message, microseconds);
    if (result == DSP_OK) {
        receive(packet.buffers, buffer);
        report(&packet, flags, buffers, bytes);
    }
    return result;
}

int dspqueue_read_noblock(queue *q, uint32_t *flags, uint32_t most_buffers, uint32_t *buffers,
                          link_buffer *buffer, uint32_t most_bytes, uint32_t *bytes,
                          uint8_t *message)
{
    return dspqueue_read(q, flags, most_buffers, buffers, buffer, most_bytes, bytes, message,
                         AT_ONCE);
}

int dspqueue_peek(queue *q, uint32_t *flags, uint32_t *buffers, uint32_t *bytes,
                  uint32_t microseconds)
{
    ring_packet packet;
    int result = read_packet(q, &packet, false, 0, NULL, 0, NULL, microseconds);
    if (result == DSP_OK) {
        report(&packet, flags, buffers, bytes);
    }
    return result;
}

int dspqueue_peek_noblock(queue *q, uint32_t *flags, uint32_t *buffers, uint32_t *bytes)
{
    return dspqueue_peek(q, flags, buffers, bytes, AT_ONCE);
}
