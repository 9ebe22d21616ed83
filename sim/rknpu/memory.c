/*
 * Buffers, their IOVA spaces, and their cache maintenance.
 *
 * A buffer consists of shared pages.  The caller maps the same pages; this mapping stays valid
 * after the buffer is destroyed.  With coherent=0 the NPU uses a second copy, and only the driver's
 * maintenance calls copy bytes between the two.
 *
 * New buffers of rknpu, and of rocket with guard=1, are filled with a pattern, which reveals reads
 * of unwritten bytes, and an unmapped page separates two such buffers.
 */
#include "driver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CPU_PATTERN = 0xA5, DEVICE_PATTERN = 0x5A };

/* Calls the kernel's mmap, because this library exports its replacement of mmap. */
static void *map(void *at, uint64_t size, int access, int flags, int file)
{
    return (void *) syscall(SYS_mmap, at, size, access, flags, file, 0L);
}

static uint8_t *pages(uint64_t size, int file)
{
    const int access = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_NORESERVE;
    void *at =
        map(NULL, round_up(size, PAGE), access, flags | (file < 0 ? MAP_ANONYMOUS : 0), file);
    return at == MAP_FAILED ? NULL : at;
}

/* Maps pages a second time: mremap() with an old length of 0 does so without a file. */
static void *map_again(void *old, void *at, size_t size, bool fixed)
{
    return mremap(old, 0, size, MREMAP_MAYMOVE | (fixed ? MREMAP_FIXED : 0), at);
}

/* Returns a file for the pages of a buffer if map_again() does not work, else -1.  The mremap() of
 * map_again() fails in qemu-aarch64, the emulator of user programs. */
static int file_of(uint64_t size)
{
    uint8_t *probe = pages(PAGE, -1);
    void *again = probe ? map_again(probe, NULL, PAGE, false) : MAP_FAILED;
    munmap(probe, PAGE);
    if (again != MAP_FAILED) {
        munmap(again, PAGE);
        return -1;
    }
    const int file = memfd_create("rknpu-sim", MFD_CLOEXEC);
    return file >= 0 && ftruncate(file, (off_t) round_up(size, PAGE)) ? -1 : file;
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

static uint64_t all_bytes; /* size of all buffers of all spaces, in whole pages */

/* Returns an error if `size` more bytes exceed the memory of all buffers or of one address space.
 * */
static int refuse_more(const struct space *space, uint64_t size)
{
    if (settings.memory && all_bytes + size > settings.memory) {
        return -ENOMEM;
    }
    if (settings.space && space->bytes + size > settings.space) {
        return space->top_down ? -ENOMEM : -ENOSPC; /* iommu_dma_alloc_iova, drm_mm */
    }
    return 0;
}

/* Finds a free range of `size` bytes, with a free page on both sides if buffers have guards, and
 * its index in the table. rknpu takes the highest range, rocket the smallest (DRM_MM_INSERT_BEST).
 * */
static bool find_gap(const struct space *space, uint64_t size, size_t *place, uint64_t *iova)
{
    const uint64_t guard = space->top_down || settings.guard ? PAGE : 0;
    uint64_t smallest = UINT64_MAX;
    for (size_t gap = 0; gap <= space->count; gap++) { /* the gap below bos[gap] */
        uint64_t from = space->low, to = space->high;
        if (gap > 0) {
            const struct bo *below = space->bos[gap - 1];
            from = below->iova + round_up(below->size, PAGE) + guard;
        }
        if (gap < space->count) {
            const uint64_t above = space->bos[gap]->iova;
            to = above > guard ? above - guard : 0;
        }
        if (from <= to && to - from >= size && (space->top_down || to - from < smallest)) {
            smallest = to - from;
            *place = gap;
            *iova = space->top_down ? to - size : from;
        }
    }
    return smallest < UINT64_MAX;
}

static int space_insert(struct space *space, struct bo *bo)
{
    size_t place;
    const uint64_t span = round_up(bo->size, PAGE);
    const int refused = refuse_more(space, span);
    if (refused) {
        return refused;
    }
    if (space->count == space->capacity) {
        const size_t capacity = space->capacity ? 2 * space->capacity : 64;
        struct bo **bos = realloc(space->bos, capacity * sizeof(*bos));
        if (!bos) {
            return -ENOMEM;
        }
        space->bos = bos;
        space->capacity = capacity;
    }
    if (!find_gap(space, span, &place, &bo->iova)) {
        return space->top_down ? -ENOMEM : -ENOSPC; /* iommu_dma_alloc_iova, drm_mm */
    }
    memmove(space->bos + place + 1, space->bos + place,
            (space->count - place) * sizeof(*space->bos));
    space->bos[place] = bo;
    space->count++;
    space->bytes += span;
    all_bytes += span;
    return 0;
}

static void unmap(struct bo *bo)
{
    const size_t span = round_up(bo->size, PAGE);
    if (bo->device && bo->device != bo->cpu) {
        munmap(bo->device, span);
    }
    if (bo->cpu) {
        munmap(bo->cpu, span);
    }
    if (bo->file >= 0) {
        syscall(SYS_close, bo->file);
    }
    free(bo);
}

void *bo_map(const struct bo *bo, void *at, size_t size, int access, bool fixed)
{
    void *made = bo->file < 0 ? map_again(bo->cpu, at, size, fixed)
                              : map(at, size, PROT_READ | PROT_WRITE,
                                    MAP_SHARED | (fixed ? MAP_FIXED : 0), bo->file);
    if (made != MAP_FAILED && access != (PROT_READ | PROT_WRITE)) {
        mprotect(made, size, access);
    }
    return made;
}

int bo_create(struct space *space, uint64_t offset, uint64_t size, bool cacheable, bool zero,
              struct bo **made)
{
    if (size > UINT32_MAX) {
        return -ENOMEM;
    }
    struct bo *bo = calloc(1, sizeof(*bo));
    if (!bo) {
        return -ENOMEM;
    }
    *bo = (struct bo){.space = space, .refs = 1, .size = size, .offset = offset};
    bo->limit = round_up(size, settings.strict ? 16 : PAGE);
    bo->file = file_of(size);
    bo->cpu = pages(size, bo->file);
    bo->device = cacheable && !settings.coherent ? pages(size, -1) : bo->cpu;
    int error = bo->cpu && bo->device ? 0 : -ENOMEM;
    if (!error) {
        pthread_rwlock_wrlock(&space->lock);
        error = space_insert(space, bo);
        pthread_rwlock_unlock(&space->lock);
    }
    if (error) {
        unmap(bo);
        return error;
    }
    if (!zero) {
        memset(bo->device, DEVICE_PATTERN, round_up(size, PAGE));
        memset(bo->cpu, CPU_PATTERN, round_up(size, PAGE));
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
    pthread_rwlock_wrlock(&space->lock); /* waits for a task that may use the buffer */
    size_t place = 0;
    while (space->bos[place] != bo) {
        place++;
    }
    space->count--;
    space->bytes -= round_up(bo->size, PAGE);
    all_bytes -= round_up(bo->size, PAGE);
    memmove(space->bos + place, space->bos + place + 1,
            (space->count - place) * sizeof(*space->bos));
    pthread_rwlock_unlock(&space->lock);
    unmap(bo);
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
