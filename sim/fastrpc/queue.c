/*
 * dspqueue on the host: rings of packets in memory shared with the shell.
 *
 * After the end of its session a queue can only be closed.  A queue with a packet callback has a
 * thread that runs the callback, as in the real library.
 */
#define _GNU_SOURCE
#include "queue.h"
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { REQUESTS = 65536, RESPONSES = 16384, SMALLEST = 64, LARGEST = 16 << 20, QUEUES = 64 };
enum { ALIGNMENT = 256 };

static dspqueue_t queues;
static uint32_t last_id;

/* True if the session ended because its last queue was closed after its last handle.  The real
 * library then fails to unmap the memory that all queues of the session share, and uses it again
 * later. */
static bool stale[SESSIONS];

/* --- users of a queue ------------------------------------------------------------------------ */

bool queue_enter(dspqueue_t q)
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

int queue_leave(dspqueue_t q, int result)
{
    pthread_mutex_lock(&sim_lock);
    q->users--;
    pthread_cond_broadcast(&sim_changed);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* Wake all threads of the host that wait on the queue.  The words change first, so a thread that is
 * about to sleep stays awake. */
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

void queues_drop(void)
{
    queues = NULL; /* not freed: the parent shares the queues' memory */
    queues_reset();
}

void queues_reset(void)
{
    memset(stale, 0, sizeof(stale));
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
                   INT_MAX); /* the DSP's waiting threads read the new value */
    }
}

/* --- thread of the callbacks ----------------------------------------------------------------- */

