/* The execution of a batch. */
#ifndef NPURT_EXECUTE_H
#define NPURT_EXECUTE_H

#include "batch.h"
#include "pool.h"
#include "vtcm.h"

/* The running batch, and memory that persists between batches and grows if an op needs more. */
typedef struct {
    void *activations; /* aligned to 128 */
    size_t activations_bytes;
    void *scratch; /* one part for each thread, aligned to 128 */
    size_t scratch_bytes;
    batch batch;
} workspace;

void workspace_free(workspace *work);

/* Run work->batch on all threads, and write the reply. */
void execute(workspace *work, pool *pool, const vtcm *vtcm, npurt_reply *reply);

#endif
