/*
 * The interfaces of the library's parts.
 *
 * One lock guards all tables.  No thread holds it while it waits for a DSP process: a session in use
 * has `users`, and its parts stay until there are none.
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
extern pthread_cond_t sim_changed; /* a session, a channel or a queue is not what it was */

/* --- settings.c ------------------------------------------------------------------------------ */

typedef struct {
    bool faithful; /* mistakes get the answers of the real library, not errors */
    bool present;  /* there is a DSP */
    bool log;      /* messages of the DSP go to stderr */
    bool signed_pd;
    bool unsigned_pd;     /* what the DSP says; it works anyway */
    bool coherent;        /* rpcmem made from now on needs no DMA_BUF_IOCTL_SYNC */
    uint64_t rpcmem;      /* bytes that may be allocated */
    link_machine machine; /* of sessions that start from now on */
} sim_settings;

/* All faults, each at its nth opportunity. */
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

/* All with sim_lock held. */
const sim_settings *settings(void); /* reads NPURT_SIM_FASTRPC the first time */
bool settings_understood(void);     /* false, and said so: nothing shall start */
bool fault_due(sim_fault fault, uint32_t *argument);

uint32_t settings_told(void); /* how often npurt_sim_control was called; without sim_lock */

/* Say something on stderr and remember it for npurt_sim_error. */
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));
void report_forget(void); /* a process starts: what was said is not about it */
void report_reset(void);  /* in a child made by fork */

/* --- memory.c -------------------------------------------------------------------------------- */

/* Memory that the library knows the descriptor of. */
typedef struct {
    uint8_t *at;     /* as the host sees it */
    uint8_t *memory; /* as the DSP does: the same, unless the host has caches to maintain */
    size_t bytes;
    int fd, memory_fd;
    uint32_t serial; /* never used twice; 0: this entry is free */
    bool ours;       /* made by rpcmem_alloc */
    bool listed;     /* rpcmem knows it: it was not initialised since */
    bool opaque;     /* nobody may touch it here */
} block;

/* With sim_lock held; NULL when there is none. */
block *block_containing(const void *address);
block *block_of_fd(int fd);
block *block_next(block *last); /* all blocks in turn: NULL gives the first */

/* --- coherence.c: show one side a part of what the other has written ---------------------------- */
void block_to_dsp(const block *b, size_t offset, size_t bytes);
void block_to_host(const block *b, size_t offset, size_t bytes);
void block_all_to_dsp(const block *b);
void block_all_to_host(const block *b);

/* --- process.c ------------------------------------------------------------------------------- */

/* Start qemu-hexagon on the shell, with these descriptors as its 2, 3 and 4; return its process, or
 * -1 after `report`. */
pid_t process_start(const link_machine *machine, int log, int memory, int socket);

/* This thread is in process_start(): a fork now is not the program's. */
extern _Thread_local bool process_starting;
/* Say why a process that never served did not. */
void process_explain(void);

/* --- session.c ------------------------------------------------------------------------------- */

typedef enum { IDLE, STARTING, LIVE, DEAD, STOPPING } session_state;

typedef struct {
    bool busy;
    uint32_t asked;
    uint32_t block; /* the area's, as the shell knows it; 0: the channel's part of the link */
    int fd;         /* of the memory that the area is in */
    off_t offset;   /* of the area in it */
    uint8_t *area;
    uint32_t bytes;
    uint32_t address; /* of the area in the guest */
} channel;

/* A block that the shell has. */
typedef struct {
    uint32_t id;     /* 0: this entry is free */
    uint32_t serial; /* of the block here; 0: not one of ours */
    int fd;
    size_t bytes;
    uint32_t address; /* in the guest, 0 while it is not mapped there by us */
    int users;        /* calls that pass it */
    int references;   /* by packets of message queues */
    bool argument;    /* attached because a call passed it, not by fastrpc_mmap */
    bool ready;       /* the shell has answered */
} mapping;

enum { MAPPINGS = 512 };

