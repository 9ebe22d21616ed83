/* VTCM, the memory of the vector units, if the DSP grants it. */
#ifndef NPURT_VTCM_H
#define NPURT_VTCM_H

#include <stdint.h>

typedef struct {
    char *address; /* aligned to 128; NULL: no VTCM */
    uint32_t nbytes;
    uint32_t slot; /* bytes of each thread, a multiple of 128 */
    unsigned context;
} vtcm;

/* Acquire `most` bytes per thread.  If the DSP refuses, try half, a quarter, ... down to `least`;
 * acquire nothing if it refuses all of them. */
void vtcm_acquire(vtcm *vtcm, uint32_t threads, uint32_t most, uint32_t least);
void vtcm_release(vtcm *vtcm);

#endif
