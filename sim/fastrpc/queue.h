/* The struct behind dspqueue_t, for queue.c and packets.c. */
#ifndef QUEUE_H
#define QUEUE_H

#include "ring.h"
#include "sim.h"

enum { QUEUE_LOOK_US = 1000000 }; /* longest sleep before a waiting thread checks again */

struct dspqueue {
    struct dspqueue *next;
    session *s; /* NULL after the session has stopped */
    uint32_t id;
    link_queue *memory;
    ring to_dsp, to_host;
    size_t bytes;
    int fd;
    dspqueue_callback packet, failure;
    void *context;
    pthread_t watcher;
    bool watched, closing, orphan;
    bool deaf; /* not announced to the shell: its packets never reach the DSP */
    int users; /* threads in a call on this queue */
    int ended; /* AEE code of the queue's end; 0: it works */
    pthread_mutex_t reading, writing;
};

/* Count this thread in `users`; false: *q* is not an open queue. */
bool queue_enter(dspqueue_t q);
/* Undo queue_enter(), and return *result*. */
int queue_leave(dspqueue_t q, int result);

#endif
