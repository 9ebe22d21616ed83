/*
 * dspqueue on the host: rings of packets in memory that the shell maps too.
 *
 * A queue outlives its session, as a thing that can only be closed.  With a packet callback it has a
 * thread that calls it, as the real library does.
 */
#define _GNU_SOURCE
#include "ring.h"
#include "sim.h"
#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { REQUESTS = 65536, RESPONSES = 16384, SMALLEST = 64, LARGEST = 16 << 20, QUEUES = 64 };
enum { ALIGNMENT = 256, AT_ONCE = 0, LOOK_US = 1000000 };
#define FOREVER 0xffffffffu
enum { BUFFER_REF = 4, BUFFER_DEREF = 8 };
enum { STAT_SIGNALLING = 7, REDUCED_SIGNALLING = 100 };

struct dspqueue {
    struct dspqueue *next;
    session *s; /* NULL when it is gone */
    uint32_t id;
    link_queue *memory;
    ring to_dsp, to_host;
    size_t bytes;
    int fd;
    dspqueue_callback packet, failure;
    void *context;
    pthread_t watcher;
    bool watched, closing;
    int users; /* threads that are in a call on it */
    int ended; /* why it no longer works; 0: it works */
    pthread_mutex_t reading, writing;
};

static dspqueue_t queues;
static uint32_t last_id;

/* --- being in use ---------------------------------------------------------------------------- */

/* Enter a queue; false: it is none. */
static bool enter(dspqueue_t q)
{
    pthread_mutex_lock(&sim_lock);
    dspqueue_t found = queues;
    while (found && found != q) {
        found = found->next;
    }
    bool good = found && !found->closing;
    if (good) {
        q->users++;
    }
    pthread_mutex_unlock(&sim_lock);
    return good;
}

