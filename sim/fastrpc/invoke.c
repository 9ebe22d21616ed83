/*
 * Run one call: pass its arguments, run the skel's method, and return its results.
 *
 * Arguments in blocks of memory.c are passed without a copy.  All other arguments are copied
 * through the channel's area by system calls, as in FastRPC's driver, so a bad address makes the
 * call fail and does not crash the program.
 */
#define _GNU_SOURCE
#include "sim.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ALIGNMENT = 128, POISON = 0xa5 }; /* FASTRPC_ALIGN of the driver */
/* Interval at which a delayed reply checks for an end of the delay. */
enum { LATE_LOOK_US = 10000 };
#define LARGEST_SNAPSHOT ((size_t) 64 << 20)

/* sc: attributes[31:29] method[28:24] in[23:16] out[15:8] in handles[7:4] out handles[3:0] */
typedef struct {
    int in, out, in_handles, out_handles;
} counts;

typedef struct {
    session *s;
    channel *l;
    counts n;
    int buffers;                         /* in and out */
    remote_arg argument[LINK_ARGUMENTS]; /* copied from the caller */
    mapping *mapped[LINK_ARGUMENTS];     /* NULL: the argument is in the area */
    uint32_t place[LINK_ARGUMENTS];      /* offset in the area */
} call;

static counts read_counts(uint32_t scalars)
{
    return (counts){scalars >> 16 & 255, scalars >> 8 & 255, scalars >> 4 & 15, scalars & 15};
}

static uint32_t aligned(uint32_t at)
{
    return (at + ALIGNMENT - 1) & ~(uint32_t) (ALIGNMENT - 1);
}

/* --- copies by system calls ------------------------------------------------------------------ */

/* Copy from the caller's memory into the area; false: that memory cannot be read. */
static bool copy_in(const channel *l, uint32_t place, const void *from, size_t bytes)
{
    return bytes == 0 || pwrite(l->fd, from, bytes, l->offset + place) == (ssize_t) bytes;
}

static bool copy_out(const channel *l, uint32_t place, void *to, size_t bytes)
{
    return bytes == 0 || pread(l->fd, to, bytes, l->offset + place) == (ssize_t) bytes;
}

static int read_arguments(call *c, const remote_arg *given)
{
    int total = c->buffers + c->n.in_handles + c->n.out_handles;
    size_t bytes = (size_t) total * sizeof(*given);
    if (!copy_in(c->l, 0, given, bytes)) {
        return AEE_EBADPARM;
    }
    memcpy(c->argument, c->l->area, bytes);
    return AEE_SUCCESS;
}

/* --- placement of arguments ------------------------------------------------------------------ */

/* If argument *i* starts in a block, map that block and store the argument's guest address in
 * *out*. */
static int map_known(call *c, int i, link_argument *out)
{
    const void *at = c->argument[i].buffer.at;
    size_t bytes = c->argument[i].buffer.bytes;
    pthread_mutex_lock(&sim_lock);
    const block *found = bytes ? block_containing(at) : NULL;
    block b = found ? *found : (block){0};
    pthread_mutex_unlock(&sim_lock);
    if (!b.serial) {
        return AEE_SUCCESS;
    }
    size_t offset = (size_t) ((const uint8_t *) at - b.at);
    if (bytes > b.bytes - offset) {
        return AEE_EBADPARM;
    }
    uint32_t address;
    int result = map_argument(c->s, c->l, &b, &address, &c->mapped[i]);
    out->address = address + (uint32_t) offset;
    out->size = (uint32_t) bytes;
    return result;
}

