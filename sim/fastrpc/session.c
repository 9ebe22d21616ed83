/*
 * Sessions: each has one DSP process and one keeper thread.
 *
 * The keeper starts the DSP process and waits for its end.  Then the keeper wakes all threads that
 * wait for answers, so no thread waits for a dead process.  The kernel kills the DSP process when
 * the keeper ends, hence also when the host process ends.  A child made by fork has no keepers and
 * starts with no sessions.
 */
#define _GNU_SOURCE
#include "sim.h"
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { START_US = 10000000 }; /* the kernel's timeout of INIT_CREATE is also 10 s */
enum { LOOK_MS = 500, SHORT_US = 10000, EXIT_S = 1 };

pthread_mutex_t sim_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t sim_changed = PTHREAD_COND_INITIALIZER;
session sessions[SESSIONS];
static uint64_t absent_until; /* end of the DSP's restart, clock_us() */
static uint32_t generations;

session *session_of(int domain)
{
    if (domain < 0 || domain % DOMAINS != CDSP || domain / DOMAINS >= SESSIONS) {
        return NULL;
    }
    session *s = &sessions[domain / DOMAINS];
    s->domain = domain;
    return s;
}

bool dsp_present(void)
{
    return settings()->present && clock_us() >= absent_until;
}

void session_enter(session *s)
{
    s->users++;
}

void session_leave(session *s)
{
    s->users--;
    pthread_cond_broadcast(&sim_changed);
}

/* --- end of a session
 * --------------------------------------------------------------------------------- */

/* Return whether the process has closed its socket.  The pid proves nothing, because another
 * process may have the same pid by now. */
static bool is_gone(const session *s)
{
    struct pollfd p = {.fd = s->socket, .events = POLLRDHUP};
    return poll(&p, 1, 0) != 0;
}

void session_kill(session *s, int code, int code_in_flight)
{
    if (s->death == AEE_SUCCESS) {
        s->death = code;
        s->death_in_flight = code_in_flight;
    }
    if (s->process > 0 && !is_gone(s)) {
        kill(s->process, SIGKILL);
    }
}

void dsp_restart(uint32_t milliseconds)
{
    absent_until = clock_us() + milliseconds * 1000ull;
    for (int i = 0; i < SESSIONS; i++) {
        if (sessions[i].state == LIVE) {
            session_kill(&sessions[i], AEE_ECONNRESET, AEE_ECONNRESET);
        }
    }
}

size_t session_log(const session *s, char *text, size_t bytes)
{
    uint32_t said = s->link ? load(&s->link->logged) : 0, length = said;
    length = length < LINK_LOG ? length : LINK_LOG;
    length = length < bytes - 1 ? length : (uint32_t) bytes - 1;
    for (uint32_t i = 0; i < length; i++) {
        text[i] = (char) s->link->log[(said - length + i) % LINK_LOG];
    }
    text[length] = 0;
    return length;
}

/* Read qemu's messages, for example about an unknown instruction. */
static void read_qemu(const session *s, char *text, size_t bytes)
{
    off_t end = lseek(s->log, 0, SEEK_END);
    off_t from = end < (off_t) bytes ? 0 : end - (off_t) bytes + 1;
    ssize_t got = end > 0 ? pread(s->log, text, bytes - 1, from) : 0;
    text[got > 0 ? got : 0] = 0;
}

static void say_how_it_ended(const session *s, int status)
{
    char words[400], qemu[400];
    const char *how = WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "it exited";
    const char *before = session_log(s, words, sizeof(words)) ? "; its last messages:\n" : "";
    read_qemu(s, qemu, sizeof(qemu));
    report("the DSP process of domain %d died: %s%s%s%s%s", s->domain, how, before, words,
           *qemu ? "\n" : "", qemu);
}

/* Mark the session dead and wake all threads that wait for it; sim_lock held. */
static void end(session *s, int status)
{
    bool expected = s->death != AEE_SUCCESS || s->state == STOPPING;
    s->process = -1;
    if (!expected && s->state == LIVE) {
        say_how_it_ended(s, status);
    }
    if (s->death == AEE_SUCCESS) {
        s->death = AEE_ENOSUCH;
        s->death_in_flight = DSP_EBADSTATE;
    }
    s->state = s->state == STOPPING ? STOPPING : DEAD;
    store(&s->ended, 1);
    futex_wake(&s->ended, INT_MAX);
    channels_end(s);
    queues_end(s, s->death == AEE_ECONNRESET ? AEE_ECONNRESET : AEE_EINTERRUPTED);
    pthread_cond_broadcast(&sim_changed);
}

/* --- the keeper ------------------------------------------------------------------------------ */

typedef struct {
    session *s; /* the keeper sets it to NULL after it has set `process` */
    link_machine machine;
    int peer;      /* the DSP process's end of the socket */
    pid_t process; /* set by the keeper; -1: the start failed */
} keeping;

