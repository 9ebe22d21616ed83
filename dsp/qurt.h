/*
 * The part of QuRT, the operating system of the DSP, that the skel uses.
 *
 * Sources: qurt_thread.h, qurt_sem.h, qurt_futex.h, qurt_memory.h and qurt_hvx.h as published in
 * public Hexagon trees.  The thread attributes have had this layout since 2013; QuRT's enums have
 * one byte.  QuRT's own qurt_thread_attr_init is inline, so pool.c has an equivalent.
 *
 * Threads need not lock HVX contexts: since v65 QuRT assigns a context to a thread when the thread
 * uses HVX.
 */
#ifndef NPURT_QURT_H
#define NPURT_QURT_H

#include <stdint.h>

typedef uint32_t qurt_thread_t;

typedef struct {
    char name[16];
    uint8_t tcb_partition; /* 0: memory */
    uint8_t stid;
    uint16_t priority; /* 1 is the highest, 254 the lowest */
    uint8_t autostack; /* 0; in older versions this is the address space, also 0 */
    uint8_t bus_priority;
    uint16_t timetest_id;
    uint32_t stack_size;
    void *stack_addr; /* aligned to 8 */
    uint16_t detach_state;
} qurt_thread_attr_t;

_Static_assert(sizeof(qurt_thread_attr_t) == 36, "as in qurt_thread.h");

enum {
    QURT_EOK = 0,
    QURT_THREAD_ATTR_CREATE_JOINABLE = 1,
    QURT_THREAD_ATTR_BUS_PRIO_DEFAULT = 255,
    QURT_THREAD_ATTR_TIMETEST_ID_DEFAULT = 0xfffe,
};

int qurt_thread_create(qurt_thread_t *id, qurt_thread_attr_t *attr, void (*entry)(void *),
                       void *arg);
int qurt_thread_join(qurt_thread_t id, int *status);
void qurt_thread_exit(int status);
qurt_thread_t qurt_thread_get_id(void);
int qurt_thread_get_priority(qurt_thread_t id);

typedef struct {
    uint64_t opaque[2];
} qurt_sem_t;

_Static_assert(sizeof(qurt_sem_t) == 16 && _Alignof(qurt_sem_t) == 8, "as in qurt_sem.h");

/* qurt_sem.h calls the results of qurt_sem_add and qurt_sem_down unused values. */
void qurt_sem_init_val(qurt_sem_t *semaphore, uint16_t value);
int qurt_sem_add(qurt_sem_t *semaphore, unsigned amount);
int qurt_sem_down(qurt_sem_t *semaphore);
void qurt_sem_destroy(qurt_sem_t *semaphore);

/* Inline in QuRT's headers too: no process on the DSP exports this name. */
static inline int qurt_sem_up(qurt_sem_t *semaphore)
{
    return qurt_sem_add(semaphore, 1);
}

/* wait: sleep while *word is `value`; wake: wake at most `threads` sleeping threads. */
int qurt_futex_wait(void *word, int value);
int qurt_futex_wake(void *word, int threads);

/* Bits 8..15 of the result: number of 128-byte HVX contexts. */
int qurt_hvx_get_units(void);

enum {
    QURT_MEM_CACHE_INVALIDATE = 1,
    QURT_MEM_CACHE_FLUSH_INVALIDATE = 2,
    QURT_MEM_DCACHE = 1,
};

int qurt_mem_cache_clean(uint32_t address, uint32_t bytes, uint8_t operation, uint8_t cache);

#endif
