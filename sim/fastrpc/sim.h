/*
 * Interfaces between the source files of the library.
 *
 * sim_lock guards all tables.  No thread holds sim_lock while it waits for a DSP process.  Such a
 * thread is counted in the session's `users`, and the session's resources are released only when
 * `users` is 0.
 */
#ifndef SIM_H
#define SIM_H

#include "aee.h"
#include "link.h"
#include "remote.h"
#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

enum { CDSP = 3, DOMAINS = 8, SESSIONS = 4 }; /* effective domain = domain + 8 * session */

extern pthread_mutex_t sim_lock;
extern pthread_cond_t sim_changed; /* the state of a session, channel or queue has changed */

/* --- settings.c ------------------------------------------------------------------------------ */

typedef struct {
    bool faithful; /* answer wrong calls as the real library does; false: refuse them */
    bool present;  /* the machine has a DSP */
    bool log;      /* print the DSP's messages on stderr */
    bool signed_pd;
    bool unsigned_pd;     /* the capability that the DSP reports; unsigned PDs always start */
    bool coherent;        /* new rpcmem blocks need no DMA_BUF_IOCTL_SYNC */
    uint64_t rpcmem;      /* upper bound of allocated rpcmem, bytes */
    link_machine machine; /* given to each session when it starts */
} sim_settings;

/* Faults that can be injected, each at the nth call that it can affect.  `code` is the AEE code
 * that this call returns. */
typedef enum {
    FAULT_START, /* a session does not start; argument: code */
    FAULT_OPEN,  /* argument: code */
    FAULT_WRONG_ARCH,
    FAULT_NO_SYMBOL,
    FAULT_NO_MEMORY,  /* rpcmem_alloc returns NULL */
    FAULT_BAD_MEMORY, /* rpcmem_alloc returns (void *) -1 */
    FAULT_MAP,        /* argument: code */
    FAULT_INVOKE,     /* the call does not reach the DSP; argument: code */
    FAULT_DELAY,      /* the reply is late; argument: milliseconds */
    FAULT_CRASH,      /* the process dies before it replies */
    FAULT_SSR, /* the DSP restarts during the call; argument: milliseconds until it is back */
    FAULT_WRONG_BYTE,   /* one byte of the result changes */
    FAULT_QUEUE_CREATE, /* argument: code */
    FAULT_QUEUE_READ,   /* argument: code */
    FAULTS
} sim_fault;

/* Call these functions with sim_lock held, except where noted. */
const sim_settings *settings(void); /* the first call reads NPURT_SIM_FASTRPC */
/* Report a wrong NPURT_SIM_FASTRPC and return false: no session may start. */
bool settings_understood(void);
bool fault_due(sim_fault fault, uint32_t *argument);

uint32_t settings_told(void); /* number of calls of npurt_sim_control; needs no sim_lock */

/* Print a message on stderr and store it for npurt_sim_error. */
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));
void report_forget(void); /* at a process start: npurt_sim_error returns "" until the next report */
void report_reset(void);  /* initialise the messages' lock in a child made by fork */

/* --- memory.c -------------------------------------------------------------------------------- */

/* A block of memory whose descriptor the library knows. */
typedef struct {
    uint8_t *at;     /* the host's view */
    uint8_t *memory; /* the DSP's view: `at`, or a copy of it with `coherent=0` */
    size_t bytes;
    int fd, memory_fd;
    uint32_t serial; /* unique number of the block; 0: this entry is free */
    bool ours;       /* allocated by rpcmem_alloc */
    bool listed;     /* allocated after the last rpcmem_init */
    bool opaque;     /* mapped without access rights */
} block;

/* Return a block, or NULL if there is no such block.  Call with sim_lock held. */
block *block_containing(const void *address);
block *block_of_fd(int fd);
block *block_next(block *last); /* the block after *last* in the table; the first one after NULL */

/* --- coherence.c: copies between the host's and the DSP's memory of a block ------------------ */
void block_to_dsp(const block *b, size_t offset, size_t bytes);
void block_to_host(const block *b, size_t offset, size_t bytes);
void block_all_to_dsp(const block *b);
void block_all_to_host(const block *b);

/* --- process.c ------------------------------------------------------------------------------- */

/* Run the shell in qemu-hexagon, with *log*, *memory* and *socket* as its descriptors 2, 3 and 4.
 * Return the process id, or -1 after report(). */
pid_t process_start(const link_machine *machine, int log, int memory, int socket);

/* True while this thread is in process_start(): the fork handler for children then does nothing. */
extern _Thread_local bool process_starting;
/* Report why a DSP process ended before it served a request. */
void process_explain(void);

/* --- session.c ------------------------------------------------------------------------------- */

typedef enum { IDLE, STARTING, LIVE, DEAD, STOPPING } session_state;

typedef struct {
    bool busy;
    uint32_t asked;
    uint32_t block; /* the shell's number of the area's block; 0: the area is in link_memory */
    int fd;         /* descriptor of the memory that holds the area */
    off_t offset;   /* offset of the area in that memory */
    uint8_t *area;
    uint32_t bytes;
    uint32_t address; /* guest address of the area */
} channel;

/* A block of memory that is attached in the shell. */
typedef struct {
    uint32_t id;     /* 0: this entry is free */
    uint32_t serial; /* `serial` of the block's entry in memory.c; 0: no entry */
    int fd;
    size_t bytes;
    uint32_t address; /* guest address; 0 while the library has not mapped the block */
    int users;        /* running calls that pass the block */
    int references;   /* held by packets of message queues */
    bool argument;    /* attached because a call passed it, not by fastrpc_mmap */
    bool ready;       /* the shell has attached it */
} mapping;

