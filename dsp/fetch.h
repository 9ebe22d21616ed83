/* Prefetches memory into L2. */
#ifndef NPURT_FETCH_H
#define NPURT_FETCH_H

#include <hexagon_protos.h>
#include <stddef.h>
#include <stdint.h>

enum { FETCH_MOST = 128 << 10 }; /* bytes; the part of the smallest L2 for one thread */

/* Request a prefetch of the bytes at `address`; the hardware may ignore the request. */
static inline void fetch(const char *address, size_t nbytes)
{
    enum { WIDTH = 128 };
    uint64_t lines = (nbytes < FETCH_MOST ? nbytes : FETCH_MOST) / WIDTH;
    uint64_t shape = (uint64_t) WIDTH << 32 | WIDTH << 16; /* stride, width; then the height */
    Q6_l2fetch_AP((void *) (uintptr_t) address, (int64_t) (shape | lines));
}

#endif
