/* VTCM, the memory beside the vector units, if the DSP grants some. */
#ifndef NPURT_VTCM_H
#define NPURT_VTCM_H

#include <stdint.h>

typedef struct {
    char *address; /* aligned to 128; NULL when there is none */
    uint32_t nbytes;
    uint32_t slot; /* bytes of each thread, a multiple of 128 */
    unsigned context;
} vtcm;

/* Acquire `most` bytes for each thread, or a half, a quarter, ..., at least `least`; or nothing. */
void vtcm_acquire(vtcm *vtcm, uint32_t threads, uint32_t most, uint32_t least);
void vtcm_release(vtcm *vtcm);

#endif
