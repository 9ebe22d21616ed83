/*
 * The requests of FastRPC's driver and of the dma-heap, and the messages that pass through the
 * driver between the library and a DSP process.  Sources: Linux include/uapi/misc/fastrpc.h and
 * linux/dma-heap.h; qualcomm/fastrpc inc/remotectl.h, adsp_listener.h, adsp_current_process.h,
 * dspqueue_shared.h.
 */
#ifndef DRIVER_H
#define DRIVER_H

#include <stdint.h>

/* Numbers of ioctl requests, of type 'R'. */
enum {
    FASTRPC_ALLOC_DMA = 1,
    FASTRPC_INVOKE = 3,
    FASTRPC_ATTACH = 4,
    FASTRPC_CREATE = 5,
    FASTRPC_MMAP = 6,
    FASTRPC_MUNMAP = 7,
    FASTRPC_MEM_MAP = 10,
    FASTRPC_MEM_UNMAP = 11,
    FASTRPC_DSP_INFO = 13
};
enum { CREATE_UNSIGNED = 8, MMAP_ADD_PAGES = 0x1000, DSP_ATTRIBUTES = 256 };

typedef struct {
    uint64_t address, bytes;
    int32_t fd;
    uint32_t attributes;
} driver_argument;

typedef struct {
    uint32_t handle, scalars;
    uint64_t arguments;
} driver_invoke;

typedef struct {
    uint32_t bytes;
    int32_t fd;
    uint32_t attributes, signature;
    uint64_t file;
} driver_create;

typedef struct {
    int32_t version, fd, offset;
    uint32_t flags;
    uint64_t in, bytes, out;
    int32_t attributes, reserved[4];
} driver_map;

typedef struct {
    int32_t version, fd;
    uint64_t address, bytes;
    int32_t reserved[5];
} driver_unmap;

typedef struct {
    int32_t fd;
    uint32_t flags;
    uint64_t in, bytes, out;
} driver_mmap;

typedef struct {
    uint32_t domain, attribute, value, reserved[4];
} driver_info;

typedef struct {
    int32_t fd;
    uint32_t flags;
    uint64_t bytes;
} driver_dma;

typedef struct {
    uint64_t bytes;
    uint32_t fd, fd_flags;
    uint64_t heap_flags;
} heap_allocation;

_Static_assert(sizeof(driver_argument) == 24 && sizeof(driver_create) == 24 &&
                   sizeof(driver_map) == 64 && sizeof(driver_unmap) == 48,
               "as in misc/fastrpc.h");

/* Handles of modules that every DSP process has; names with 1 are handles whose methods are
 * numbered from 2. */
enum { REMOTECTL = 0, LISTENER = 3, CURRENT1 = 4, MESSAGES1 = 5, LISTENER1 = 7, REMOTECTL1 = 8 };
enum { REMOTECTL_OPEN, REMOTECTL_CLOSE };
enum { LISTENER_START = 3, LISTENER_NEXT = 4, LISTENER_MORE = 5 };
enum { CURRENT_EXIT = 2, CURRENT_EXCEPTION = 7 };
enum {
    DSPQUEUE_INIT = 2,
    DSPQUEUE_CREATE,
    DSPQUEUE_DESTROY,
    DSPQUEUE_IMPORTED,
    DSPQUEUE_WAIT,
    DSPQUEUE_CANCEL,
    DSPQUEUE_SIGNAL
};

/* The memory of a dspqueue: this header, then two rings of packets, to the DSP and back. */
typedef struct {
    uint32_t version;
    int32_t error;
    uint32_t flags;
    struct {
        uint32_t at, bytes, reader, writer; /* offsets of the ring and of its two states */
    } ring[2];
    uint32_t count;
} queue_header;

typedef struct {
    uint32_t at, packets, waits;
} queue_state;

enum { PROCESS_QUEUES = 64 };

/* Memory shared by all queues of a process: counters of new packets and of newly free space per
 * queue. */
typedef struct {
    uint32_t request_packets[PROCESS_QUEUES], request_space[PROCESS_QUEUES];
    uint32_t answer_packets[PROCESS_QUEUES], answer_space[PROCESS_QUEUES];
} queue_counts;

#endif
