/* The module that serves dspqueue: each queue of the library has a `twin`, a queue in the
 * simulator's session, and two threads that move packets between the two queues (ring.c). */
#define _GNU_SOURCE
#include "kernel.h"
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

enum { TWIN_BYTES = 65536, NAP_NS = 5000000, SECOND_NS = 1000000000 };

void queue_signal(process *p)
{
    pthread_mutex_lock(&kernel_lock);
    p->signalled = true;
    pthread_cond_broadcast(&kernel_changed);
    pthread_mutex_unlock(&kernel_lock);
}

void queue_nap(void)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += NAP_NS;
    end.tv_sec += end.tv_nsec / SECOND_NS;
    end.tv_nsec %= SECOND_NS;
    pthread_mutex_lock(&kernel_lock);
    pthread_cond_timedwait(&kernel_changed, &kernel_lock, &end);
    pthread_mutex_unlock(&kernel_lock);
}

static void *look_at(int fd, size_t *bytes)
{
    struct stat about;
    if (fstat(fd, &about)) {
        return NULL;
    }
    *bytes = (size_t) about.st_size;
    void *at = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

static queue *queue_of(process *p, const argument *number)
{
    for (int i = 0; i < PROCESS_QUEUES; i++) {
        if (p->queues[i].used && p->queues[i].number == *(const uint64_t *) number->buffer.at) {
            return &p->queues[i];
        }
    }
    return NULL;
}

void queue_end(queue *q)
{
    q->stop = true;
    pthread_mutex_lock(&kernel_lock);
    pthread_cond_broadcast(&kernel_changed);
    pthread_mutex_unlock(&kernel_lock);
    if (!q->closed) {
        dsp.queue_close(q->twin);
    }
    pthread_join(q->out, NULL);
    pthread_join(q->back, NULL);
    munmap(q->header, q->bytes);
    q->used = false;
}

static int make(process *p, const uint32_t *in, uint64_t *number)
{
    if (in[0] >= PROCESS_QUEUES || !p->counts) {
        return DSP(E_BADPARM);
    }
    queue *q = &p->queues[in[0]];
    *q = (queue){.id = (int) in[0], .owner = p};
    q->header = look_at((int) in[1], &q->bytes);
    if (!q->header) {
        return DSP(E_NOSUCHMAP);
    }
    bool known = q->header->version == 1 || (q->header->version == 2 && q->header->flags <= 1);
    int code =
        known ? dsp.queue_create(p->domain, 0, TWIN_BYTES, TWIN_BYTES, NULL, NULL, NULL, &q->twin)
              : DSP(E_UNSUPPORTED);
    if (code) {
        munmap(q->header, q->bytes);
        return code;
    }
    dsp.queue_export(q->twin, &q->number);
    *number = q->number;
    q->used = true;
    pthread_create(&q->out, NULL, ring_out, q);
    pthread_create(&q->back, NULL, ring_back, q);
    return 0;
}

/* Return whether the DSP has imported a queue: closing the twin then fails.  The library makes this
 * call just before it destroys the queue. */
static int is_imported(queue *q)
{
    if (q && !q->closed) {
        q->closed = dsp.queue_close(q->twin) == 0;
    }
    return q && !q->closed;
}

static int wait_signal(process *p, int32_t *got)
{
    pthread_mutex_lock(&kernel_lock);
    while (!p->signalled && !p->cancelled && !p->exiting) {
        pthread_cond_wait(&kernel_changed, &kernel_lock);
    }
    *got = p->cancelled ? -1 : 0;
    p->signalled = false;
    bool gone = p->exiting && !p->cancelled;
    pthread_mutex_unlock(&kernel_lock);
    return gone ? DSP(E_BADSTATE) : 0;
}

int queue_call(process *p, uint32_t method, argument *arguments)
{
    size_t bytes;
    queue *q;
    switch (method) {
    case DSPQUEUE_INIT:
        p->cancelled = p->signalled = false;
        p->counts = look_at(*(int *) arguments[0].buffer.at, &bytes);
        return p->counts ? 0 : DSP(E_NOSUCHMAP);
    case DSPQUEUE_CREATE:
        return make(p, arguments[0].buffer.at, arguments[1].buffer.at);
    case DSPQUEUE_DESTROY:
        q = queue_of(p, &arguments[0]);
        if (q) {
            queue_end(q);
        }
        return q ? 0 : DSP(E_BADPARM);
    case DSPQUEUE_IMPORTED:
        *(int32_t *) arguments[1].buffer.at = is_imported(queue_of(p, &arguments[0]));
        return 0;
    case DSPQUEUE_WAIT:
        return wait_signal(p, arguments[0].buffer.at);
    case DSPQUEUE_CANCEL:
    case DSPQUEUE_SIGNAL:
        pthread_mutex_lock(&kernel_lock);
        p->cancelled |= method == DSPQUEUE_CANCEL;
        pthread_cond_broadcast(&kernel_changed);
        pthread_mutex_unlock(&kernel_lock);
        return 0;
    default:
        return DSP(E_UNSUPPORTED);
    }
}
