/* Write packets to a dspqueue and read packets from it, on the host. */
#include "queue.h"

enum { AT_ONCE = 0, STAT_SIGNALLING = 7, REDUCED_SIGNALLING = 100 };
enum { BUFFER_REF = 4, BUFFER_DEREF = 8 };
#define FOREVER 0xffffffffu

/* --- waiting --------------------------------------------------------------------------------- */

static int code_of(ring_result result)
{
    switch (result) {
    case RING_DONE:
        return AEE_SUCCESS;
    case RING_WOULD_BLOCK:
        return AEE_EWOULDBLOCK;
    case RING_DAMAGED:
        return AEE_ERPC;
    default:
        return AEE_EBADPARM;
    }
}

/* Wait until *word differs from *seen*, or until it is time to check again; return AEE_SUCCESS, or
 * the code of a timeout or of the queue's end. */
static int wait_on(dspqueue_t q, uint32_t *word, uint32_t seen, uint32_t timeout, uint64_t start)
{
    int ended = __atomic_load_n(&q->ended, __ATOMIC_SEQ_CST);
    if (ended || load(&q->memory->ended)) {
        return AEE_EINTERRUPTED;
    }
    if (timeout == AT_ONCE) {
        return AEE_EWOULDBLOCK;
    }
    uint64_t now = clock_us();
    uint64_t end = timeout == FOREVER ? now + QUEUE_LOOK_US : start + timeout;
    return futex_wait(word, seen, end) ? AEE_SUCCESS : AEE_EEXPIRED;
}

/* Return the result of a blocking call, in which a timeout of 0 gives the code of a timeout. */
static int waited(int result)
{
    return result == AEE_EWOULDBLOCK ? AEE_EEXPIRED : result;
}

/* --- write ----------------------------------------------------------------------------------- */

static int check_buffer(session *s, dspqueue_buffer *b)
{
    const mapping *m = map_find(s, (int) b->fd);
    if (!m) {
        return AEE_ENOSUCHMAP;
    }
    bool both = (b->flags & BUFFER_REF) && (b->flags & BUFFER_DEREF);
    if (both || b->offset > m->bytes || b->size > m->bytes - b->offset || (!b->size && b->offset) ||
        ((b->flags & BUFFER_DEREF) && m->references == 0)) {
        return AEE_EBADPARM;
    }
    b->size = b->size ? b->size : (uint32_t) m->bytes;
    return AEE_SUCCESS;
}

/* Apply a packet's changes of its buffers' reference counts (*sign* 1), or undo them (-1). */
static void refer(session *s, uint32_t buffers, const dspqueue_buffer *buffer, int sign)
{
    for (uint32_t i = 0; i < buffers; i++) {
        mapping *m = map_find(s, (int) buffer[i].fd);
        int change = (buffer[i].flags & BUFFER_REF) ? 1 : (buffer[i].flags & BUFFER_DEREF) ? -1 : 0;
        if (m) {
            m->references += sign * change;
        }
    }
}

