/* A table of shared memory blocks, with linear search. */
#include "maps.h"
#include "hap.h"

static int find(const maps *maps, int32_t fd)
{
    for (int i = 0; i < MAPS_MAX; i++) {
        if (maps->row[i].nbytes && maps->row[i].fd == fd) {
            return i;
        }
    }
    return -1;
}

int maps_add(maps *maps, int32_t fd, uint32_t nbytes)
{
    if (fd < 0 || nbytes == 0 || nbytes > INT32_MAX) {
        return DSP_E_BAD_PARM;
    }
    if (find(maps, fd) >= 0) {
        return DSP_E_ALREADY;
    }
    int free_row = 0;
    while (free_row < MAPS_MAX && maps->row[free_row].nbytes) {
        free_row++;
    }
    if (free_row == MAPS_MAX) {
        return DSP_E_OUT_OF_HANDLES;
    }
    void *address = HAP_mmap(NULL, (int) nbytes, HAP_PROT_READ | HAP_PROT_WRITE, 0, fd, 0);
    if (address == NULL || address == (void *) -1) {
        return DSP_E_MMAP;
    }
    maps->row[free_row].fd = fd;
    maps->row[free_row].nbytes = nbytes;
    maps->row[free_row].address = address;
    return DSP_OK;
}

static int release(maps *maps, int i)
{
    int result = HAP_munmap(maps->row[i].address, (int) maps->row[i].nbytes);
    maps->row[i].nbytes = 0;
    return result;
}

int maps_remove(maps *maps, int32_t fd)
{
    int i = find(maps, fd);
    return i < 0 ? DSP_E_NO_SUCH_MAP : release(maps, i);
}

/* The results of HAP_munmap are not used: the session ends, and the process's end unmaps all. */
void maps_clear(maps *maps)
{
    for (int i = 0; i < MAPS_MAX; i++) {
        if (maps->row[i].nbytes) {
            release(maps, i);
        }
    }
}

void *maps_find(const maps *maps, int32_t fd, uint32_t offset, uint64_t nbytes)
{
    int i = find(maps, fd);
    if (i < 0 || offset > maps->row[i].nbytes || nbytes > maps->row[i].nbytes - offset) {
        return NULL;
    }
    return maps->row[i].address + offset;
}