static int leave(dspqueue_t q, int result)
{
    pthread_mutex_lock(&sim_lock);
    q->users--;
    pthread_cond_broadcast(&sim_changed);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* Wake everybody who waits on this side; the words change, so that nobody misses it. */
static void wake(dspqueue_t q)
{
    uint32_t *words[] = {&q->to_host.state->packets_written, &q->to_dsp.state->packets_read};
    store(&q->memory->ended, 1);
    for (int i = 0; i < 2; i++) {
        __atomic_add_fetch(words[i], 1, __ATOMIC_SEQ_CST);
        futex_wake(words[i], INT_MAX);
    }
}

void queues_end(session *s, int error)
{
    for (dspqueue_t q = queues; q; q = q->next) {
        if (q->s == s && !q->ended) {
            __atomic_store_n(&q->ended, error, __ATOMIC_SEQ_CST);
            wake(q);
        }
    }
}

void queues_forget(session *s)
{
    queues_end(s, AEE_EINTERRUPTED);
    for (dspqueue_t q = queues; q; q = q->next) {
        q->s = q->s == s ? NULL : q->s;
    }
}

bool queues_any(const session *s)
{
    dspqueue_t q = queues;
    while (q && q->s != s) {
        q = q->next;
    }
    return q != NULL;
}

void queues_stuck(bool stuck)
{
    for (int i = 0; i < SESSIONS; i++) {
        if (sessions[i].state == LIVE) {
            store(&sessions[i].link->machine.queue_stuck, stuck);
        }
    }
    for (dspqueue_t q = queues; q; q = q->next) {
        futex_wake(&q->to_dsp.state->packets_written,
                   INT_MAX); /* who waits on the DSP looks again */
    }
}

/* --- the callbacks' thread ------------------------------------------------------------------- */

static void *watch(void *given)
{
    dspqueue_t q = given;
    uint32_t seen = 0;
    for (;;) {
        uint32_t packets = load(&q->to_host.state->packets_written);
        int ended = __atomic_load_n(&q->ended, __ATOMIC_SEQ_CST);
        if (load(&q->memory->ended) || ended) {
            if (ended && q->failure) {
                q->failure(q, ended, q->context);
            }
            return NULL;
        }
        if (packets == seen) {
            futex_wait(&q->to_host.state->packets_written, packets, clock_us() + LOOK_US);
        } else if (q->packet) {
            q->packet(q, AEE_SUCCESS, q->context);
        }
        seen = packets;
    }
}

/* --- create, close --------------------------------------------------------------------------- */

static uint32_t rounded(uint32_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static ring new_ring(dspqueue_t q, int which, uint32_t offset, uint32_t bytes)
{
    link_ring *state = &q->memory->ring[which];
    *state = (link_ring){.offset = offset, .bytes = bytes};
    return (ring){state, (uint8_t *) q->memory + offset, bytes};
}

static bool make_memory(dspqueue_t q, uint32_t request_bytes, uint32_t response_bytes)
{
    uint32_t first = rounded(sizeof(link_queue)), second = first + request_bytes;
    q->bytes = second + response_bytes;
    q->fd = memfd_create("dsp queue", MFD_CLOEXEC);
    if (q->fd < 0 || ftruncate(q->fd, (off_t) q->bytes)) {
        return false;
    }
    void *at = mmap(NULL, q->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, q->fd, 0);
    if (at == MAP_FAILED) {
        return false;
    }
    q->memory = at;
    q->to_dsp = new_ring(q, LINK_QUEUE_TO_DSP, first, request_bytes);
    q->to_host = new_ring(q, LINK_QUEUE_TO_HOST, second, response_bytes);
    return true;
}

static void discard(dspqueue_t q)
{
    if (q->memory) {
        munmap(q->memory, q->bytes);
    }
    if (q->fd >= 0) {
        close(q->fd);
    }
    free(q);
}

static int tell_shell(dspqueue_t q, uint32_t command)
{
    lane *l = lane_take(q->s);
    if (!l) {
        return q->s->death_in_flight;
    }
    lane_link(q->s, l)->value[0] = q->id;
    lane_link(q->s, l)->value[1] = (uint32_t) q->bytes;
    int result = command == LINK_QUEUE ? lane_call_with(q->s, l, command, q->fd)
                                       : lane_call(q->s, l, command);
    lane_leave(q->s, l);
    return result;
}

static int count_queues(const session *s)
{
    int n = 0;
    for (dspqueue_t q = queues; q; q = q->next) {
        n += q->s == s;
    }
    return n;
}

/* Make a queue in the session *s*, which the caller has entered. */
static int make(session *s, dspqueue_t q, uint32_t request_bytes, uint32_t response_bytes)
{
    pthread_mutex_lock(&sim_lock);
    int others = count_queues(s);
    q->id = ++last_id;
    q->s = s;
    pthread_mutex_unlock(&sim_lock);
    if (others >= QUEUES || !make_memory(q, request_bytes, response_bytes)) {
        return AEE_ENOMEMORY;
    }
    int result = tell_shell(q, LINK_QUEUE);
    if (result != AEE_SUCCESS) {
        return result;
    }
    q->watched = q->packet || q->failure;
    if (q->watched && pthread_create(&q->watcher, NULL, watch, q)) {
        return AEE_ENOMEMORY;
    }
    pthread_mutex_lock(&sim_lock);
    q->next = queues;
    queues = q;
    if (load(&s->ended)) {
        queues_end(s, AEE_EINTERRUPTED);
    }
    pthread_mutex_unlock(&sim_lock);
    return AEE_SUCCESS;
}

static int start_session(int domain, session **s)
{
    uint32_t code;
    pthread_mutex_lock(&sim_lock);
    bool fault = fault_due(FAULT_QUEUE_CREATE, &code);
    pthread_mutex_unlock(&sim_lock);
    if (fault) {
        return (int) code;
    }
    int result = session_use(domain, s);
    return result == AEE_ECONNREFUSED ? AEE_EUNSUPPORTED : result;
}

int dspqueue_create(int domain, uint32_t flags, uint32_t request_bytes, uint32_t response_bytes,
                    dspqueue_callback packet, dspqueue_callback error, void *context,
                    dspqueue_t *queue)
{
    session *s;
    request_bytes = request_bytes ? request_bytes : REQUESTS;
    response_bytes = response_bytes ? response_bytes : RESPONSES;
    if (!queue || flags || request_bytes < SMALLEST || request_bytes > LARGEST ||
        response_bytes < SMALLEST || response_bytes > LARGEST) {
        return AEE_EBADPARM;
    }
    if (domain < 0 || domain >= DOMAINS * SESSIONS || domain % DOMAINS != CDSP) {
        return AEE_EUNSUPPORTED;
    }
    int result = start_session(domain, &s);
    if (result != AEE_SUCCESS) {
        return result;
    }
    dspqueue_t q = calloc(1, sizeof(*q));
    result = AEE_ENOMEMORY;
    if (q) {
        q->fd = -1;
        q->packet = packet;
        q->failure = error;
        q->context = context;
        pthread_mutex_init(&q->reading, NULL);
        pthread_mutex_init(&q->writing, NULL);
        result = make(s, q, ring_padded(request_bytes), ring_padded(response_bytes));
    }
    if (q && result != AEE_SUCCESS) {
        discard(q);
    }
    pthread_mutex_lock(&sim_lock);
    session_leave(s);
    pthread_mutex_unlock(&sim_lock);
    *queue = result == AEE_SUCCESS ? q : *queue;
    return result;
}

/* Take the queue out of the list once nobody is in it; sim_lock held. */
static void unlink_queue(dspqueue_t q)
{
    wake(q);
    while (q->users) {
        pthread_cond_wait(&sim_changed, &sim_lock);
    }
    dspqueue_t *at = &queues;
    while (*at != q) {
        at = &(*at)->next;
    }
    *at = q->next;
}

int dspqueue_close(dspqueue_t q)
{
    if (!enter(q)) {
        return AEE_EBADPARM;
    }
    pthread_mutex_lock(&sim_lock);
    session *s = q->s && q->s->state == LIVE ? q->s : NULL;
    int result = s && load(&q->memory->imported) ? AEE_EBADPARM : AEE_SUCCESS;
    q->closing = result == AEE_SUCCESS;
    if (s) {
        session_enter(s);
    }
    q->users--;
    pthread_mutex_unlock(&sim_lock);
    if (s && result == AEE_SUCCESS) {
        tell_shell(q, LINK_DROP_QUEUE);
    }
    pthread_mutex_lock(&sim_lock);
    if (s) {
        session_leave(s);
    }
    if (result == AEE_SUCCESS) {
        unlink_queue(q);
    }
    pthread_mutex_unlock(&sim_lock);
    if (result != AEE_SUCCESS) {
        return result;
    }
    if (q->watched && pthread_equal(q->watcher, pthread_self())) {
        pthread_detach(q->watcher); /* closed from its own callback: what it looks at must stay */
        return AEE_SUCCESS;
    }
    if (q->watched) {
        pthread_join(q->watcher, NULL);
    }
    discard(q);
    return AEE_SUCCESS;
}

int dspqueue_export(dspqueue_t q, uint64_t *id)
{
    if (!id || !enter(q)) {
        return AEE_EBADPARM;
    }
    *id = q->id;
    return leave(q, AEE_SUCCESS);
}

/* Queues to several DSPs at once. */
int dspqueue_request(void *request)
{
    (void) request;
    return AEE_EUNSUPPORTED;
}

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

/* Wait until *word is not *seen*; return 0, or why that is over. */
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
    uint64_t end = timeout == FOREVER ? now + LOOK_US : start + timeout;
    return futex_wait(word, seen, end) ? AEE_SUCCESS : AEE_EEXPIRED;
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

/* Count the references that the buffers of a packet add (*sign* 1), or undo that (-1). */
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

/* What writing to a queue of a dead session returns: the real library notices nothing. */
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

int dspqueue_write(dspqueue_t q, uint32_t flags, uint32_t buffers, dspqueue_buffer *buffer,
                   uint32_t bytes, const uint8_t *message, uint32_t timeout_us)
{
    if (!enter(q)) {
        return AEE_EBADPARM;
    }
    return leave(q, write_packet(q, flags, buffers, buffer, bytes, message, timeout_us));
}

int dspqueue_write_noblock(dspqueue_t q, uint32_t flags, uint32_t buffers, dspqueue_buffer *buffer,
                           uint32_t bytes, const uint8_t *message)
{
    return dspqueue_write(q, flags, buffers, buffer, bytes, message, AT_ONCE);
}

int dspqueue_write_early_wakeup_noblock(dspqueue_t q, uint32_t delay_us, uint32_t flags)
{
    (void) delay_us;
    (void) flags;
    return enter(q) ? leave(q, AEE_SUCCESS) : AEE_EBADPARM; /* a hint */
}

/* --- read ------------------------------------------------------------------------------------ */

/* Say where in this process the buffers of a packet are. */
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
    if (!enter(q)) {
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
    return leave(q, result);
}

int dspqueue_read(dspqueue_t q, uint32_t *flags, uint32_t most_buffers, uint32_t *buffers,
                  dspqueue_buffer *buffer, uint32_t most_bytes, uint32_t *bytes, uint8_t *message,
                  uint32_t timeout_us)
{
    reading how = {true, buffer ? most_buffers : 0, message ? most_bytes : 0, buffer, message};
    return read_packet(q, &how, flags, buffers, bytes, timeout_us);
}

int dspqueue_read_noblock(dspqueue_t q, uint32_t *flags, uint32_t most_buffers, uint32_t *buffers,
                          dspqueue_buffer *buffer, uint32_t most_bytes, uint32_t *bytes,
                          uint8_t *message)
{
    return dspqueue_read(q, flags, most_buffers, buffers, buffer, most_bytes, bytes, message,
                         AT_ONCE);
}

int dspqueue_peek(dspqueue_t q, uint32_t *flags, uint32_t *buffers, uint32_t *bytes,
                  uint32_t timeout_us)
{
    reading how = {.take = false};
    return read_packet(q, &how, flags, buffers, bytes, timeout_us);
}

int dspqueue_peek_noblock(dspqueue_t q, uint32_t *flags, uint32_t *buffers, uint32_t *bytes)
{
    return dspqueue_peek(q, flags, buffers, bytes, AT_ONCE);
}

/* --- statistics ------------------------------------------------------------------------------ */

int dspqueue_get_stat(dspqueue_t q, int what, uint64_t *value)
{
    if (!value || what < 1 || what > STAT_SIGNALLING || !enter(q)) {
        return AEE_EBADPARM;
    }
    const ring *r = what <= 2 ? &q->to_host : &q->to_dsp;
    uint32_t packets = load(&r->state->packets_written) - load(&r->state->packets_read);
    uint32_t bytes = ring_used(r, load(&r->state->read), load(&r->state->written));
    const uint64_t values[] = {packets, bytes, packets, bytes, 0, 0, REDUCED_SIGNALLING};
    *value = values[what - 1];
    return leave(q, AEE_SUCCESS);
}