enum { MAPPINGS = 512 };

typedef struct session {
    int domain; /* effective */
    session_state state;
    uint32_t stack; /* bytes of stack of the shell's threads after the next start; 0: the default */
    bool unsigned_pd;
    int handles;
    int users; /* threads that use the session now */
    uint32_t generation;
    int death;           /* code that new calls return; 0: the process is alive */
    int death_in_flight; /* code for calls that were waiting when the process died */
    uint32_t ended;      /* 1 after the process has ended; read without the lock */
    pid_t process;
    pthread_t keeper;
    int memory, socket, log;
    link_memory *link;
    channel channel[LINK_CHANNELS];
    pthread_mutex_t passing; /* held from sending a descriptor until the shell has received it */
    mapping map[MAPPINGS];
    uint32_t next_id;
} session;

extern session sessions[SESSIONS];

/* Start a thread with every signal blocked, so that signals go to the program's threads. */
bool start_thread(pthread_t *thread, void *(*entry)(void *), void *argument);

/* Call with sim_lock held. */
session *session_of(int domain); /* NULL: the machine has no such domain */
int session_start(session *s, bool want_unsigned);
void session_enter(session *s);
void session_leave(session *s);
void session_stop(session *s);
/* Copy the end of the log of the shell and its skels into *text*; return its length in bytes. */
size_t session_log(const session *s, char *text, size_t bytes);
void session_kill(session *s, int code, int code_in_flight);
void dsp_restart(uint32_t milliseconds); /* end all sessions; the DSP is absent for that time */
bool dsp_present(void);

/* --- channel.c: calls into the shell, after session_enter() and without sim_lock ------------- */

channel *channel_take(session *s); /* NULL: the session's process has ended */
void channel_leave(session *s, channel *l);
link_channel *channel_link(session *s, const channel *l);
/* Run *command* in the shell with the arguments in the channel.  Return the shell's result, or
 * `death_in_flight` if the process ends first. */
int channel_call(session *s, channel *l, uint32_t command);
/* Send *fd* to the shell, then run *command* as channel_call() does. */
int channel_call_with(session *s, channel *l, uint32_t command, int fd);
/* Enlarge the channel's area to at least *bytes*. */
int channel_reserve(session *s, channel *l, size_t bytes);
uint32_t channel_block_id(session *s); /* a new number for a block in the shell */
void channels_end(session *s);         /* wake all threads that wait for answers; sim_lock held */

/* --- map.c ----------------------------------------------------------------------------------- */

/* Map the block of an argument in the shell and count the call in the mapping's `users`; return
 * AEE_SUCCESS or an error code. */
int map_argument(session *s, channel *l, const block *b, uint32_t *address, mapping **used);
/* Detach a block, before it is freed, from the sessions that mapped it for calls. */
void map_forget(uint32_t serial);
/* Return the mapping of *fd* that fastrpc_mmap made, or NULL; sim_lock held. */
mapping *map_find(session *s, int fd);

/* --- invoke.c -------------------------------------------------------------------------------- */
int invoke(session *s, uint32_t handle, uint32_t scalars, remote_arg *arguments, uint64_t *packets);

/* --- handle.c -------------------------------------------------------------------------------- */
void handles_drop(void); /* empty the table, in a child made by fork */
/* Enter the session of a domain, after starting it if it is not running; return AEE_SUCCESS or an
 * error code. */
int session_use(int domain, session **entered);
int handle_domain(uint64_t handle); /* -1: the handle is not open */
/* Call with sim_lock held. session_used() returns whether the session has open handles or queues.
 * session_stop_unused() stops the session if it has no handle, queue or running call, and returns
 * whether it did. */
bool session_used(const session *s);
bool session_stop_unused(session *s);

/* --- control.c ------------------------------------------------------------------------------- */
/* Call with sim_lock held. */
bool want_unsigned(int domain);
/* Record whether a session or a reservation uses the domain. */
void reserve_domain(int domain, bool reserved);

/* --- uri.c ----------------------------------------------------------------------------------- */

/* Return the number of a domain name such as "cdsp", at most *most* bytes long, or -1 if it is
 * unknown. sim_lock held. */
int uri_domain_number(const char *name, size_t most);
const char *uri_domain_name(int number);
/* Return the effective domain that a URI names, or -1 if it names none. sim_lock held. */
int uri_domain(const char *uri);
/* Search the DSP's library path for the file that a URI names; return a descriptor of it, or -1. */
int uri_open(const char *uri);

/* --- queue.c --------------------------------------------------------------------------------- */
void queues_end(session *s, int error); /* end the queues of a session that died; sim_lock held */
void queues_forget(session *s);         /* end them and clear their `s` */
bool queues_any(const session *s);      /* the session has an open queue */
void queues_drop(void);                 /* empty the list, in a child made by fork */
void queues_stuck(bool stuck);
void queues_reset(void); /* forget which sessions crash at the next dspqueue_create */

/* --- futex.c --------------------------------------------------------------------------------- */
uint64_t clock_us(void);
void futex_wake(uint32_t *word, int threads);
/* Sleep while *word equals *value*, for at most 1 s; false: *end* (clock_us) has passed. */
bool futex_wait(uint32_t *word, uint32_t value, uint64_t end);

static inline uint32_t load(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static inline void store(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
}

#endif
