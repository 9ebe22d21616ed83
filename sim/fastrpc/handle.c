/*
 * Handles: opening, calling and closing skels.
 *
 * In strict mode a call fails unless its handle is open.  Faithful mode follows the real library: a
 * call on an unknown handle returns success without effect, and closing a handle twice reduces the
 * session's count of handles twice.
 */
#include "sim.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Handles look like heap addresses: they do not fit in 32 bits. */
#define FIRST_HANDLE 0x7ec012345640u
enum { HANDLE_STEP = 0x40 };

typedef struct open_handle {
    struct open_handle *next;
    uint64_t id;
    session *s;
    uint32_t generation; /* generation of `s` when the handle was opened */
    uint32_t remote;
    bool closed; /* stays until the session ends: the real library forwards later calls */
    uint64_t packets;
} open_handle;

static open_handle *handles;
static uint64_t last_id = FIRST_HANDLE;

static open_handle *find(uint64_t id)
{
    open_handle *h = handles;
    while (h && h->id != id) {
        h = h->next;
    }
    return h;
}

/* Remove the handles of sessions that have ended. */
static void sweep(void)
{
    for (open_handle **at = &handles; *at;) {
        open_handle *h = *at;
        if (h->s->state == IDLE || h->generation != h->s->generation) {
            *at = h->next;
            free(h);
        } else {
            at = &h->next;
        }
    }
}

void handles_drop(void)
{
    handles = NULL; /* not freed: a child made by fork may not call free() */
}

static uint64_t add(session *s, uint32_t remote)
{
    open_handle *h = malloc(sizeof(*h));
    if (!h) {
        return 0;
    }
    last_id += HANDLE_STEP;
    *h = (open_handle){handles, last_id, s, s->generation, remote, false, 0};
    handles = h;
    s->handles++;
    return h->id;
}

/* --- the session ----------------------------------------------------------------------------- */

bool session_used(const session *s)
{
    return s->handles || queues_any(s);
}

bool session_stop_unused(session *s)
{
    bool unused = !session_used(s) && !s->users && (s->state == LIVE || s->state == DEAD);
    if (unused) {
        session_stop(s);
        sweep();
    }
    return unused;
}

/* Enter the session of a domain, after starting it if it is not running; return AEE_SUCCESS or an
 * error code. */
static int enter_session(int domain, session **entered)
{
    session *s = session_of(domain);
    if (!s) {
        errno = ENOENT;
        return AEE_ECONNREFUSED; /* a domain that this machine does not have */
    }
    while (s->state == STARTING || s->state == STOPPING) {
        pthread_cond_wait(&sim_changed, &sim_lock);
    }
    if (s->state == DEAD) {
        if (session_used(s)) {
            return s->death;
        }
        session_stop(s);
    }
    int result = s->state == IDLE ? session_start(s, want_unsigned(domain)) : AEE_SUCCESS;
    if (result == AEE_SUCCESS) {
        session_enter(s);
        *entered = s;
    }
    return result;
}

