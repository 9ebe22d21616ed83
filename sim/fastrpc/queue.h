/* A dspqueue, as the two files that deal with it see it. */
#ifndef QUEUE_H
#define QUEUE_H

#include "ring.h"
#include "sim.h"

enum { QUEUE_LOOK_US = 1000000 }; /* nobody sleeps longer without looking */

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
    bool watched, closing, orphan;
    bool deaf; /* the DSP does not know it */
    int users; /* threads that are in a call on it */
    int ended; /* why it no longer works; 0: it works */
    pthread_mutex_t reading, writing;
};

/* Enter a queue; false: it is none. */
bool queue_enter(dspqueue_t q);
/* Leave it, and return *result*. */
int queue_leave(dspqueue_t q, int result);

#endif
