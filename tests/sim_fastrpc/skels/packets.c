/* The DSP's end of a dspqueue.  Method 2: import the queue in[0], with a callback when in[1]; 3:
 * close it; 4: answer in[0] packets, one after the other. */
#include "dsp.h"

enum { WAIT = 10000000 }; /* microseconds for room in the other direction */

static dspqueue_t queue;

/* Answer one packet: the message with every byte plus one, and the buffers' bytes inverted. */
static int answer(uint32_t timeout)
{
    uint8_t message[4096];
    dspqueue_buffer buffer[8];
    uint32_t flags, buffers, bytes;
    int result = dspqueue_read(queue, &flags, 8, &buffers, buffer, sizeof(message), &bytes, message,
                               timeout);
    if (result) {
        return result;
    }
    for (uint32_t i = 0; i < bytes; i++) {
        message[i]++;
    }
    for (uint32_t i = 0; i < buffers; i++) {
        uint8_t *at = (uint8_t *) (uint32_t) buffer[i].address;
        for (uint32_t k = 0; at && k < buffer[i].size; k++) {
            at[k] = (uint8_t) ~at[k];
        }
    }
    return dspqueue_write(queue, 0, buffers, buffer, bytes, message, WAIT);
}

static void arrived(dspqueue_t given, int error, void *context)
{
    (void) given;
    (void) context;
    while (!error && answer(0) == 0) {
    }
}

EXPORT int packets_skel_handle_invoke(uint64_t handle, uint32_t scalars, remote_arg *arguments)
{
    uint32_t method = scalars >> 24 & 31;
    const uint32_t *in = scalars >> 16 & 255 ? arguments[0].buffer.at : NULL;
    (void) handle;
    int result = 0;
    switch (method) {
    case 0:
    case 1:
        return 0;
    case 2:
        return dspqueue_import(in[0], in[1] ? arrived : NULL, NULL, NULL, &queue);
    case 3:
        return dspqueue_close(queue);
    case 4:
        for (uint32_t i = 0; i < in[0] && !result; i++) {
            result = answer(in[1]);
        }
        return result;
    default:
        return UNKNOWN_METHOD;
    }
}
