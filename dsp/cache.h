/* Cache maintenance for memory that host and DSP share. */
#ifndef NPURT_CACHE_H
#define NPURT_CACHE_H

#include "qurt.h"

enum { CACHE_LINE = 128 }; /* bytes; the longest line of all versions */

/* Maintain whole cache lines, because some versions of QuRT refuse other ranges.  Return 0, or the
 * code with which QuRT refused: QURT_EVAL or QURT_EALIGN.  Then the cache holds old lines. */
static inline int cache_maintain(const void *address, uint64_t nbytes, uint8_t operation)
{
    uint32_t first = (uint32_t) (uintptr_t) address & ~(CACHE_LINE - 1u);
    uint32_t last = (uint32_t) (uintptr_t) address + (uint32_t) nbytes;
    uint32_t whole = (last - first + CACHE_LINE - 1) & ~(CACHE_LINE - 1u);
    return qurt_mem_cache_clean(first, whole, operation, QURT_MEM_DCACHE);
}

/* Invalidate the cache lines of memory that the host may have written; return as cache_maintain.
 * cache_give has already written back all changes in these lines. */
static inline int cache_take(const void *address, uint64_t nbytes)
{
    return cache_maintain(address, nbytes, QURT_MEM_CACHE_INVALIDATE);
}

/* Write the DSP's changes back to memory, for the host, and invalidate the lines; return as
 * cache_maintain. */
static inline int cache_give(const void *address, uint64_t nbytes)
{
    return cache_maintain(address, nbytes, QURT_MEM_CACHE_FLUSH_INVALIDATE);
}

#endif