int session_use(int domain, session **entered)
{
    pthread_mutex_lock(&sim_lock);
    sweep();
    int result = enter_session(domain, entered);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

static int open_fault(void)
{
    uint32_t code = 0;
    pthread_mutex_lock(&sim_lock);
    if (fault_due(FAULT_WRONG_ARCH, &code)) {
        code = (uint32_t) DSP_EUNABLETOLOAD;
    } else if (fault_due(FAULT_NO_SYMBOL, &code)) {
        code = (uint32_t) DSP_ENOSUCHSYMBOL;
    } else if (!fault_due(FAULT_OPEN, &code)) {
        code = AEE_SUCCESS;
    }
    pthread_mutex_unlock(&sim_lock);
    return (int) code;
}

/* Report why a skel did not load, with the messages that the shell logged after position *before*.
 * */
static void explain(const session *s, const char *uri, int result, bool missing, uint32_t before)
{
    char said[300] = "";
    size_t room = load(&s->link->logged) - before + 1;
    if (result != DSP_EUNABLETOLOAD && result != DSP_ENOSUCHSYMBOL) {
        return;
    }
    if (!missing) {
        session_log(s, said, room < sizeof(said) ? room : sizeof(said));
    }
    report("open of %.200s: %#x\n%s", uri, (unsigned) result,
           missing ? "there is no such file in DSP_LIBRARY_PATH (\";\" separates folders)" : said);
}

/* Open the skel in the shell. */
static int open_remote(session *s, const char *uri, uint32_t *remote)
{
    size_t bytes = strlen(uri);
    int result = open_fault();
    if (result != AEE_SUCCESS) {
        return result;
    }
    channel *l = channel_take(s);
    if (!l) {
        return s->death_in_flight;
    }
    uint32_t logged = load(&s->link->logged);
    int fd = uri_open(uri);
    result = channel_reserve(s, l, bytes + 1);
    if (result == AEE_SUCCESS) {
        memcpy(l->area, uri, bytes + 1);
        channel_link(s, l)->value[0] = l->address;
        channel_link(s, l)->value[1] = (uint32_t) bytes;
        /* If there is no file, send a descriptor that is not a skel, because the shell checks the
         * URI. */
        result = channel_call_with(s, l, LINK_OPEN, fd >= 0 ? fd : s->memory);
        *remote = channel_link(s, l)->handle;
    }
    if (fd >= 0) {
        close(fd);
    }
    explain(s, uri, result, fd < 0, logged);
    channel_leave(s, l);
    return result;
}

/* Open a skel in the session of *domain*.  If the skel does not open, a session that was started
 * for it keeps running, as in the real library. */
static int open_in(int domain, const char *uri, uint64_t *handle)
{
    session *s;
    uint32_t remote = 0;
    int result = session_use(domain, &s);
    if (result != AEE_SUCCESS) {
        return result;
    }
    result = open_remote(s, uri, &remote);
    pthread_mutex_lock(&sim_lock);
    uint64_t id = result == AEE_SUCCESS ? add(s, remote) : 0;
    session_leave(s);
    if (result == AEE_ECONNRESET) {
        session_stop_unused(s);
    }
    pthread_mutex_unlock(&sim_lock);
    if (id) {
        *handle = id;
    }
    return result == AEE_SUCCESS && !id ? AEE_ENOMEMORY : result;
}

int remote_handle64_open(const char *uri, uint64_t *handle)
{
    pthread_mutex_lock(&sim_lock);
    int domain = handle ? uri_domain(uri) : -1;
    pthread_mutex_unlock(&sim_lock);
    return domain < 0 ? AEE_EBADPARM : open_in(domain, uri, handle);
}

/* Open a skel, by default on the CDSP, the DSP that this library is named after. */
int remote_handle_open(const char *uri, uint32_t *handle)
{
    uint64_t id = 0;
    int result = uri && handle ? open_in(CDSP, uri, &id) : AEE_EBADPARM;
    if (result == AEE_SUCCESS) {
        *handle = (uint32_t) id;
    }
    return result;
}

/* --- use ------------------------------------------------------------------------------------- */

/* Return the code of a call on *h* (or NULL) without a call of the DSP.  If the code is AEE_SUCCESS
 * and *h* has a live session, the caller calls the DSP. sim_lock held. */
static int refuse(const open_handle *h)
{
    bool faithful = settings()->faithful;
    if (!h || h->s->state == IDLE || h->s->state == STOPPING) {
        return faithful ? AEE_SUCCESS : DSP_EINVHANDLE;
    }
    return h->s->death; /* the DSP itself rejects calls on closed handles */
}

int remote_handle64_invoke(uint64_t handle, uint32_t scalars, remote_arg *arguments)
{
    pthread_mutex_lock(&sim_lock);
    sweep();
    open_handle *h = find(handle);
    int result = refuse(h);
    bool ask = h && result == AEE_SUCCESS && h->s->state == LIVE;
    session *s = ask ? h->s : NULL;
    uint32_t remote = ask ? h->remote : 0;
    if (ask) {
        session_enter(s);
    }
    pthread_mutex_unlock(&sim_lock);
    if (!ask) {
        return result;
    }
    uint64_t packets = 0;
    result = invoke(s, remote, scalars, arguments, &packets);
    pthread_mutex_lock(&sim_lock);
    session_leave(s);
    h = find(handle);
    if (h) {
        h->packets = packets;
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* Return the 64-bit handle with these lower 32 bits, or 0 if there is none. */
static uint64_t widened(uint32_t handle)
{
    pthread_mutex_lock(&sim_lock);
    sweep();
    const open_handle *h = handles;
    while (h && (uint32_t) h->id != handle) {
        h = h->next;
    }
    uint64_t id = h ? h->id : 0;
    pthread_mutex_unlock(&sim_lock);
    return id;
}

/* Call a skel by a 32-bit handle.  An unknown handle is not an error, as in the real library. */
int remote_handle_invoke(uint32_t handle, uint32_t scalars, remote_arg *arguments)
{
    uint64_t id = widened(handle);
    return id ? remote_handle64_invoke(id, scalars, arguments) : AEE_SUCCESS;
}

int handle_domain(uint64_t handle)
{
    pthread_mutex_lock(&sim_lock);
    const open_handle *h = find(handle);
    int domain = h && !h->closed && h->s->state != IDLE ? h->s->domain : -1;
    pthread_mutex_unlock(&sim_lock);
    return domain;
}

uint64_t npurt_sim_packets(uint64_t handle)
{
    pthread_mutex_lock(&sim_lock);
    const open_handle *h = find(handle);
    uint64_t packets = h ? h->packets : 0;
    pthread_mutex_unlock(&sim_lock);
    return packets;
}

/* --- close ----------------------------------------------------------------------------------- */

static int close_remote(session *s, uint32_t remote)
{
    channel *l = channel_take(s);
    if (!l) {
        return s->death_in_flight;
    }
    channel_link(s, l)->handle = remote;
    int result = channel_call(s, l, LINK_CLOSE);
    channel_leave(s, l);
    return result;
}

/* Reduce the session's count of handles, and stop the session if it has no handle and no queue
 * left. sim_lock held. */
static void count_down(session *s)
{
    s->handles -= s->handles > 0;
    if (!session_used(s) && (s->state == LIVE || s->state == DEAD)) {
        session_stop(s);
        sweep();
    }
}

int remote_handle64_close(uint64_t handle)
{
    pthread_mutex_lock(&sim_lock);
    sweep();
    open_handle *h = find(handle);
    bool faithful = settings()->faithful;
    if (!h || (h->closed && !faithful) || h->s->state == STOPPING) {
        pthread_mutex_unlock(&sim_lock);
        return AEE_EINVHANDLE;
    }
    session *s = h->s;
    uint32_t remote = h->remote;
    bool last = s->handles == 1 && !queues_any(s);
    int result = last ? AEE_SUCCESS : s->death; /* the last close makes no call */
    /* A LIVE session with a `death` was killed, but its keeper has not marked it DEAD yet.  When
     * the last handle is closed, the real library ends the session without calling the skel's
     * close. */
    bool alive = s->state == LIVE && s->death == AEE_SUCCESS;
    bool tell = alive && !h->closed && !(faithful && last);
    h->closed = true;
    if (tell) {
        session_enter(s);
        pthread_mutex_unlock(&sim_lock);
        result = close_remote(s, remote);
        pthread_mutex_lock(&sim_lock);
        session_leave(s);
    }
    count_down(s);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

int remote_handle_close(uint32_t handle)
{
    uint64_t id = widened(handle);
    return id ? remote_handle64_close(id) : AEE_SUCCESS;
}