/* Give every argument a guest address, in a mapped block or in the area. */
static int place_arguments(call *c, link_argument out[])
{
    size_t room = 0;
    for (int i = 0; i < c->buffers; i++) {
        int result = map_known(c, i, &out[i]);
        if (result != AEE_SUCCESS) {
            return result;
        }
        if (!c->mapped[i]) {
            if (c->argument[i].buffer.bytes > INT_MAX || room > INT_MAX) {
                return AEE_ENOMEMORY;
            }
            c->place[i] = (uint32_t) room;
            room = aligned((uint32_t) room + (uint32_t) c->argument[i].buffer.bytes);
        }
    }
    int result = channel_reserve(c->s, c->l, room);
    for (int i = 0; result == AEE_SUCCESS && i < c->buffers; i++) {
        uint32_t bytes = (uint32_t) c->argument[i].buffer.bytes;
        if (!c->mapped[i]) {
            out[i] = (link_argument){bytes ? c->l->address + c->place[i] : 0, bytes};
        }
    }
    for (int i = c->buffers; i < c->buffers + c->n.in_handles + c->n.out_handles; i++) {
        out[i] = (link_argument){(uint32_t) c->argument[i].dma.fd, c->argument[i].dma.offset};
    }
    return result;
}

/* Copy argument *i* between the two memories of its block, because FastRPC synchronises arguments.
 * */
static void synchronise(const call *c, int i,
                        void (*copy)(const block *b, size_t offset, size_t bytes))
{
    const uint8_t *at = c->argument[i].buffer.at;
    pthread_mutex_lock(&sim_lock);
    const block *b = block_containing(at);
    if (b) {
        copy(b, (size_t) (at - b->at), c->argument[i].buffer.bytes);
    }
    pthread_mutex_unlock(&sim_lock);
}

static int bring_in(call *c)
{
    for (int i = 0; i < c->buffers; i++) {
        size_t bytes = c->argument[i].buffer.bytes;
        if (c->mapped[i]) {
            synchronise(c, i, block_to_dsp);
            continue;
        }
        if (i >= c->n.in) {
            memset(c->l->area + c->place[i], POISON, bytes);
        } else if (!copy_in(c->l, c->place[i], c->argument[i].buffer.at, bytes)) {
            return AEE_EBADPARM;
        }
    }
    return AEE_SUCCESS;
}

static int bring_out(call *c)
{
    for (int i = c->n.in; i < c->buffers; i++) {
        const remote_arg *a = &c->argument[i];
        if (c->mapped[i]) {
            synchronise(c, i, block_to_host);
        } else if (!copy_out(c->l, c->place[i], a->buffer.at, a->buffer.bytes)) {
            return AEE_EBADPARM;
        }
    }
    return AEE_SUCCESS;
}

static void let_go(call *c)
{
    pthread_mutex_lock(&sim_lock);
    for (int i = 0; i < c->buffers; i++) {
        if (c->mapped[i]) {
            c->mapped[i]->users--;
        }
    }
    pthread_mutex_unlock(&sim_lock);
}

/* --- fault: wrong_byte ----------------------------------------------------------------------- */

enum { SNAPSHOTS = 64, FLIP = 0x40 };

typedef struct {
    uint8_t *at, *before;
    size_t bytes;
} snapshot;

static bool is_mapped(const session *s, const block *b)
{
    for (int i = 0; i < MAPPINGS; i++) {
        if (s->map[i].id && s->map[i].serial == b->serial) {
            return true;
        }
    }
    return false;
}

/* Copy the memory that the call may write; return the number of copies. */
static int take_snapshots(const session *s, snapshot pieces[SNAPSHOTS])
{
    int n = 0;
    pthread_mutex_lock(&sim_lock);
    for (block *b = block_next(NULL); b && n < SNAPSHOTS; b = block_next(b)) {
        uint8_t *copy = NULL;
        if (!b->opaque && b->bytes <= LARGEST_SNAPSHOT && is_mapped(s, b)) {
            copy = malloc(b->bytes);
        }
        if (copy) {
            memcpy(copy, b->memory, b->bytes);
            pieces[n++] = (snapshot){b->memory, copy, b->bytes};
        }
    }
    pthread_mutex_unlock(&sim_lock);
    return n;
}

/* Flip a bit in the middle one of the 32-bit words that the call changed: a bit of its top byte
 * (sign and exponent of a float).  Return false if no word changed. */
