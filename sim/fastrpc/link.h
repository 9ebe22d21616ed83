/*
 * The memory that the library and the shell share between their processes.
 *
 * The library (host, 64-bit) creates it as a memfd and runs the shell (guest, 32-bit) in
 * qemu-hexagon; both map it.  Every field has one writer, named in its comment.  The library checks
 * every value that it reads here, because the guest runs the program's skels.
 *
 * A channel carries one call at a time: the library fills it, adds one to `asked` and wakes the
 * channel's thread in the shell.  This thread serves the request and copies `asked` to `answered`.
 */
#ifndef LINK_H
#define LINK_H

#include <stdint.h>

#define LINK_VERSION 2u
#define LINK_ENDED 0u /* `answered` after the end of the process; never a request's number */

enum {
    LINK_MEMORY_FD = 3, /* this memory, in the guest */
    LINK_SOCKET_FD = 4, /* the library sends descriptors to it */
    LINK_CHANNELS = 32, /* concurrent calls */
    LINK_THREADS = 128, /* threads of the guest */
    LINK_ARGUMENTS = 255 + 255 + 15 + 15,
    LINK_AREA = 1 << 16, /* bytes in a channel for arguments passed by value */
    LINK_VALUES = 4,
    LINK_LOG = 1 << 16, /* bytes of the log */
    LINK_NAME = 128,    /* bytes of a symbol's name, with its end */
    LINK_NO_FD = -1,    /* descriptor of a block that skels cannot look up */
};

/* The simulated machine.  Written by the library before the shell starts. */
typedef struct {
    uint32_t version;
    uint32_t arch;           /* two hex digits: 0x68 */
    uint32_t hvx;            /* contexts of 128 bytes */
    uint32_t vtcm;           /* bytes */
    uint32_t space;          /* bytes of shared memory that the PD can map */
    uint32_t stack;          /* bytes, of a thread that serves calls */
    uint32_t power;          /* 1: votes for clocks are accepted */
    uint32_t shadow;         /* 1: simulate the DSP's caches, so that missing maintenance shows */
    uint32_t queue_stuck;    /* 1: packets never arrive at the DSP */
    uint32_t verbose;        /* 1: messages go to descriptor 2 as well */
    uint32_t vtcm_traps;     /* 1: unaligned vector accesses to VTCM end the PD */
    uint32_t checksum;       /* 1: a skel needs the section with its checksum */
    char without[LINK_NAME]; /* a name that this shell lacks; "": none */
    char fails[LINK_NAME];   /* a call of skels that fails; "": none */
    uint32_t fails_first, fails_last; /* the numbers of its calls that fail, from 1 */
} link_machine;

/* An argument as a skel receives it: remote_arg of a 32-bit machine. */
typedef struct {
    uint32_t address; /* or the descriptor of a handle */
    uint32_t size;    /* or the offset of a handle */
} link_argument;

enum {
    LINK_OPEN = 1, /* value 0: address of the URI, 1: its bytes; a descriptor follows */
    LINK_CLOSE,
    LINK_INVOKE,
    LINK_ATTACH,    /* value 0: block, 1: its fd on the host, 2: bytes, 3: 1 to map it at once;
                       a descriptor follows.  Answer value 0: address, when mapped */
    LINK_DETACH,    /* value 0: block */
    LINK_QUEUE,     /* value 0: queue, 1: bytes of its memory; a descriptor follows */
    LINK_DROP_QUEUE /* value 0: queue */
};

typedef struct {
    _Alignas(64) uint32_t asked;    /* library: number of the newest request, never LINK_ENDED */
    _Alignas(64) uint32_t answered; /* shell: number of the newest completed request */
    _Alignas(64) uint32_t command;  /* library: LINK_* */
    uint32_t handle;                /* library; the shell in its answer to LINK_OPEN */
    uint32_t scalars;               /* library */
    uint32_t crash;                 /* library: 1: the PD dies before it answers */
    int32_t result;                 /* shell */
    uint32_t value[LINK_VALUES];    /* library, then shell */
    uint64_t packets; /* shell: instruction packets executed by the PD during LINK_INVOKE */
    link_argument argument[LINK_ARGUMENTS]; /* library, then the skel */
} link_channel;

typedef struct {
    link_machine machine;
    uint32_t base;                  /* shell: its address of this memory */
    uint32_t ready;                 /* shell: 1 when it serves */
    uint32_t wanted;                /* library: number of channels to serve */
    uint32_t logged;                /* shell: bytes written to the log so far */
    uint64_t packets[LINK_THREADS]; /* shell: instruction packets that each thread executed */
    link_channel channel[LINK_CHANNELS];
    _Alignas(4096) uint8_t area[LINK_CHANNELS][LINK_AREA]; /* library, then the skel */
    uint8_t log[LINK_LOG];                                 /* shell: a ring of text */
} link_memory;

/*
 * The memory of a message queue is one block: a link_queue at its start, then the two rings of
 * bytes.  A ring holds packets.  A packet is a header of 8 bytes, length | flags << 32 | buffers <<
 * 48 | serial << 56, then 24 bytes for each buffer, then the message, padded to a multiple of 8
 * bytes.  A packet is never split.  If it does not fit before the end of the ring, its header is
 * written at the end and again at the start, and the rest follows the second header.  One slot of 8
 * bytes stays free, so that a full ring differs from an empty one.
 */
enum { LINK_QUEUE_TO_DSP, LINK_QUEUE_TO_HOST };

typedef struct {
    uint32_t offset, bytes;        /* library: place of the ring's bytes in the block */
    _Alignas(64) uint32_t written; /* writer: where the next packet starts */
    uint32_t packets_written;      /* writer: number of packets; a reader waits on this word */
    _Alignas(64) uint32_t read;    /* reader: where the next packet starts */
    uint32_t packets_read;         /* reader: number of packets; a writer waits on this word */
} link_ring;

typedef struct {
    uint32_t imported; /* shell: 1 while a skel has the queue open */
    uint32_t ended;    /* library: 1 after the host closed the queue or the session died */
    link_ring ring[2];
} link_queue;

/* A buffer in a packet. */
typedef struct {
    uint32_t fd, size, offset, flags;
    uint64_t address;
} link_buffer;

_Static_assert(sizeof(link_argument) == 8, "as remote_arg of a 32-bit machine");
_Static_assert(sizeof(link_buffer) == 24, "as struct dspqueue_buffer");
_Static_assert(sizeof(link_channel) % 64 == 0, "channels do not share cache lines");

#endif
