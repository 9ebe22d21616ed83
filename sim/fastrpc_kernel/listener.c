/*
 * Calls of the DSP to the CPU. A thread of the library waits in listener_next() for a request of
 * the DSP process, and passes the answer with its next call.  All arguments of a request are packed
 * into one buffer: for each input its size, then its bytes at the next multiple of 8; for each
 * output its size.  The answer packs each output as a size and bytes.  Source: qualcomm/fastrpc
 * src/listener_android.c, inc/sbuf_parser.h.
 */
#define _GNU_SOURCE
#include "kernel.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    const void *at;
    uint32_t bytes;
} piece;

enum { TEXT_BYTES = 1 << 16, WAIT_S = 5, FIRST_CONTEXT = 100 };
enum { OPEN_MODULE = 0, FILE_CLOSE = 3, FILE_READ = 4, FILE_OPEN = 19 };

static uint32_t aligned(uint32_t at)
{
    return (at + 7) & ~7u;
}

static uint32_t pack(uint8_t *text, int ins, const piece *in, int outs, const piece *out)
{
    uint32_t n = 0;
    for (int i = 0; i < ins; i++) {
        memcpy(text + n, &in[i].bytes, 4);
        n += 4;
        if (in[i].bytes) {
            n = aligned(n);
            memcpy(text + n, in[i].at, in[i].bytes);
            n += in[i].bytes;
        }
    }
    for (int i = 0; i < outs; i++, n += 4) {
        memcpy(text + n, &out[i].bytes, 4);
    }
    return n;
}

static void unpack(const uint8_t *text, int outs, const piece *out)
{
    for (int i = 0; i < outs; i++) {
        text += 4;
        if (out[i].bytes) {
            text = (const uint8_t *) (((uintptr_t) text + 7) & ~(uintptr_t) 7);
            memcpy((void *) (uintptr_t) out[i].at, text, out[i].bytes);
            text += out[i].bytes;
        }
    }
}

/* Wait for the CPU's answer; -1: the wait timed out, or the process ends. kernel_lock held. */
static int await(const process *p, reverse_call *r)
{
    struct timespec end;
    int late = 0;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += WAIT_S;
    while (r->state != DONE && !late && !p->exiting) {
        late = pthread_cond_timedwait(&kernel_changed, &kernel_lock, &end);
    }
    return r->state == DONE ? r->result : -1;
}

static int ask(process *p, uint32_t handle, uint32_t method, int ins, const piece *in, int outs,
               const piece *out)
{
    static uint32_t contexts = FIRST_CONTEXT;
    reverse_call *r = &p->reverse;
    uint8_t *text = malloc(TEXT_BYTES);
    if (!text) {
        return -1;
    }
    pthread_mutex_lock(&r->calling);
    pthread_mutex_lock(&kernel_lock);
    r->in = text;
    r->in_bytes = pack(text, ins, in, outs, out);
    r->context = ++contexts;
    r->handle = handle;
    r->scalars = method << 24 | (uint32_t) ins << 16 | (uint32_t) outs << 8;
    r->state = POSTED;
    pthread_cond_broadcast(&kernel_changed);
    int result = await(p, r);
    if (result == 0) {
        unpack(r->out, outs, out);
    }
    free(r->out);
    r->out = NULL;
    r->state = NONE;
    pthread_mutex_unlock(&kernel_lock);
    pthread_mutex_unlock(&r->calling);
    free(text);
    say("the DSP calls %#x, method %u: %#x", handle, method, (unsigned) result);
    return result;
}

/* --- calls of the library ----------------------------------------------------------------------
 * */

static void take_answer(reverse_call *r, const uint32_t *in, const argument *answer)
{
    uint8_t *copy = malloc(in[2] + 8);
    r->result = copy ? (int) in[1] : -1;
    if (copy) {
        memcpy(copy, answer->buffer.at, in[2]);
    }
    r->out = copy;
    r->state = DONE;
    pthread_cond_broadcast(&kernel_changed);
}