typedef struct session {
    int domain; /* effective */
    session_state state;
    uint32_t stack; /* bytes, of threads that serve calls from its next start on; 0: as usual */
    bool unsigned_pd;
    int handles;
    int users; /* threads that are inside */
    uint32_t generation;
    int death;           /* code for calls from now on; 0: alive */
    int death_in_flight; /* code for those that were waiting when it died */
    uint32_t ended;      /* 1: no more answers will come; read without the lock */
    pid_t process;
    pthread_t keeper;
    int memory, socket, log;
    link_memory *link;
    channel channel[LINK_CHANNELS];
    pthread_mutex_t passing; /* who sends a descriptor, until it is received */
    mapping map[MAPPINGS];
    uint32_t next_id;
} session;

extern session sessions[SESSIONS];

/* Start a thread with every signal blocked: signals are the program's. */
bool start_thread(pthread_t *thread, void *(*entry)(void *), void *argument);

/* With sim_lock held. */
session *session_of(int domain); /* NULL: no such domain here */
int session_start(session *s, bool want_unsigned);
void session_enter(session *s);
void session_leave(session *s);
void session_stop(session *s);
/* Copy the newest of what the shell and its skels said into *text*; return the bytes. */
size_t session_log(const session *s, char *text, size_t bytes);
void session_kill(session *s, int code, int code_in_flight);
void dsp_restart(uint32_t milliseconds); /* all sessions die; the nodes come back later */
bool dsp_present(void);

/* --- channel.c: calls into the shell; inside a session, without sim_lock --------------------------- */

channel *channel_take(session *s); /* NULL: the session died */
void channel_leave(session *s, channel *l);
link_channel *channel_link(session *s, const channel *l);
/* Let the shell run *command*, whose arguments are in place; return its answer, or the code of a
 * dead session. */
int channel_call(session *s, channel *l, uint32_t command);
/* The same with a descriptor for the shell. */
int channel_call_with(session *s, channel *l, uint32_t command, int fd);
/* Make room for *bytes* in the channel's area. */
int channel_reserve(session *s, channel *l, size_t bytes);
uint32_t channel_block_id(session *s); /* a new number for a block of the shell's */
void channels_end(session *s);         /* wake all that wait for an answer; sim_lock held */

/* --- map.c ----------------------------------------------------------------------------------- */

/* Make the shell map the block that holds an argument; add its user, or return a code. */
int map_argument(session *s, channel *l, const block *b, uint32_t *address, mapping **used);
void map_forget(uint32_t serial); /* a block is going away: detach it where only calls passed it */
mapping *map_find(session *s, int fd); /* by fastrpc_mmap; sim_lock held */

/* --- invoke.c -------------------------------------------------------------------------------- */
int invoke(session *s, uint32_t handle, uint32_t scalars, remote_arg *arguments, uint64_t *packets);

/* --- handle.c -------------------------------------------------------------------------------- */
void handles_drop(void); /* in a child made by fork: there are none */
/* Enter the session of a domain, started if need be, or return a code. */
int session_use(int domain, session **entered);
int handle_domain(uint64_t handle); /* -1: it is none */
/* With sim_lock held: whether handles or queues are open in it; and its end, if no handle, call or
 * queue needs it: true when it came. */
bool session_used(const session *s);
bool session_stop_unused(session *s);

/* --- control.c ------------------------------------------------------------------------------- */
/* With sim_lock held. */
bool want_unsigned(int domain);
void reserve_domain(int domain, bool reserved); /* by a session, or a request for one */

/* --- uri.c ----------------------------------------------------------------------------------- */

/* The number of "cdsp", which is at most *most* bytes long; -1: there is none.  sim_lock held. */
int uri_domain_number(const char *name, size_t most);
const char *uri_domain_name(int number);
/* The domain that a URI names, effective; -1: none that exists.  sim_lock held. */
int uri_domain(const char *uri);
/* Open the file that a URI names, where the DSP would look for it; -1: it is nowhere. */
int uri_open(const char *uri);

/* --- queue.c --------------------------------------------------------------------------------- */
void queues_end(session *s, int error); /* the session died; sim_lock held */
void queues_forget(session *s);         /* and is gone */
bool queues_any(const session *s);      /* it has one that is open */
void queues_drop(void);                 /* in a child made by fork: there are none */
void queues_stuck(bool stuck);
void queues_reset(void); /* forget that the next one would crash */

/* --- futex.c --------------------------------------------------------------------------------- */
uint64_t clock_us(void);
void futex_wake(uint32_t *word, int threads);
/* Sleep while *word is *value*, at most until *end*; false: it is too late. */
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
