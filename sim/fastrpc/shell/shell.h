/*
 * The shell: a freestanding program for qemu-hexagon that loads and runs skels, as a PD of a real
 * DSP does.  This file has the interfaces between the shell's source files; imports.c lists the
 * names that skels may import.
 */
#ifndef SHELL_H
#define SHELL_H

#include "../link.h"
#include "sys.h"
#include <stdarg.h>
#include <stdbool.h>

#define UNREACHABLE __attribute__((noreturn))

/* Codes that the DSP returns to the library.  Source: qualcomm/fastrpc inc/AEEStdErr.h.  Codes from
 * the DSP have 0x80000400 added. */
enum {
    DSP_OK = 0,
    DSP_NO_MEMORY = (int) 0x80000402,
    DSP_UNABLE_TO_LOAD = (int) 0x80000406,
    DSP_BAD_PARAMETER = (int) 0x8000040e,
    DSP_INVALID_FORMAT = (int) 0x80000411,
    DSP_UNSUPPORTED = (int) 0x80000414,
    DSP_ALREADY = (int) 0x8000041a,
    DSP_INVALID_HANDLE = (int) 0x8000042c,
    DSP_NO_SYMBOL = (int) 0x80000442,
    DSP_NO_MAP = (int) 0x80000448,
};

typedef int (*skel_invoke)(uint64_t handle, uint32_t scalars, link_argument *arguments);

extern link_memory *shared; /* set first in shell_main() */

/* --- text.c ---------------------------------------------------------------------------------- */
int text_format(char *out, size_t bytes, const char *format, va_list values);
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void say_values(const char *format, va_list values);
UNREACHABLE void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* --- memory.c: blocks of memory that the host shares ----------------------------------------- */
int receive_descriptor(void);
int block_attach(uint32_t block, int fd, uint32_t bytes, bool map, uint32_t *address);
int block_detach(uint32_t block);
/* Return the address of *offset* in the block with the host's descriptor *fd*, or NULL if it is not
 * mapped. */
void *block_address(int fd, uint32_t offset, uint32_t bytes);

/* --- module.c: shared objects ---------------------------------------------------------------- */
enum { MODULES = 16 };
typedef struct module module;
/* The initial thread-local variables of a module: `file_bytes` bytes from `start`, then zeros. */
typedef struct {
    const void *start;
    uint32_t file_bytes, bytes, alignment;
} tls_image;
/* Return the thread-local variables of a module; modules are numbered from 1.  False: none. */
bool module_tls(uint32_t number, tls_image *image);
int module_load(const char *name, size_t bytes, int fd, module **loaded);
void *module_symbol(const module *, const char *name, size_t bytes);
void module_keep(module *);
void module_drop(module *);

/* --- tls.c: thread-local variables ----------------------------------------------------------- */
typedef struct {
    uint32_t module, offset;
} tls_index;
void *tls_address(const tls_index *index); /* a skel calls it as __tls_get_addr */
void tls_thread_ends(uint32_t slot);
void tls_module_ends(uint32_t module);

/* --- imports.c ------------------------------------------------------------------------------- */
void *import_find(const char *name);

/* --- fails.c --------------------------------------------------------------------------------- */
/* Return what a skel calls for `function`: another one if the setting `fails` names the call. */
void *failing(const char *name, void *function);

/* --- thread.c -------------------------------------------------------------------------------- */
enum { THREADS_FULL = -1 };
int thread_start(void (*entry)(void *), void *argument, void *stack, size_t bytes);
void thread_main_starts(void);
uint32_t thread_slot(void); /* less than LINK_THREADS */
/* OURS: the futex is in memory of this process.  SHARED: in memory shared with the library, or
 * woken by the kernel. */
typedef enum { OURS, SHARED } futex_scope;
void futex_wait(futex_scope scope, uint32_t *word, uint32_t value);
/* Wait as futex_wait() does, for at most 1 s; false: *end* has passed. */
bool futex_wait_until(futex_scope scope, uint32_t *word, uint32_t value, uint64_t end);
void futex_wake(futex_scope scope, uint32_t *word, int threads);

/* Instruction packets are counted while a skel's code runs, but not while it waits.  A thread adds
 * its count to the account before it wakes another thread, and when its own wait ends.  So the
 * packet count of a call depends on the call's work and not on timing. */
void account_start(void);
void account_settle(void);
void account_pause(void);
void account_resume(void);
uint64_t account_total(void);

typedef uint32_t lock; /* 0: free, 1: held, 2: held, and a thread waits */
void lock_take(lock *);
void lock_leave(lock *);

/* --- calls.c: requests of the library -------------------------------------------------------- */
int call_open(link_channel *, const char *uri, uint32_t bytes);
int call_close(link_channel *);
int call_invoke(link_channel *);

/* --- queue.c --------------------------------------------------------------------------------- */
int queue_attach(uint32_t queue, uint32_t bytes);
int queue_drop(uint32_t queue);

static inline uint32_t load(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static inline void store(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
}

/* End the PD if a skel has not initialised an object: the PD of a real DSP would hang or die. */
#define SHAPE(condition, what)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            die("%s: %s", __func__, what);                                                         \
        }                                                                                          \
    } while (0)

#endif
