/* Memory mapping and cache maintenance, for skels and for the shell itself.  Source: HAP_mem.h of
 * the Hexagon SDK and qurt_types.h, as published in public Hexagon trees. */
#ifndef MEMORY_H
#define MEMORY_H

#include "qurt.h"

enum { DSP_BAD_REFERENCES = (int) 0x80000485 };

/* Operations of qurt_mem_cache_clean. */
enum {
    CACHE_FLUSH,
    CACHE_INVALIDATE,
    CACHE_FLUSH_INVALIDATE,
    CACHE_FLUSH_ALL,
    CACHE_FLUSH_INVALIDATE_ALL,
};

void cache_maintain(void *address, uint32_t bytes, int operation);

void *HAP_mmap(void *address, int bytes, int protection, int flags, int fd, long offset);
void *HAP_mmap2(void *address, size_t bytes, int protection, int flags, int fd, long offset);
int HAP_munmap(void *address, int bytes);
int HAP_munmap2(void *address, size_t bytes);
int HAP_mmap_get(int fd, void **address, uint64_t *physical);
int HAP_mmap_put(int fd);
int qurt_mem_cache_clean(void *address, uint32_t bytes, int operation, int cache);

#endif
