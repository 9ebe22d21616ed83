/* A lock for the resources of a session. */
#ifndef NPURT_LOCK_H
#define NPURT_LOCK_H

#include "qurt.h"

typedef uint32_t lock; /* 0: free, 1: held, 2: held, and a thread may wait */

static inline void lock_take(lock *lock)
{
    uint32_t was = 0;
    if (__atomic_compare_exchange_n(lock, &was, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        return;
    }
    while (__atomic_exchange_n(lock, 2, __ATOMIC_SEQ_CST)) {
        qurt_futex_wait(lock, 2); /* the loop continues after a failure too */
    }
}

static inline void lock_leave(lock *lock)
{
    if (__atomic_exchange_n(lock, 0, __ATOMIC_SEQ_CST) == 2) {
        qurt_futex_wake(lock, 1);
    }
}

#endif
