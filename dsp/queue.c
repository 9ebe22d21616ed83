/* Serves batches from a message queue: a message for each batch, and one for each reply. */
#include "hap.h"
#include "session.h"

enum { WRITE_LIMIT_US = 1000000 };

/* Called on the queue's own thread when there are packets, perhaps several. */
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

/* Nothing to do: the host sees the same error. */
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
    /* With callbacks, because newer firmware refuses an import without. */
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
