/*
 * The part of QuRT, the DSP's operating system, that the shell provides to skels.  Source:
 * qurt_thread.h, qurt_mutex.h, qurt_sem.h, qurt_barrier.h, qurt_signal.h, qurt_error.h, as
 * published in public Hexagon trees.
 */
#ifndef QURT_H
#define QURT_H

#include "shell.h"

enum {
    QURT_EOK = 0,
    QURT_EVAL = 1,
    QURT_EMEM = 2,
    QURT_EINVALID = 4,
    QURT_ENOTHREAD = 30,
    QURT_NAME = 16,
    QURT_JOINABLE = 1,
};

typedef struct {
    char name[QURT_NAME];
    uint8_t tcb_partition;
    uint8_t stid;
    uint16_t priority;
    uint8_t autostack_and_group;
    uint8_t bus_priority;
    uint16_t timetest;
    uint32_t stack_bytes;
    void *stack;
    uint16_t detach_state;
} qurt_thread_attributes;

_Static_assert(sizeof(qurt_thread_attributes) == 36, "as in qurt_thread.h");

/* QuRT's objects take 16 bytes in a skel's memory; only QuRT's calls use their content. */
typedef struct {
    uint32_t state; /* MUTEX_FREE, MUTEX_HELD or MUTEX_AWAITED of sync.c */
    uint32_t rest[3];
} qurt_mutex;

typedef struct {
    uint32_t value;
    uint32_t rest[3];
} qurt_semaphore;

typedef struct {
    uint32_t arrived;
    uint32_t total;
    uint32_t round;
    uint32_t rest;
} qurt_barrier;

typedef struct {
    uint32_t signals;
    uint32_t rest[3];
} qurt_signal;

typedef struct {
    uint32_t round;
    uint32_t rest[3];
} qurt_condition;

int qurt_thread_create(uint32_t *id, const qurt_thread_attributes *attributes,
                       void (*entry)(void *), void *argument);
UNREACHABLE void qurt_thread_exit(int status);
int qurt_thread_join(uint32_t id, int *status);
uint32_t qurt_thread_get_id(void);
int qurt_thread_get_priority(uint32_t id);
int qurt_thread_set_priority(uint32_t id, uint16_t priority);
void qurt_thread_get_name(char *name, uint8_t bytes);

void qurt_mutex_init(qurt_mutex *mutex);
void qurt_mutex_destroy(qurt_mutex *mutex);
void qurt_mutex_lock(qurt_mutex *mutex);
void qurt_mutex_unlock(qurt_mutex *mutex);
int qurt_mutex_try_lock(qurt_mutex *mutex);
void qurt_sem_init(qurt_semaphore *semaphore);
void qurt_sem_init_val(qurt_semaphore *semaphore, uint16_t value);
void qurt_sem_destroy(qurt_semaphore *semaphore);
int qurt_sem_add(qurt_semaphore *semaphore, uint32_t amount);
int qurt_sem_down(qurt_semaphore *semaphore);
int qurt_sem_try_down(qurt_semaphore *semaphore);
int qurt_barrier_init(qurt_barrier *barrier, uint32_t total);
int qurt_barrier_destroy(qurt_barrier *barrier);
int qurt_barrier_wait(qurt_barrier *barrier);
void qurt_signal_init(qurt_signal *signal);
void qurt_signal_destroy(qurt_signal *signal);
uint32_t qurt_signal_wait(qurt_signal *signal, uint32_t mask, uint32_t attribute);
void qurt_signal_set(qurt_signal *signal, uint32_t mask);
void qurt_signal_clear(qurt_signal *signal, uint32_t mask);
uint32_t qurt_signal_get(qurt_signal *signal);
void qurt_cond_init(qurt_condition *condition);
void qurt_cond_destroy(qurt_condition *condition);
void qurt_cond_wait(qurt_condition *condition, qurt_mutex *mutex);
void qurt_cond_signal(qurt_condition *condition);
void qurt_cond_broadcast(qurt_condition *condition);
int qurt_futex_wait(uint32_t *word, uint32_t value);
int qurt_futex_wake(uint32_t *word, int threads);
int qurt_timer_sleep(uint64_t microseconds);

#endif
