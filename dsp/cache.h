/* Keeping memory that the host shares the same on both sides. */
#ifndef NPURT_CACHE_H
#define NPURT_CACHE_H

#include "qurt.h"

enum { CACHE_LINE = 128 }; /* bytes; the longest of any version */

/* Whole lines, so that no version of QuRT refuses the range. */
static inline void cache_maintain(const void *address, uint64_t nbytes, uint8_t operation)
{
    uint32_t first = (uint32_t) (uintptr_t) address & ~(CACHE_LINE - 1u);
    uint32_t last = (uint32_t) (uintptr_t) address + (uint32_t) nbytes;
    uint32_t whole = (last - first + CACHE_LINE - 1) & ~(CACHE_LINE - 1u);
    qurt_mem_cache_clean(first, whole, operation, QURT_MEM_DCACHE);
}

/* Forget what the caches hold of it: the host may have written since.  It holds nothing of ours that
 * is not in memory yet (cache_give). */
static inline void cache_take(const void *address, uint64_t nbytes)
{
    cache_maintain(address, nbytes, QURT_MEM_CACHE_INVALIDATE);
}

/* Write what we wrote to memory, for the host to see, and forget it. */
static inline void cache_give(const void *address, uint64_t nbytes)
{
    cache_maintain(address, nbytes, QURT_MEM_CACHE_FLUSH_INVALIDATE);
}

#endif
