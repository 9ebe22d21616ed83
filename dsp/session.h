/* The session, which is the state of an open handle. */
#ifndef NPURT_SESSION_H
#define NPURT_SESSION_H

#include "dspqueue.h"
#include "execute.h"
#include "lock.h"

typedef struct {
    lock lock; /* guards all members below except `queue`; held during a call */
    maps maps;
    pool pool;
    vtcm vtcm;
    workspace work;
    int power; /* 1: the vote for clocks was accepted */
    dspqueue_t queue;
    /* the batch from the queue */
    uint8_t message[sizeof(npurt_batch) + NPURT_MAX_OPS * sizeof(npurt_op)];
} session;

/* Run an untrusted batch. */
void session_execute(session *session, const uint8_t *batch, uint32_t nbytes, npurt_reply *reply);

/* Start serving batches from a queue of the host; return 0 or a DSP_E_ code. */
int queue_open(session *session, uint64_t id);

/* Stop serving.  A second call does nothing. */
int queue_close(session *session);

#endif
