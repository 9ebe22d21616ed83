/* Interfaces between the source files of the simulated kernel driver. */
#ifndef KERNEL_H
#define KERNEL_H

#include "driver.h"
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

enum { CDSP = 3, DOMAINS = 8, PROCESSES = 4, MODULES = 64, MAPS = 512, FIRST_MODULE = 0x1000 };

/* Codes of the DSP; without the offset, codes of the library. */
#define DSP(code) ((int) (0x80000400u + (code)))
enum {
    E_UNABLETOLOAD = 6,
    E_BADSTATE = 0xd,
    E_BADPARM = 0xe,
    E_UNSUPPORTED = 0x14,
    E_NOSUCH = 0x27,
    E_INVHANDLE = 0x2c,
    E_NOSUCHMOD = 0x3e,
    E_NOSUCHMAP = 0x48,
    E_ECONNRESET = 0x68
};

typedef union {
    struct {
        void *at;
        size_t bytes;
    } buffer;
    uint64_t handle;
    struct {
        int32_t fd;
        uint32_t offset;
    } dma;
} argument;

typedef struct {
    uint32_t fd, size, offset, flags;
    uint64_t address;
} packet_buffer;

/* --- dsp.c: npurt's simulator of the DSP ----------------------------------------------------- */

typedef struct {
    int (*open)(const char *uri, uint64_t *handle);
    int (*invoke)(uint64_t handle, uint32_t scalars, argument *arguments);
    int (*close)(uint64_t handle);
    int (*session)(uint32_t request, void *data, uint32_t bytes);
    int (*control)(uint32_t request, void *data, uint32_t bytes);
    int (*map)(int domain, int fd, void *at, int offset, size_t bytes, uint32_t flags);
    int (*unmap)(int domain, int fd, void *at, size_t bytes);
    int (*queue_create)(int domain, uint32_t flags, uint32_t request_bytes, uint32_t answer_bytes,
                        void *packet, void *error, void *context, void **queue);
    int (*queue_close)(void *queue);
    int (*queue_export)(void *queue, uint64_t *number);
    int (*queue_write)(void *queue, uint32_t flags, uint32_t buffers, packet_buffer *buffer,
                       uint32_t bytes, const uint8_t *message, uint32_t timeout_us);
    int (*queue_read)(void *queue, uint32_t *flags, uint32_t most_buffers, uint32_t *buffers,
                      packet_buffer *buffer, uint32_t room, uint32_t *bytes, uint8_t *message,
                      uint32_t timeout_us);
    int (*process)(int domain);
} dsp_functions;

extern dsp_functions dsp;
void dsp_load(void); /* ends the program if the simulator is missing */
bool dsp_present(void);
int dsp_info(uint32_t attribute, uint32_t *value);

/* --- processes of the DSP --------------------------------------------------------------------- */

typedef struct {
    bool used;
    enum { SKEL, QUEUES, DEFAULT_LISTENER } kind; /* the others are a part of every DSP process */
    uint64_t handle;                              /* of a skel, in the simulator */
} module;

typedef struct {
    bool used;
    int fd;
} mapped;

typedef struct process process;

typedef struct {
    bool used, stop, closed;
    int id;
    void *twin; /* the simulator's queue */
    uint64_t number;
    queue_header *header;
    size_t bytes;
    pthread_t out, back;
    process *owner;
} queue;

/* A call of the DSP to the CPU. */
typedef struct {
    pthread_mutex_t calling; /* held during a call */
    enum { NONE, POSTED, TAKEN, DONE } state;
    int result;
    uint32_t context, handle, scalars, in_bytes;
    uint8_t *in, *out;
} reverse_call;

struct process {
    bool used, exiting;
    bool lost; /* the DSP has restarted since the process began */
    int file, domain;
    void *keeper; /* an unused queue that keeps the simulator's session alive */
    module modules[MODULES];
    mapped maps[MAPS];
    queue queues[PROCESS_QUEUES];
    queue_counts *counts;
    bool signalled, cancelled;
    reverse_call reverse;
};

extern pthread_mutex_t kernel_lock;
/* the state of a process, queue or reverse call has changed */
extern pthread_cond_t kernel_changed;

int fail(int error); /* sets errno and returns -1 */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* --- process.c -------------------------------------------------------------------------------- */
process *process_of(int file);
int process_create(int file, const driver_create *asked);
void process_end(process *p);
void process_leave(process *p); /* wake and end its waiting calls */
int process_call(process *p, const driver_invoke *asked);

/* --- memory.c --------------------------------------------------------------------------------- */
int memory_allocate(uint64_t bytes);
int memory_map(process *p, driver_map *asked);
int memory_unmap(process *p, const driver_unmap *asked);

/* --- modules.c: open modules of a process ---------------------------------------------------- */
int module_call(process *p, uint32_t handle, uint32_t scalars, argument *arguments);
int remotectl(process *p, uint32_t method, argument *arguments);

/* --- listener.c: calls of the DSP to the CPU -------------------------------------------------- */
void listener_start(process *p);
int listener_next(process *p, argument *arguments);
int listener_more(process *p, argument *arguments);
/* Return whether the CPU finds a skel in its search path and the file is an ELF file. */
bool listener_finds(process *p, const char *name);

/* --- queue.c, ring.c -------------------------------------------------------------------------- */
int queue_call(process *p, uint32_t method, argument *arguments);
void queue_end(queue *q);
void queue_signal(process *p);
void queue_nap(void); /* wait 5 ms, or for kernel_changed */
void *ring_out(void *q);
void *ring_back(void *q);

/* --- counts.c: counts of requests ------------------------------------------------------------ */
void count_call(const driver_invoke *asked);
void count_map(uint64_t bytes);
void count_sync(uint64_t bytes);
void count_tell(void); /* appends to the file of NPURT_KERNEL_COUNTS, if set */

#endif
