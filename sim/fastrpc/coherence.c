/*
 * Caches of the host: DMA_BUF_IOCTL_SYNC for rpcmem.
 *
 * rpcmem is a dma-buf on a board, and a memfd here, for which the kernel has no such request.  So the
 * library exports ioctl().  A program that takes ioctl from the library of rpcmem_alloc gets this one
 * here, and libc's on a board, where libcdsprpc has none.
 *
 * With `coherent=0` a block has two memories, the host's view and the DSP's, and a request copies
 * all of the block from one to the other, as the kernel does where it has to bounce: START with READ
 * to the host, END with WRITE to the DSP (kernel/dma/swiotlb.c).  The other two, START with WRITE
 * alone and END with READ alone, copy nothing.  fastrpc_mmap and fastrpc_munmap synchronise too,
 * as mapping and unmapping an attachment does (drivers/dma-buf/heaps/system_heap.c).
 */
#define _GNU_SOURCE
#include "sim.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/dma-buf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t calls, bytes_asked; /* of DMA_BUF_IOCTL_SYNC; sim_lock held */

/* --- copying --------------------------------------------------------------------------------- */

void block_to_dsp(const block *b, size_t offset, size_t bytes)
{
    if (b->memory != b->at) {
        memcpy(b->memory + offset, b->at + offset, bytes);
    }
}

void block_to_host(const block *b, size_t offset, size_t bytes)
{
    if (b->memory != b->at) {
        memcpy(b->at + offset, b->memory + offset, bytes);
    }
}

/* The offset of the next page that was ever written, of *bytes* bytes. */
static off_t next_data(int fd, off_t at, off_t bytes)
{
    off_t data = lseek(fd, at, SEEK_DATA);
    return data < 0 ? bytes : data;
}

/* Copy a whole memfd, without touching its unwritten pages. */
static void copy_whole(int to_fd, uint8_t *to, int from_fd, const uint8_t *from, size_t bytes)
{
    off_t end = (off_t) bytes;
    for (off_t at = 0, data, hole; at < end; at = hole) {
        data = next_data(from_fd, at, end);
        if (data > at) {
            fallocate(to_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, data - at);
        }
        hole = data < end ? lseek(from_fd, data, SEEK_HOLE) : end;
        memcpy(to + data, from + data, (size_t) (hole - data));
    }
}

void block_all_to_dsp(const block *b)
{
    if (b->memory != b->at) {
        copy_whole(b->memory_fd, b->memory, b->fd, b->at, b->bytes);
    }
}

void block_all_to_host(const block *b)
{
    if (b->memory != b->at) {
        copy_whole(b->fd, b->at, b->memory_fd, b->memory, b->bytes);
    }
}

/* --- the request ----------------------------------------------------------------------------- */

/* Carry out the request, with sim_lock held; return 0 or an errno. */
static int synchronise(const block *b, const struct dma_buf_sync *request)
{
    uint64_t access = request->flags & DMA_BUF_SYNC_RW;
    if (request->flags & ~(uint64_t) DMA_BUF_SYNC_VALID_FLAGS_MASK || !access) {
        return EINVAL;
    }
    calls++;
    bytes_asked += b->bytes;
    if (request->flags & DMA_BUF_SYNC_END && access & DMA_BUF_SYNC_WRITE) {
        block_all_to_dsp(b);
    } else if (!(request->flags & DMA_BUF_SYNC_END) && access & DMA_BUF_SYNC_READ) {
        block_all_to_host(b);
    }
    return 0;
}

int ioctl(int fd, unsigned long request, ...)
{
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    pthread_mutex_lock(&sim_lock);
    const block *b = request == DMA_BUF_IOCTL_SYNC ? block_of_fd(fd) : NULL;
    bool ours = b && b->ours;
    int error = !ours ? 0 : argument ? synchronise(b, argument) : EFAULT;
    pthread_mutex_unlock(&sim_lock);
    if (!ours) {
        return (int) syscall(SYS_ioctl, fd, request, argument);
    }
    errno = error ? error : errno;
    return error ? -1 : 0;
}

uint64_t npurt_sim_syncs(uint64_t *bytes)
{
    pthread_mutex_lock(&sim_lock);
    uint64_t count = calls;
    *bytes = bytes_asked;
    pthread_mutex_unlock(&sim_lock);
    return count;
}
