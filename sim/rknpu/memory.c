/*
 * Buffers, the IOVA spaces they lie in, and what cache maintenance does to them.
 *
 * The bytes of a buffer are pages of the memory file behind the caller's descriptor, so that the
 * caller maps the very same pages with mmap(2).  With coherent=0 the NPU works on a second copy,
 * and only the driver's maintenance calls move bytes between the two.
 *
 * New buffers hold a pattern, so that bytes nobody wrote show; between two lies an unmapped page.
 */
#include "sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CPU_PATTERN = 0xA5, DEVICE_PATTERN = 0x5A };

/* mmap is also a function of this library: this is the kernel's. */
static void *map(size_t size, int flags, int fd, uint64_t offset)
{
    const int access = PROT_READ | PROT_WRITE;
    return (void *) syscall(SYS_mmap, NULL, size, access, flags, fd, (long) offset);
}

void space_init(struct space *space, uint64_t low, uint64_t high, bool top_down)
{
    memset(space, 0, sizeof(*space));
    space_forked(space);
    space->low = low;
    space->high = high;
    space->top_down = top_down;
}

void space_forked(struct space *space)
{
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&space->lock, &attributes);
    pthread_rwlockattr_destroy(&attributes);
}

void space_destroy(struct space *space)
{
    pthread_rwlock_destroy(&space->lock);
    free(space->bos);
}

/* Finds room for `size` bytes with a page free on both sides; returns where it goes in the table. */
static bool find_gap(const struct space *space, uint64_t size, size_t *place, uint64_t *iova)
{
    for (size_t i = 0; i <= space->count; i++) {
        const size_t gap = space->top_down ? space->count - i : i; /* below bos[gap] */
        uint64_t from = space->low, to = space->high;
        if (gap > 0) {
            const struct bo *below = space->bos[gap - 1];
            from = below->iova + round_up(below->size, PAGE) + PAGE;
        }
        if (gap < space->count) {
            const uint64_t above = space->bos[gap]->iova;
            to = above > PAGE ? above - PAGE : 0;
        }
        if (from <= to && to - from >= size) {
            *place = gap;
            *iova = space->top_down ? to - size : from;
            return true;
        }
    }
    return false;
}

static int space_insert(struct space *space, struct bo *bo)
{
    size_t place;
    if (space->count == space->capacity) {
        const size_t capacity = space->capacity ? 2 * space->capacity : 64;
        struct bo **bos = realloc(space->bos, capacity * sizeof(*bos));
        if (!bos) {
            return -ENOMEM;
        }
        space->bos = bos;
        space->capacity = capacity;
    }
    if (!find_gap(space, round_up(bo->size, PAGE), &place, &bo->iova)) {
        return space->top_down ? -ENOMEM : -ENOSPC; /* iommu_dma_alloc_iova, drm_mm */
    }
    memmove(space->bos + place + 1, space->bos + place,
            (space->count - place) * sizeof(*space->bos));
    space->bos[place] = bo;
    space->count++;
    return 0;
}

static void unmap(struct bo *bo)
{
    const size_t span = round_up(bo->size, PAGE);
    if (bo->device != bo->cpu) {
        munmap(bo->device, span);
    }
    madvise(bo->cpu, span, MADV_REMOVE); /* gives the pages back; a mapping reads zeros from now */
    munmap(bo->cpu, span);
}

static int map_both(struct bo *bo, int fd, bool cacheable)
{
    const size_t span = round_up(bo->size, PAGE);
    bo->cpu = map(span, MAP_SHARED, fd, bo->offset);
    if (bo->cpu == MAP_FAILED) {
        return -ENOMEM;
    }
    bo->device = bo->cpu;
    if (cacheable && !settings.coherent) {
        bo->device = map(span, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (bo->device == MAP_FAILED) {
            bo->device = bo->cpu;
            unmap(bo);
            return -ENOMEM;
        }
    }
    return 0;
}

int bo_create(struct space *space, int fd, uint64_t offset, uint64_t size, bool cacheable,
              bool zero, struct bo **made)
{
    if (!size || size > UINT32_MAX) {
        return size ? -ENOMEM : -EINVAL;
    }
    const uint64_t span = round_up(size, PAGE);
    if (ftruncate(fd, (off_t) (offset + span))) {
        return -ENOMEM;
    }
    struct bo *bo = calloc(1, sizeof(*bo));
    if (!bo) {
        return -ENOMEM;
    }
    *bo = (struct bo){.space = space, .refs = 1, .size = size, .offset = offset};
    bo->limit = settings.strict ? round_up(size, 16) : span;
    int error = map_both(bo, fd, cacheable);
    if (!error) {
        pthread_rwlock_wrlock(&space->lock);
        error = space_insert(space, bo);
        pthread_rwlock_unlock(&space->lock);
        if (error) {
            unmap(bo);
        }
    }
    if (error) {
        free(bo);
        return error;
    }
    if (bo->device != bo->cpu) {
        memset(bo->device, zero ? 0 : DEVICE_PATTERN, span);
    }
    if (!zero) {
        memset(bo->cpu, CPU_PATTERN, span);
    }
    *made = bo;
    return 0;
}

void bo_put(struct bo *bo)
{
    struct space *space = bo->space;
    if (--bo->refs) {
        return;
    }
    pthread_rwlock_wrlock(&space->lock); /* waits for a task that may be reading it */
    size_t place = 0;
    while (space->bos[place] != bo) {
        place++;
    }
    space->count--;
    memmove(space->bos + place, space->bos + place + 1,
            (space->count - place) * sizeof(*space->bos));
    unmap(bo);
    pthread_rwlock_unlock(&space->lock);
    free(bo);
}

void bo_sync(struct bo *bo, uint64_t offset, uint64_t size, bool to_device)
{
    if (bo->device == bo->cpu || offset >= bo->size) {
        return;
    }
    size = size < bo->size - offset ? size : bo->size - offset;
    if (to_device) {
        memcpy(bo->device + offset, bo->cpu + offset, size);
    } else {
        memcpy(bo->cpu + offset, bo->device + offset, size);
    }
}

struct bo *space_find(const struct space *space, uint64_t iova)
{
    size_t low = 0, high = space->count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (space->bos[middle]->iova <= iova) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (!low || iova >= space->bos[low - 1]->iova + space->bos[low - 1]->limit) {
        return NULL;
    }
    return space->bos[low - 1];
}
