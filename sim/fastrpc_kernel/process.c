/* Processes of the DSP, one per open file of the device, and calls into them. */
#define _GNU_SOURCE
#include "kernel.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ARGUMENTS = 600, SMALL_QUEUE = 64 };
enum { SESSION_UNSIGNED = 2, SESSION_CLOSE = 7, EXCEPTION = 9 };

static process processes[PROCESSES];

process *process_of(int file)
{
    for (int i = 0; i < PROCESSES; i++) {
        if (processes[i].used && processes[i].file == file) {
            return &processes[i];
        }
    }
    return NULL;
}

/* --- start and end ----------------------------------------------------------------------- */

/* Start the simulator's session.  An unused queue keeps the session alive while the file is open.
 * */
static int start(process *p)
{
    struct {
        int domain, on;
    } ask = {p->domain, 1};
    int code = dsp.session(SESSION_UNSIGNED, &ask, sizeof(ask));
    return code ? code
                : dsp.queue_create(p->domain, 0, SMALL_QUEUE, SMALL_QUEUE, NULL, NULL, NULL,
                                   &p->keeper);
}

int process_create(int file, const driver_create *asked)
{
    if (!(asked->attributes & CREATE_UNSIGNED)) {
        return fail(ECONNREFUSED); /* the driver's is_session_rejected() refuses it */
    }
    pthread_mutex_lock(&kernel_lock);
    int i = 0;
    while (i < PROCESSES && processes[i].used) {
        i++;
    }
    bool good = i < PROCESSES && !process_of(file);
    process *p = &processes[i % PROCESSES];
    if (good) {
        *p = (process){.used = true, .file = file, .domain = CDSP + DOMAINS * i};
        pthread_mutex_init(&p->reverse.calling, NULL);
    }
    pthread_mutex_unlock(&kernel_lock);
    if (!good) {
        return fail(EBUSY);
    }
    if (start(p)) {
        p->used = false;
        return fail(ENODEV);
    }
    return 0;
}

void process_leave(process *p)
{
    pthread_mutex_lock(&kernel_lock);
    p->exiting = true;
    pthread_cond_broadcast(&kernel_changed);
    pthread_mutex_unlock(&kernel_lock);
}

void process_end(process *p)
{
    process_leave(p);
    for (int i = 0; i < PROCESS_QUEUES; i++) {
        if (p->queues[i].used) {
            queue_end(&p->queues[i]);
        }
    }
    for (int i = 0; i < MODULES; i++) {
        if (p->modules[i].used && p->modules[i].kind == SKEL) {
            dsp.close(p->modules[i].handle);
        }
    }
    /* End the session first: otherwise the simulator reports the close of its last queue. */
    dsp.session(EXCEPTION, &p->domain, sizeof(p->domain));
    dsp.queue_close(p->keeper);
    dsp.session(SESSION_CLOSE, &p->domain, sizeof(p->domain));
    p->used = false;
}

/* --- calls ----------------------------------------------------------------------------------- */

static int serve(process *p, uint32_t handle, uint32_t scalars, argument *arguments)
{
    uint32_t method = scalars >> 24 & 31;
    switch (handle) {
    case REMOTECTL:
        return remotectl(p, method, arguments);
    case REMOTECTL1:
        return remotectl(p, method - 2, arguments);
    case CURRENT1:
        if (method == CURRENT_EXIT) {
            process_leave(p);
        } else if (method == CURRENT_EXCEPTION) {
            dsp.session(EXCEPTION, &p->domain, sizeof(p->domain));
            return DSP(E_BADSTATE);
        }
        return 0;
    case LISTENER1:
        method -= 2;
        /* fallthrough */
    case LISTENER:
        if (method == LISTENER_START) {
            listener_start(p);
        }
        return method == LISTENER_NEXT   ? listener_next(p, arguments)
               : method == LISTENER_MORE ? listener_more(p, arguments)
                                         : 0;
    case MESSAGES1:
        return 0;
    default:
        return handle >= FIRST_MODULE ? module_call(p, handle, scalars, arguments)
                                      : DSP(E_NOSUCHMOD);
    }
}

/* Return whether the first and the last byte can be read, as copy_from_user() requires. */
static bool readable(const char *at, size_t bytes)
{
    static int scratch = -1; /* the kernel copies a byte to it, or reports EFAULT */
    if (scratch < 0) {
        scratch = memfd_create("scratch", MFD_CLOEXEC);
    }
    return bytes == 0 ||
           (pwrite(scratch, at, 1, 0) == 1 && pwrite(scratch, at + bytes - 1, 1, 0) == 1);
}

/* Return whether the simulator's session has died; if it has, end the waiting calls. */
static bool has_died(process *p)
{
    bool died = dsp.process(p->domain) < 0;
    if (died) {
        process_leave(p);
    }
    return died;
}

/* The DSP restarts: this call, the waiting calls and all later ones of the process fail, as the
 * driver's fastrpc_notify_users() and its check of the channel do. */
static void lose(process *p)
{
    pthread_mutex_lock(&kernel_lock);
    p->lost = true;
    pthread_mutex_unlock(&kernel_lock);
    process_leave(p);
}

static bool is_lost(const process *p)
{
    pthread_mutex_lock(&kernel_lock);
    bool lost = p->lost;
    pthread_mutex_unlock(&kernel_lock);
    return lost;
}

int process_call(process *p, const driver_invoke *asked)
{
    argument arguments[ARGUMENTS];
    const driver_argument *in = (const driver_argument *) (uintptr_t) asked->arguments;
    int buffers = (int) ((asked->scalars >> 16 & 255) + (asked->scalars >> 8 & 255));
    int all = buffers + (int) ((asked->scalars >> 4 & 15) + (asked->scalars & 15));
    if (asked->handle >= FIRST_MODULE) {
        count_call(asked);
    }
    for (int i = 0; i < all; i++) {
        if (i >= buffers) {
            arguments[i].dma.fd = in[i].fd;
            arguments[i].dma.offset = (uint32_t) in[i].address;
            continue;
        }
        arguments[i].buffer.at = (void *) (uintptr_t) in[i].address;
        arguments[i].buffer.bytes = in[i].bytes;
        if (in[i].bytes > INT_MAX) {
            return fail(ENOMEM);
        }
        if (!readable(arguments[i].buffer.at, in[i].bytes)) {
            return fail(EFAULT);
        }
    }
    int code = is_lost(p)    ? E_ECONNRESET
               : has_died(p) ? E_NOSUCH
                             : serve(p, asked->handle, asked->scalars, arguments);
    has_died(p);
    if (code == E_ECONNRESET) {
        lose(p);
    }
    say("call of %#x, scalars %#x: %#x", asked->handle, asked->scalars, (unsigned) code);
    return is_lost(p) ? fail(EPIPE) : code;
}