static int check_buffers(session *s, uint32_t buffers, dspqueue_buffer *buffer)
{
    pthread_mutex_lock(&sim_lock);
    int result = AEE_SUCCESS;
    for (uint32_t i = 0; i < buffers && result == AEE_SUCCESS; i++) {
        result = check_buffer(s, &buffer[i]);
    }
    if (result == AEE_SUCCESS) {
        refer(s, buffers, buffer, 1);
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

static int put(dspqueue_t q, uint32_t flags, uint32_t buffers, const dspqueue_buffer *buffer,
               uint32_t bytes, const uint8_t *message, uint32_t timeout)
{
    link_ring *state = q->to_dsp.state;
    uint64_t start = clock_us();
    for (;;) {
        uint32_t seen = load(&state->packets_read);
        pthread_mutex_lock(&q->writing);
        ring_result got = ring_put(&q->to_dsp, flags | PACKET_USER_READY, buffers,
                                   (const link_buffer *) buffer, bytes, message);
        pthread_mutex_unlock(&q->writing);
        if (got != RING_WOULD_BLOCK) {
            futex_wake(&state->packets_written, 1);
            return code_of(got);
        }
        int result = wait_on(q, &state->packets_read, seen, timeout, start);
        if (result != AEE_SUCCESS) {
            return result;
        }
    }
}

/* Return the result of a write to a queue whose session is dead: the real library reports success.
 * */
static int write_ended(int why)
{
    pthread_mutex_lock(&sim_lock);
    bool faithful = settings()->faithful;
    pthread_mutex_unlock(&sim_lock);
    return faithful ? AEE_SUCCESS : why;
}

static int write_packet(dspqueue_t q, uint32_t flags, uint32_t buffers, dspqueue_buffer *given,
                        uint32_t bytes, const uint8_t *message, uint32_t timeout)
{
    dspqueue_buffer buffer[RING_BUFFERS];
    session *s = q->s;
    if (buffers > RING_BUFFERS || bytes > RING_MESSAGE || (buffers && !given) ||
        (bytes && !message)) {
        return AEE_EBADPARM;
    }
    if (q->ended || !s) {
        return write_ended(q->ended);
    }
    for (uint32_t i = 0; i < buffers; i++) {
        buffer[i] = given[i];
    }
    int result = check_buffers(s, buffers, buffer);
    if (result != AEE_SUCCESS) {
        return result;
    }
    result = put(q, flags, buffers, buffer, bytes, message, timeout);
    if (result != AEE_SUCCESS) {
        pthread_mutex_lock(&sim_lock);
        refer(s, buffers, buffer, -1);
        pthread_mutex_unlock(&sim_lock);
    }
    return result;
}

static int enter_and_write(dspqueue_t q, uint32_t flags, uint32_t buffers, dspqueue_buffer *buffer,
                           uint32_t bytes, const uint8_t *message, uint32_t timeout_us)
{
    if (!queue_enter(q)) {
        return AEE_EBADPARM;
    }
    return queue_leave(q, write_packet(q, flags, buffers, buffer, bytes, message, timeout_us));
}

int dspqueue_write(dspqueue_t q, uint32_t flags, uint32_t buffers, dspqueue_buffer *buffer,
                   uint32_t bytes, const uint8_t *message, uint32_t timeout_us)
{
    return waited(enter_and_write(q, flags, buffers, buffer, bytes, message, timeout_us));
}

int dspqueue_write_noblock(dspqueue_t q, uint32_t flags, uint32_t buffers, dspqueue_buffer *buffer,
                           uint32_t bytes, const uint8_t *message)
{
    return enter_and_write(q, flags, buffers, buffer, bytes, message, AT_ONCE);
}

int dspqueue_write_early_wakeup_noblock(dspqueue_t q, uint32_t delay_us, uint32_t flags)
{
    (void) delay_us;
    (void) flags;
    return queue_enter(q) ? queue_leave(q, AEE_SUCCESS) : AEE_EBADPARM; /* a hint only */
}

/* --- read ------------------------------------------------------------------------------------ */

/* Set the address in this process of each buffer of a packet, and apply the reference counts. */
static void rebase(dspqueue_t q, uint32_t buffers, dspqueue_buffer *buffer)
{
    pthread_mutex_lock(&sim_lock);
    for (uint32_t i = 0; i < buffers; i++) {
        const block *b = block_of_fd((int) buffer[i].fd);
        buffer[i].at = b && buffer[i].offset <= b->bytes ? b->at + buffer[i].offset : NULL;
    }
    if (q->s) {
        refer(q->s, buffers, buffer, 1);
    }
    pthread_mutex_unlock(&sim_lock);
}

typedef struct {
    bool take;
    uint32_t most_buffers, most_bytes;
    dspqueue_buffer *buffer;
    uint8_t *message;
} reading;

static int get(dspqueue_t q, ring_packet *packet, const reading *how, uint32_t timeout)
{
    link_ring *state = q->to_host.state;
    uint64_t start = clock_us();
    for (;;) {
        uint32_t seen = load(&state->packets_written);
        pthread_mutex_lock(&q->reading);
        ring_result got =
            how->take ? ring_take(&q->to_host, packet, how->most_buffers,
                                  (link_buffer *) how->buffer, how->most_bytes, how->message)
                      : ring_look(&q->to_host, packet);
        pthread_mutex_unlock(&q->reading);
        if (got != RING_WOULD_BLOCK) {
            futex_wake(&state->packets_read, 1);
            return code_of(got);
        }
        int result = wait_on(q, &state->packets_written, seen, timeout, start);
        if (result != AEE_SUCCESS) {
            return result;
        }
    }
}

static int read_packet(dspqueue_t q, const reading *how, uint32_t *flags, uint32_t *buffers,
                       uint32_t *bytes, uint32_t timeout)
{
    ring_packet packet;
    uint32_t code;
    if (!queue_enter(q)) {
        return AEE_EBADPARM;
    }
    pthread_mutex_lock(&sim_lock);
    bool fault = how->take && fault_due(FAULT_QUEUE_READ, &code);
    pthread_mutex_unlock(&sim_lock);
    int result = fault ? (int) code : get(q, &packet, how, timeout);
    if (result == AEE_SUCCESS) {
        if (how->take) {
            rebase(q, packet.buffers, how->buffer);
        }
        uint32_t *to[] = {flags, buffers, bytes};
        uint32_t from[] = {packet.flags, packet.buffers, packet.bytes};
        for (int i = 0; i < 3; i++) {
            if (to[i]) {
                *to[i] = from[i];
            }
        }
    }
    return queue_leave(q, result);
}

int dspqueue_read(dspqueue_t q, uint32_t *flags, uint32_t most_buffers, uint32_t *buffers,
                  dspqueue_buffer *buffer, uint32_t most_bytes, uint32_t *bytes, uint8_t *message,
                  uint32_t timeout_us)
{
    reading how = {true, buffer ? most_buffers : 0, message ? most_bytes : 0, buffer, message};
    return waited(read_packet(q, &how, flags, buffers, bytes, timeout_us));
}

int dspqueue_read_noblock(dspqueue_t q, uint32_t *flags, uint32_t most_buffers, uint32_t *buffers,
                          dspqueue_buffer *buffer, uint32_t most_bytes, uint32_t *bytes,
                          uint8_t *message)
{
    reading how = {true, buffer ? most_buffers : 0, message ? most_bytes : 0, buffer, message};
    return read_packet(q, &how, flags, buffers, bytes, AT_ONCE);
}

int dspqueue_peek(dspqueue_t q, uint32_t *flags, uint32_t *buffers, uint32_t *bytes,
                  uint32_t timeout_us)
{
    reading how = {.take = false};
    return waited(read_packet(q, &how, flags, buffers, bytes, timeout_us));
}

int dspqueue_peek_noblock(dspqueue_t q, uint32_t *flags, uint32_t *buffers, uint32_t *bytes)
{
    reading how = {.take = false};
    return read_packet(q, &how, flags, buffers, bytes, AT_ONCE);
}

/* --- statistics ------------------------------------------------------------------------------ */

int dspqueue_get_stat(dspqueue_t q, int what, uint64_t *value)
{
    if (!value || what < 1 || what > STAT_SIGNALLING || !queue_enter(q)) {
        return AEE_EBADPARM;
    }
    const ring *r = what <= 2 ? &q->to_host : &q->to_dsp;
    uint32_t packets = load(&r->state->packets_written) - load(&r->state->packets_read);
    uint32_t bytes = ring_used(r, load(&r->state->read), load(&r->state->written));
    const uint64_t values[] = {packets, bytes, packets, bytes, 0, 0, REDUCED_SIGNALLING};
    *value = values[what - 1];
    return queue_leave(q, AEE_SUCCESS);
}
