/*
 * Memory access of a task, in the buffers of the simulated drivers.
 */
#include "npu.h"

uint8_t *dma(struct run *run, uint32_t address, uint64_t size, const char *what)
{
    const struct bo *bo = space_find(run->space, address);
    if (!bo) {
        refuse(run->why, "%s at %#x: no buffer is mapped there", what, address);
        return NULL;
    }
    const uint64_t offset = address - bo->iova;
    if (size > bo->limit - offset) {
        refuse(run->why, "%s at %#x: %llu bytes reach past buffer %u of %llu bytes at %#llx", what,
               address, (unsigned long long) size, bo->handle, (unsigned long long) bo->size,
               (unsigned long long) bo->iova);
        return NULL;
    }
    return bo->device + offset;
}

bool dma_may_write(struct run *run, uint32_t address)
{
    const struct job *job = run->job;
    const struct bo *bo = space_find(run->space, address);
    bool listed = job->driver == RKNPU; /* rknpu's jobs list no buffers */
    for (uint32_t i = job->in_count; i < job->bo_count; i++) {
        listed |= job->bos[i] == bo;
    }
    if (settings.strict && bo == space_find(run->space, run->list)) {
        return refuse(run->why, "output goes into buffer %u, which holds the commands", bo->handle);
    }
    if (settings.strict && !listed) {
        return refuse(run->why,
                      "output goes into buffer %u, which the job does not list as an output: "
                      "no call would wait for it",
                      bo->handle);
    }
    return true;
}

bool dma_flush(struct run *run)
{
    return run->out != NULL; /* `dma` returned the memory itself */
}
