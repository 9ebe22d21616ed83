/* Serves batches from a message queue.  Each batch and each reply is one message. */
#include "hap.h"
#include "session.h"

enum { WRITE_LIMIT_US = 1000000 };

/* Run the batches of all messages in the queue.  The queue's thread calls this function when one or
 * more messages have arrived.  After any error, wait for the next call: a host that gets no reply
 * opens the session again. */
static void packets(dspqueue_t queue, int error, void *context)
{
    session *session = context;
    uint32_t flags, buffers, nbytes = 0;
    while (error == DSP_OK) {
        error = dspqueue_read_noblock(queue, &flags, 0, &buffers, NULL, sizeof session->message,
                                      &nbytes, session->message);
        if (error == DSP_OK) {
            npurt_reply reply;
            session_execute(session, session->message, nbytes, &reply);
            error = dspqueue_write(queue, 0, 0, NULL, sizeof reply, (const uint8_t *) &reply,
                                   WRITE_LIMIT_US);
        }
    }
}

/* Ignore an error of the queue, because the host gets the same error. */
static void failed(dspqueue_t queue, int error, void *context)
{
    (void) queue;
    (void) error;
    (void) context;
}

int queue_open(session *session, uint64_t id)
{
    if (!dspqueue_import || !dspqueue_close || !dspqueue_read_noblock || !dspqueue_write) {
        return DSP_E_UNSUPPORTED;
    }
    if (session->queue) {
        return DSP_E_ALREADY;
    }
    /* Pass callbacks, because newer firmware refuses an import without callbacks. */
    int error = dspqueue_import(id, packets, failed, session, &session->queue);
    if (error) {
        session->queue = NULL;
    }
    return error;
}

int queue_close(session *session)
{
    int error = session->queue ? dspqueue_close(session->queue) : DSP_OK;
    session->queue = NULL;
    return error;
}