static void watch(dspqueue_t q)
{
    uint32_t seen = 0;
    while (!load(&q->memory->ended)) {
        uint32_t packets = load(&q->to_host.state->packets_written);
        if (packets == seen) {
            uint64_t soon = clock_us() + QUEUE_LOOK_US;
            futex_wait(&q->to_host.state->packets_written, packets, soon);
        } else if (q->packet) {
            q->packet(q, AEE_SUCCESS, q->context);
        }
        seen = packets;
    }
    int ended = __atomic_load_n(&q->ended, __ATOMIC_SEQ_CST);
    if (ended && q->failure) {
        q->failure(q, ended, q->context);
    }
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

static void *run_watch(void *given)
{
    dspqueue_t q = given;
    watch(q);
    if (q->orphan) {
        discard(q);
    }
    return NULL;
}

/* Join the thread of a queue without users, and free the queue. */
static void end_watch(dspqueue_t q)
{
    if (q->watched && pthread_equal(q->watcher, pthread_self())) {
        q->orphan = true; /* closed from its own callback: its thread frees it after the callback */
        pthread_detach(q->watcher);
        return;
    }
    if (q->watched) {
        pthread_join(q->watcher, NULL);
    }
    discard(q);
}

/* --- create ---------------------------------------------------------------------------------- */

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

static int tell_shell(dspqueue_t q, uint32_t command)
{
    channel *l = channel_take(q->s);
    if (!l) {
        return q->s->death_in_flight;
    }
    channel_link(q->s, l)->value[0] = q->id;
    channel_link(q->s, l)->value[1] = (uint32_t) q->bytes;
    int result = command == LINK_QUEUE ? channel_call_with(q->s, l, command, q->fd)
                                       : channel_call(q->s, l, command);
    channel_leave(q->s, l);
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

/* Create a queue's memory and thread, and announce the queue to the shell. */
static int set_up(dspqueue_t q, uint32_t request_bytes, uint32_t response_bytes)
{
    if (!make_memory(q, request_bytes, response_bytes)) {
        return AEE_ENOMEMORY;
    }
    if (q->packet || q->failure) {
        q->watched = start_thread(&q->watcher, run_watch, q);
        if (!q->watched) {
            return AEE_ENOMEMORY;
        }
    }
    return q->deaf ? AEE_SUCCESS : tell_shell(q, LINK_QUEUE);
}

/* Add a queue to the list, and end it if its session died during set_up(). */
static void publish(dspqueue_t q)
{
    pthread_mutex_lock(&sim_lock);
    q->next = queues;
    queues = q;
    if (load(&q->s->ended)) {
        queues_end(q->s, AEE_EINTERRUPTED);
    }
    pthread_mutex_unlock(&sim_lock);
}

static int make(session *s, dspqueue_t q, uint32_t request_bytes, uint32_t response_bytes)
{
    pthread_mutex_lock(&sim_lock);
    bool full = count_queues(s) >= QUEUES;
    q->id = ++last_id;
    q->s = s;
    pthread_mutex_unlock(&sim_lock);
    int result = full ? AEE_EBADPARM : set_up(q, request_bytes, response_bytes);
    if (result == AEE_SUCCESS) {
        publish(q);
    } else {
        if (q->memory) {
            wake(q);
        }
        end_watch(q);
    }
    return result;
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
    return result == AEE_SUCCESS || result == AEE_ECONNRESET ? result : AEE_EUNSUPPORTED;
}

/* Return whether the real library would use the queue memory of an ended session (`stale`).  If the
 * session is not live, crash as the real library does. sim_lock held. */
static bool crosses_sessions(int domain)
{
    const session *s = session_of(domain);
    if (stale[domain / DOMAINS] && s->state != LIVE) {
        report("the last close in domain %d was that of a queue: the real library crashes when "
               "another queue is created; close handles after queues",
               domain);
        raise(SIGSEGV);
    }
    return stale[domain / DOMAINS];
}

static dspqueue_t new_queue(dspqueue_callback packet, dspqueue_callback error, void *context,
                            bool deaf)
{
    dspqueue_t q = calloc(1, sizeof(*q));
    if (q) {
        q->fd = -1;
        q->packet = packet;
        q->failure = error;
        q->context = context;
        q->deaf = deaf;
        pthread_mutex_init(&q->reading, NULL);
        pthread_mutex_init(&q->writing, NULL);
    }
    return q;
}

static bool is_size(uint32_t bytes)
{
    return bytes >= SMALLEST && bytes <= LARGEST;
}

int dspqueue_create(int domain, uint32_t flags, uint32_t request_bytes, uint32_t response_bytes,
                    dspqueue_callback packet, dspqueue_callback error, void *context,
                    dspqueue_t *queue)
{
    session *s;
    if (!queue) {
        return AEE_EBADPARM;
    }
    *queue = NULL;
    domain = domain == -1 ? CDSP : domain;
    request_bytes = request_bytes ? request_bytes : REQUESTS;
    response_bytes = response_bytes ? response_bytes : RESPONSES;
    if (flags || !is_size(request_bytes) || !is_size(response_bytes) || domain < 0 ||
        domain >= DOMAINS * SESSIONS) {
        return AEE_EBADPARM;
    }
    if (domain % DOMAINS != CDSP) {
        return AEE_EUNSUPPORTED;
    }
    pthread_mutex_lock(&sim_lock);
    bool deaf = crosses_sessions(domain);
    pthread_mutex_unlock(&sim_lock);
    int result = start_session(domain, &s);
    if (result != AEE_SUCCESS) {
        return result;
    }
    dspqueue_t q = new_queue(packet, error, context, deaf);
    result =
        q ? make(s, q, ring_padded(request_bytes), ring_padded(response_bytes)) : AEE_ENOMEMORY;
    pthread_mutex_lock(&sim_lock);
    session_leave(s);
    if (result != AEE_SUCCESS) {
        session_stop_unused(s);
    }
    pthread_mutex_unlock(&sim_lock);
    *queue = result == AEE_SUCCESS ? q : NULL;
    return result;
}

/* --- close ----------------------------------------------------------------------------------- */

/* Claim the queue's close for this thread; false: it cannot be closed.  After the claim,
 * queue_enter() fails for all threads.  *s is the queue's live session, entered, or NULL. */
static bool claim_close(dspqueue_t q, session **s)
{
    pthread_mutex_lock(&sim_lock);
    *s = q->s && q->s->state == LIVE ? q->s : NULL;
    bool good = !q->closing && !(*s && load(&q->memory->imported));
    if (good) {
        q->closing = true;
    }
    if (good && *s) {
        session_enter(*s);
    }
    pthread_mutex_unlock(&sim_lock);
    return good;
}

/* Wait until this thread is the queue's only user, then remove the queue from the list. */
static void retire(dspqueue_t q, session *s)
{
    pthread_mutex_lock(&sim_lock);
    if (s) {
        session_leave(s);
    }
    wake(q);
    while (q->users > 1) {
        pthread_cond_wait(&sim_changed, &sim_lock);
    }
    dspqueue_t *at = &queues;
    while (*at != q) {
        at = &(*at)->next;
    }
    *at = q->next;
    if (s && s->state == LIVE) {
        stale[s->domain / DOMAINS] |= session_stop_unused(s);
    }
    pthread_mutex_unlock(&sim_lock);
}

/* Return the code of a call on a value that is not an open queue.  In faithful mode, first raise
 * signal *number* unless it is 0. */
static int mistaken(int number)
{
    pthread_mutex_lock(&sim_lock);
    bool faithful = settings()->faithful;
    pthread_mutex_unlock(&sim_lock);
    if (faithful && number) {
        raise(number);
    }
    return AEE_EBADPARM;
}

int dspqueue_close(dspqueue_t q)
{
    session *s;
    if (!queue_enter(q)) {
        return mistaken(q ? SIGABRT : 0);
    }
    if (!claim_close(q, &s)) {
        return queue_leave(q, AEE_EBADPARM); /* a skel has imported the queue */
    }
    if (s && !q->deaf) {
        tell_shell(q, LINK_DROP_QUEUE);
    }
    retire(q, s);
    end_watch(q);
    return AEE_SUCCESS;
}

int dspqueue_export(dspqueue_t q, uint64_t *id)
{
    if (!id || !queue_enter(q)) {
        return mistaken(q ? 0 : SIGSEGV);
    }
    *id = q->id;
    return queue_leave(q, AEE_SUCCESS);
}

/* Refuse requests for queues to several DSPs. */
int dspqueue_request(void *request)
{
    return request ? AEE_EUNSUPPORTED : AEE_EBADPARM;
}
