/*
 * The address generator of the DPU and the PPU for the output of a task.
 */
#include "npu.h"

#include <string.h>

struct dimension {
    uint64_t stride;
    uint32_t count;
};

/* Returns whether each stride is at least the extent of the dimensions with smaller strides, so
 * that no atom is written twice. */
static bool nests(struct dimension *d, int count)
{
    uint64_t extent = ATOM;
    for (int i = 1; i < count; i++) {
        for (int j = i; j > 0 && d[j].stride < d[j - 1].stride; j--) {
            const struct dimension swap = d[j];
            d[j] = d[j - 1];
            d[j - 1] = swap;
        }
    }
    for (int i = 0; i < count; i++) {
        if (d[i].count > 1 && d[i].stride < extent) {
            return false;
        }
        extent += d[i].stride * (d[i].count - 1);
    }
    return true;
}

bool apart(struct run *run, const uint8_t *bytes, uint64_t size, const char *what)
{
    return bytes + size <= run->out || run->out + run->out_size <= bytes ||
           refuse(run->why, "output overlaps the %s", what);
}

bool writer_open(struct run *run, uint32_t address, struct writer *w)
{
    struct dimension d[] = {{w->row, w->rows},
                            {w->column, w->columns},
                            {w->surface, w->surfaces},
                            {w->group, w->groups}};
    w->size = ATOM;
    for (int i = 0; i < 4; i++) {
        w->size += d[i].stride * (d[i].count - 1);
    }
    w->bytes = dma(run, address, w->size, "output");
    if (!w->bytes) {
        return false;
    }
    if (!nests(d, 4)) {
        return refuse(run->why, "output at %#x: surfaces overlap", address);
    }
    run->out = w->bytes;
    run->out_size = w->size;
    return dma_may_write(run, address);
}

void writer_store(const struct writer *w, uint32_t pixel, uint32_t group, const uint8_t *from)
{
    uint8_t *to =
        w->bytes + pixel / w->columns * w->row + pixel % w->columns * w->column + group * w->group;
    for (uint32_t s = 0; s < w->surfaces; s++) {
        memcpy(to + s * w->surface, from + s * ATOM, ATOM);
    }
}
