/*
 * pool.c with delayed threads: at random, a thread sleeps before an atomic operation, as if it had
 * been preempted there.  A test program links this file in place of pool.c.
 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

static void late(void)
{
    static _Thread_local uint32_t random;
    if (!random) {
        random = (uint32_t) (uintptr_t) &random | 1;
    }
    random ^= random << 13; /* Marsaglia 2003: xorshift */
    random ^= random >> 17;
    random ^= random << 5;
    if (random % 64 == 0) {
        usleep(random >> 8 & 1023);
    }
}

#undef atomic_load
#undef atomic_store
#undef atomic_fetch_add
#undef atomic_compare_exchange_strong
#define atomic_load(p) (late(), atomic_load_explicit(p, memory_order_seq_cst))
#define atomic_store(p, v) (late(), atomic_store_explicit(p, v, memory_order_seq_cst))
#define atomic_fetch_add(p, v) (late(), atomic_fetch_add_explicit(p, v, memory_order_seq_cst))
#define atomic_compare_exchange_strong(p, e, v)                                                    \
    (late(),                                                                                       \
     atomic_compare_exchange_strong_explicit(p, e, v, memory_order_seq_cst, memory_order_seq_cst))

#include "../../npurt/cpu/pool/pool.c"