static int await(pid_t process, int socket)
{
    int status = 0;
    for (;;) {
        struct pollfd p = {.fd = socket, .events = POLLRDHUP};
        int closed = poll(&p, 1, LOOK_MS);
        pid_t got = waitpid(process, &status, closed > 0 ? 0 : WNOHANG);
        if (got == process || (got < 0 && errno != EINTR)) {
            return status; /* waitpid also fails if another thread has reaped the process */
        }
    }
}

static void *keep(void *given)
{
    keeping k = *(keeping *) given;
    session *s = k.s;
    pid_t process = process_start(&k.machine, s->log, s->memory, k.peer);
    close(k.peer);
    pthread_mutex_lock(&sim_lock);
    s->process = process;
    ((keeping *) given)->process = process;
    ((keeping *) given)->s = NULL;
    pthread_cond_broadcast(&sim_changed);
    pthread_mutex_unlock(&sim_lock);
    int status = process > 0 ? await(process, s->socket) : 0;
    pthread_mutex_lock(&sim_lock);
    end(s, status);
    pthread_mutex_unlock(&sim_lock);
    return NULL;
}

bool start_thread(pthread_t *thread, void *(*entry)(void *), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(thread, NULL, entry, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static bool start_keeper(session *s, keeping *k)
{
    bool started = start_thread(&s->keeper, keep, k);
    while (started && k->s) {
        pthread_cond_wait(&sim_changed, &sim_lock);
    }
    return started;
}

/* --- start of a session
 * ------------------------------------------------------------------------------- */

static void release(session *s)
{
    if (s->link && s->link != MAP_FAILED) {
        munmap(s->link, sizeof(link_memory));
    }
    for (int i = 0; i < LINK_CHANNELS; i++) {
        channel *l = &s->channel[i];
        if (l->block) {
            munmap(l->area, l->bytes);
            close(l->fd);
        }
        *l = (channel){0};
    }
    int *descriptors[] = {&s->memory, &s->socket, &s->log};
    for (int i = 0; i < 3; i++) {
        if (*descriptors[i] >= 0) {
            close(*descriptors[i]);
        }
        *descriptors[i] = -1;
    }
    memset(s->map, 0, sizeof(s->map));
    s->link = NULL;
}

static bool prepare(session *s, const link_machine *machine, int *peer)
{
    int pair[2];
    s->memory = memfd_create("dsp link", MFD_CLOEXEC);
    s->socket = -1;
    s->log = settings()->log ? dup(2) : memfd_create("dsp log", MFD_CLOEXEC);
    if (s->memory < 0 || s->log < 0 || ftruncate(s->memory, sizeof(link_memory)) ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) {
        return false;
    }
    s->socket = pair[0];
    *peer = pair[1];
    s->link = mmap(NULL, sizeof(link_memory), PROT_READ | PROT_WRITE, MAP_SHARED, s->memory, 0);
    if (s->link == MAP_FAILED) {
        return false;
    }
    s->link->machine = *machine;
    for (int i = 0; i < LINK_CHANNELS; i++) {
        s->link->channel[i].asked = s->link->channel[i].answered = LINK_ENDED + 1;
        s->channel[i].asked = LINK_ENDED + 1;
    }
    return true;
}

/* Wait until the shell serves requests; false: it died, or the wait timed out.  Call without
 * sim_lock. */
static bool await_ready(session *s)
{
    uint64_t end = clock_us() + START_US;
    while (load(&s->link->ready) == 0 && !load(&s->ended) && clock_us() < end) {
        /* The wait is short, because the end of the process does not wake this word. */
        futex_wait(&s->link->ready, 0, clock_us() + SHORT_US);
    }
    return load(&s->link->ready) != 0;
}

/* Report why the start failed, set errno, and return the code of the failed open. */
static int explain_start(pid_t process, bool died)
{
    if (process > 0 && !died) {
        errno = ETIMEDOUT;
        return -1;
    }
    if (process > 0) {
        /* process_explain() starts a process, and a fork handler may take the lock. */
        pthread_mutex_unlock(&sim_lock);
        process_explain();
        pthread_mutex_lock(&sim_lock);
    }
    errno = ENOENT;
    return AEE_ECONNREFUSED;
}

static int start_process(session *s, const link_machine *machine)
{
    keeping k = {.s = s, .machine = *machine, .peer = -1};
    if (!prepare(s, machine, &k.peer) || !start_keeper(s, &k)) {
        close(k.peer);
        release(s);
        s->state = IDLE;
        reserve_domain(s->domain, false);
        errno = ENOMEM;
        return -1;
    }
    pid_t process = k.process;
    pthread_mutex_unlock(&sim_lock);
    bool ready = process > 0 && await_ready(s);
    pthread_mutex_lock(&sim_lock);
    if (ready && s->state == STARTING) {
        s->state = LIVE;
        return AEE_SUCCESS;
    }
    bool died = load(&s->ended);
    session_stop(s);
    return explain_start(process, died);
}

int session_start(session *s, bool want_unsigned)
{
    uint32_t code;
    report_forget();
    if (!settings_understood()) {
        errno = EINVAL;
        return AEE_ECONNREFUSED;
    }
    if (!dsp_present()) {
        errno = ENOENT;
        return AEE_ECONNREFUSED;
    }
    if (fault_due(FAULT_START, &code)) {
        errno = EINVAL;
        return (int) code;
    }
    if (!want_unsigned && !settings()->signed_pd) {
        report("a signed PD is refused on this node\n"
               "  remedy: request an unsigned PD (DSPRPC_CONTROL_UNSIGNED_MODULE) before the open");
        errno = ECONNREFUSED;
        return AEE_ECONNREFUSED;
    }
    link_machine machine = settings()->machine;
    machine.verbose = settings()->log;
    machine.stack = s->stack ? s->stack : machine.stack;
    reserve_domain(s->domain, true);
    s->state = STARTING;
    s->unsigned_pd = want_unsigned;
    s->handles = 0;
    s->generation = ++generations;
    s->death = AEE_SUCCESS;
    s->process = 0;
    s->next_id = 0;
    store(&s->ended, 0);
    int result = start_process(s, &machine);
    pthread_cond_broadcast(&sim_changed);
    return result;
}

/* Kill the process and join its keeper, which has then woken all waiting threads. */
static void end_process(session *s)
{
    s->state = STOPPING;
    session_kill(s, AEE_ENOSUCH, DSP_EBADSTATE);
    pthread_mutex_unlock(&sim_lock);
    pthread_join(s->keeper, NULL);
    pthread_mutex_lock(&sim_lock);
}

void session_stop(session *s)
{
    end_process(s);
    while (s->users) {
        pthread_cond_wait(&sim_changed, &sim_lock);
    }
    queues_forget(s);
    release(s);
    s->state = IDLE;
    reserve_domain(s->domain, false);
    pthread_cond_broadcast(&sim_changed);
}

/* --- fork, load and exit of the host process ------------------------------------------------- */

static void before_fork(void)
{
    pthread_mutex_lock(&sim_lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&sim_lock);
}

/* Reset the library in a child made by fork: the child has no keepers, and the parent's handles are
 * invalid there.  ThreadSanitizer and valgrind replace the vfork() of process_start() by fork();
 * that child keeps its descriptors, because it becomes qemu. */
static void in_child(void)
{
    if (process_starting) {
        return;
    }
    for (int i = 0; i < SESSIONS; i++) {
        session *s = &sessions[i];
        if (s->state != IDLE) {
            release(s);
        }
        s->state = IDLE;
        s->users = 0;
        s->process = -1;
        pthread_mutex_init(&s->passing, NULL);
    }
    handles_drop();
    queues_drop();
    report_reset();
    pthread_mutex_init(&sim_lock, NULL);
    pthread_cond_init(&sim_changed, NULL);
}

__attribute__((constructor)) static void begin(void)
{
    for (int i = 0; i < SESSIONS; i++) {
        sessions[i].memory = sessions[i].socket = sessions[i].log = -1;
        pthread_mutex_init(&sessions[i].passing, NULL);
    }
    pthread_atfork(before_fork, after_fork, in_child);
}

/* Kill all DSP processes at exit, without waiting for calls of other threads. */
__attribute__((destructor)) static void finish(void)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += EXIT_S;
    if (pthread_mutex_timedlock(&sim_lock, &end)) {
        return; /* a stopped thread holds the lock: the kernel kills the DSP processes */
    }
    for (int i = 0; i < SESSIONS; i++) {
        if (sessions[i].state == LIVE || sessions[i].state == DEAD) {
            end_process(&sessions[i]);
        }
    }
    pthread_mutex_unlock(&sim_lock);
}

/* --- inspection ------------------------------------------------------------------------------ */

int npurt_sim_process(int domain)
{
    pthread_mutex_lock(&sim_lock);
    const session *s = session_of(domain);
    int process = s && s->state == LIVE ? (int) s->process : -1;
    pthread_mutex_unlock(&sim_lock);
    return process;
}

size_t npurt_sim_log(int domain, char *text, size_t bytes)
{
    pthread_mutex_lock(&sim_lock);
    const session *s = session_of(domain);
    size_t length = s && text && bytes ? session_log(s, text, bytes) : 0;
    pthread_mutex_unlock(&sim_lock);
    return length;
}

uint64_t npurt_sim_total_packets(int domain)
{
    uint64_t total = 0;
    pthread_mutex_lock(&sim_lock);
    const session *s = session_of(domain);
    for (int i = 0; s && s->link && i < LINK_THREADS; i++) {
        total += __atomic_load_n(&s->link->packets[i], __ATOMIC_SEQ_CST);
    }
    pthread_mutex_unlock(&sim_lock);
    return total;
}
