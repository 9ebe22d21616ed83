/*
 * Thread-local variables of modules.  Each thread has a block for each module, which is made when
 * the thread first uses it.
 *
 * Source: Drepper, "ELF Handling For Thread-Local Storage", the general dynamic model; the names of
 * Hexagon's relocations are in LLVM's ELFRelocs/Hexagon.def.
 */
#include "libc.h"

static void *blocks[LINK_THREADS][MODULES];

void *tls_address(const tls_index *index)
{
    tls_image image;
    if (!module_tls(index->module, &image) || index->offset >= image.bytes) {
        die("__tls_get_addr: module %u has no byte %u", (unsigned) index->module,
            (unsigned) index->offset);
    }
    void **block = &blocks[thread_slot()][index->module - 1];
    if (!*block) {
        *block = memalign(image.alignment < 16 ? 16 : image.alignment, image.bytes);
        if (!*block) {
            die("no memory for thread-local variables");
        }
        memcpy(*block, image.start, image.file_bytes);
        memset((char *) *block + image.file_bytes, 0, image.bytes - image.file_bytes);
    }
    return (char *) *block + index->offset;
}

static void drop(void **block)
{
    free(*block);
    *block = NULL;
}

void tls_thread_ends(uint32_t slot)
{
    for (uint32_t i = 0; i < MODULES; i++) {
        drop(&blocks[slot][i]);
    }
}

void tls_module_ends(uint32_t module)
{
    for (uint32_t i = 0; i < LINK_THREADS; i++) {
        drop(&blocks[i][module - 1]);
    }
}
