/*
 * Simulated caches of the host: DMA_BUF_IOCTL_SYNC for rpcmem.
 *
 * On a board rpcmem is a dma-buf.  Here it is a memfd, for which the kernel has no
 * DMA_BUF_IOCTL_SYNC, so the library exports ioctl().  A program that looks up ioctl in the library
 * of rpcmem_alloc finds this function; on a board it finds libc's, because libcdsprpc exports no
 * ioctl.
 *
 * With `coherent=0` a block has two memories, the host's and the DSP's.  A request copies the whole
 * block between them, as the kernel does with bounce buffers (kernel/dma/swiotlb.c): START with
 * READ copies to the host, END with WRITE copies to the DSP. START with WRITE alone and END with
 * READ alone copy nothing. fastrpc_mmap copies to the DSP and fastrpc_munmap to the host, as
 * mapping and unmapping an attachment do (drivers/dma-buf/heaps/system_heap.c).
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

/* DMA_BUF_IOCTL_SYNC requests and their bytes; guarded by sim_lock. */
static uint64_t calls, bytes_asked;

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

/* Return the offset of the first written page at or after *at*, or *bytes* if there is none. */
static off_t next_data(int fd, off_t at, off_t bytes)
{
    off_t data = lseek(fd, at, SEEK_DATA);
    return data < 0 ? bytes : data;
}

/* Copy a whole memfd; its unwritten pages become holes in the target. */
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

/* Serve a DMA_BUF_IOCTL_SYNC request, with sim_lock held; return 0 or an errno. */
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