/* Pass the answer to the last request and wait for the next one.  Arguments: 0 (in): context,
 * result and size of the answer; 1 (in): the answer; 2 (out): context, handle, scalars and size of
 * the next request; 3 (out): the request's data. */
int listener_next(process *p, argument *arguments)
{
    reverse_call *r = &p->reverse;
    const uint32_t *in = arguments[0].buffer.at;
    uint32_t *out = arguments[2].buffer.at;
    pthread_mutex_lock(&kernel_lock);
    if (r->state == TAKEN && in[0] == r->context) {
        take_answer(r, in, &arguments[1]);
    }
    while (r->state != POSTED && !p->exiting) {
        pthread_cond_wait(&kernel_changed, &kernel_lock);
    }
    bool exiting = p->exiting;
    if (!exiting) {
        size_t room = arguments[3].buffer.bytes;
        r->state = TAKEN;
        out[0] = r->context;
        out[1] = r->handle;
        out[2] = r->scalars;
        out[3] = r->in_bytes;
        memcpy(arguments[3].buffer.at, r->in, room < r->in_bytes ? room : r->in_bytes);
    }
    pthread_mutex_unlock(&kernel_lock);
    return exiting ? DSP(E_BADSTATE) : 0;
}

int listener_more(process *p, argument *arguments)
{
    const reverse_call *r = &p->reverse;
    uint32_t from = ((const uint32_t *) arguments[0].buffer.at)[1];
    uint32_t left = from < r->in_bytes ? r->in_bytes - from : 0;
    size_t room = arguments[2].buffer.bytes;
    memcpy(arguments[2].buffer.at, r->in + from, room < left ? room : left);
    *(uint32_t *) arguments[1].buffer.at = r->in_bytes;
    return 0;
}

/* --- requests to apps_std on the CPU
 * -------------------------------------------------------------------- */

bool listener_finds(process *p, const char *name)
{
    char error[255], head[52];
    uint32_t length = (uint32_t) strlen(name) + 1, opened[2] = {0}, file = 0, got[2] = {0};
    uint32_t module[2] = {9, sizeof(error)};
    piece in_module[] = {{module, 8}, {"apps_std", 9}};
    piece out_module[] = {{opened, 8}, {error, sizeof(error)}};
    if (ask(p, 0, OPEN_MODULE, 2, in_module, 2, out_module)) {
        return false;
    }
    uint32_t sizes[4] = {18, 2, length, 2};
    piece in_file[] = {{sizes, 16}, {"ADSP_LIBRARY_PATH", 18}, {";", 2}, {name, length}, {"r", 2}};
    piece out_file[] = {{&file, 4}};
    if (ask(p, opened[0], FILE_OPEN, 5, in_file, 1, out_file)) {
        return false;
    }
    piece the_file[] = {{&file, 4}};
    uint32_t want[2] = {file, sizeof(head)};
    piece in_read[] = {{want, 8}}, out_read[] = {{got, 8}, {head, sizeof(head)}};
    bool elf = ask(p, opened[0], FILE_READ, 1, in_read, 2, out_read) == 0 &&
               got[0] == sizeof(head) && memcmp(head, "\177ELF", 4) == 0;
    ask(p, opened[0], FILE_CLOSE, 1, the_file, 0, NULL);
    say("the CPU has %s%s", name, elf ? "" : ", not ELF");
    return elf;
}

static void *read_file(void *p)
{
    listener_finds(p, getenv("NPURT_KERNEL_READS"));
    return NULL;
}

/* A program will serve files.  The DSP reads the one that NPURT_KERNEL_READS names, as the DSP
 * reads settings of sensors. */
void listener_start(process *p)
{
    pthread_t thread;
    if (getenv("NPURT_KERNEL_READS") && pthread_create(&thread, NULL, read_file, p) == 0) {
        pthread_detach(thread);
    }
}