static bool spoil(const snapshot *p)
{
    size_t changed = 0;
    for (int round = 0; round < 2; round++) {
        size_t middle = changed / 2;
        changed = 0;
        for (size_t i = 0; i + 4 <= p->bytes; i += 4) {
            if (memcmp(p->at + i, p->before + i, 4) == 0) {
                continue;
            }
            if (round == 1 && changed == middle) {
                p->at[i + 3] ^= FLIP;
                return true;
            }
            changed++;
        }
    }
    return false;
}

/* Corrupt a byte of the mapped memory that the call wrote, or else of its results in the area. */
static void spoil_result(call *c, snapshot pieces[], int n)
{
    bool done = false;
    for (int i = 0; i < n; i++) {
        done = done || spoil(&pieces[i]);
        free(pieces[i].before);
    }
    for (int i = c->buffers - 1; i >= c->n.in && !done; i--) {
        size_t bytes = c->argument[i].buffer.bytes, middle = bytes / 2 | 3;
        if (bytes && !c->mapped[i]) {
            c->l->area[c->place[i] + (middle < bytes ? middle : bytes - 1)] ^= FLIP;
            done = true;
        }
    }
}

/* --- the call -------------------------------------------------------------------------------- */

/* Faults to inject into this call. */
typedef struct {
    int code; /* returned instead of calling the DSP; 0: no such fault */
    bool crash, spoil;
    uint32_t delay; /* milliseconds */
    uint32_t told;  /* settings_told() at the start: a later change of settings ends the delay */
} trouble;

static trouble choose_trouble(void)
{
    trouble t = {0};
    uint32_t argument;
    pthread_mutex_lock(&sim_lock);
    if (fault_due(FAULT_INVOKE, &argument)) {
        t.code = (int) argument;
    }
    if (fault_due(FAULT_SSR, &argument)) {
        dsp_restart(argument);
        t.code = AEE_ECONNRESET;
    }
    t.crash = fault_due(FAULT_CRASH, &argument);
    t.spoil = fault_due(FAULT_WRONG_BYTE, &argument);
    t.delay = fault_due(FAULT_DELAY, &argument) ? argument : 0;
    t.told = settings_told();
    pthread_mutex_unlock(&sim_lock);
    return t;
}

static void be_late(session *s, const trouble *t)
{
    uint64_t now = clock_us(), end = now + t->delay * 1000ull;
    while (now < end && !load(&s->ended) && settings_told() == t->told) {
        futex_wait(&s->ended, 0, now + LATE_LOOK_US < end ? now + LATE_LOOK_US : end);
        now = clock_us();
    }
}

static int run(call *c, uint32_t handle, uint32_t scalars, const trouble *t, uint64_t *packets)
{
    link_channel *link = channel_link(c->s, c->l);
    snapshot pieces[SNAPSHOTS];
    int n = t->spoil ? take_snapshots(c->s, pieces) : 0;
    link->handle = handle;
    link->scalars = scalars;
    link->crash = t->crash;
    int result = channel_call(c->s, c->l, LINK_INVOKE);
    *packets = link->packets;
    if (t->spoil) {
        spoil_result(c, pieces, n);
    }
    if (t->delay) {
        be_late(c->s, t);
        result = load(&c->s->ended) ? c->s->death_in_flight : result;
    }
    return result;
}

int invoke(session *s, uint32_t handle, uint32_t scalars, remote_arg *arguments, uint64_t *packets)
{
    trouble t = choose_trouble();
    if (t.code) {
        return t.code;
    }
    call c = {.s = s, .l = channel_take(s), .n = read_counts(scalars)};
    if (!c.l) {
        return s->death_in_flight;
    }
    c.buffers = c.n.in + c.n.out;
    int result = read_arguments(&c, arguments);
    result = result == AEE_SUCCESS ? place_arguments(&c, channel_link(s, c.l)->argument) : result;
    result = result == AEE_SUCCESS ? bring_in(&c) : result;
    if (result == AEE_SUCCESS) {
        result = run(&c, handle, scalars, &t, packets);
        result = result == AEE_SUCCESS ? bring_out(&c) : result;
    }
    let_go(&c);
    channel_leave(s, c.l);
    return result;
}
