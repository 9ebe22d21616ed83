/* Shared memory blocks, by file descriptor. */
#ifndef NPURT_MAPS_H
#define NPURT_MAPS_H

#include <stddef.h>
#include <stdint.h>

enum { MAPS_MAX = 128 };

typedef struct {
    struct {
        int32_t fd;
        uint32_t nbytes; /* 0: this row is free */
        char *address;
    } row[MAPS_MAX];
} maps;

/* Map a whole block; return 0, or a DSP_E_ code. */
int maps_add(maps *maps, int32_t fd, uint32_t nbytes);

int maps_remove(maps *maps, int32_t fd);

void maps_clear(maps *maps);

/* Return the address of `nbytes` bytes at `offset` in a block; NULL if the block is shorter. */
void *maps_find(const maps *maps, int32_t fd, uint32_t offset, uint64_t nbytes);

#endif
