/* Memory that CPU and DSP share: memfds in place of dma-bufs, and their mappings on the DSP. */
#define _GNU_SOURCE
#include "kernel.h"
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096 };
#define MOST_BYTES ((uint64_t) 1 << 40)

int memory_allocate(uint64_t bytes)
{
    if (bytes == 0 || bytes >= MOST_BYTES) {
        return fail(bytes ? ENOMEM : EINVAL);
    }
    int fd = memfd_create("dma-buf", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t) ((bytes + PAGE - 1) / PAGE * PAGE))) {
        close(fd);
        return fail(ENOMEM);
    }
    return fd;
}

static mapped *find(process *p, bool used, int fd)
{
    for (int i = 0; i < MAPS; i++) {
        if (p->maps[i].used == used && (!used || p->maps[i].fd == fd)) {
            return &p->maps[i];
        }
    }
    return NULL;
}

int memory_map(process *p, driver_map *asked)
{
    struct stat about;
    if (fstat(asked->fd, &about) || !S_ISREG(about.st_mode)) {
        return fail(EINVAL); /* dma_buf_get() refuses a file that is not a dma-buf */
    }
    mapped *m = find(p, false, 0);
    if (!m) {
        return fail(ENOMEM);
    }
    int code = dsp.map(p->domain, asked->fd, NULL, 0, asked->bytes, asked->flags);
    say("map fd %d, %llu bytes, flags %u: %#x", asked->fd, (unsigned long long) asked->bytes,
        asked->flags, (unsigned) code);
    if (code) {
        return fail(EIO);
    }
    count_map(asked->bytes);
    *m = (mapped){true, asked->fd};
    asked->out = 0xe0000000u + (uint64_t) (m - p->maps) * 0x100000;
    return 0;
}

int memory_unmap(process *p, const driver_unmap *asked)
{
    mapped *m = find(p, true, asked->fd);
    if (!m) {
        return fail(EINVAL);
    }
    m->used = false;
    return dsp.unmap(p->domain, asked->fd, NULL, asked->bytes) ? fail(EIO) : 0;
}
