/*
 * Reads and writes a caller's memory as the kernel does: a bad pointer gives -EFAULT, not a crash.
 *
 * process_vm_readv on the calling process needs no privilege.  If process_vm_readv is missing (some
 * emulators, old seccomp filters), the bytes go through a pipe, because write(2) and read(2) check
 * addresses too.
 */
#include "driver.h"

#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PIPE_CHUNK = 4096 }; /* fits an empty pipe, so that neither end waits */

void close_descriptor(int fd)
{
    syscall(SYS_close, fd);
}

static int through_pipe(uint64_t to, uint64_t from, size_t size)
{
    int ends[2], error = 0;
    if (pipe(ends)) {
        return -errno;
    }
    while (size && !error) {
        const size_t part = size < PIPE_CHUNK ? size : PIPE_CHUNK;
        if (write(ends[1], (const void *) (uintptr_t) from, part) != (ssize_t) part ||
            read(ends[0], (void *) (uintptr_t) to, part) != (ssize_t) part) {
            error = -EFAULT;
        }
        from += part;
        to += part;
        size -= part;
    }
    close_descriptor(ends[0]);
    close_descriptor(ends[1]);
    return error;
}

static int copy(uint64_t to, uint64_t from, size_t size, bool reading)
{
    if (!size) {
        return 0;
    }
    const struct iovec ours = {(void *) (uintptr_t) (reading ? to : from), size};
    const struct iovec theirs = {(void *) (uintptr_t) (reading ? from : to), size};
    const ssize_t done = reading ? process_vm_readv(getpid(), &ours, 1, &theirs, 1, 0)
                                 : process_vm_writev(getpid(), &ours, 1, &theirs, 1, 0);
    if (done == (ssize_t) size) {
        return 0;
    }
    if (done < 0 && (errno == ENOSYS || errno == EPERM)) {
        return through_pipe(to, from, size);
    }
    return -EFAULT;
}

int user_read(void *to, uint64_t from, size_t size)
{
    return copy((uintptr_t) to, from, size, true);
}

int user_write(uint64_t to, const void *from, size_t size)
{
    return copy(to, (uintptr_t) from, size, false);
}

int user_read_array(void *to, uint64_t from, uint32_t count, uint32_t stride, size_t size)
{
    if (stride == size) {
        return user_read(to, from, count * size);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (user_read((char *) to + i * size, from + (uint64_t) i * stride, size)) {
            return -EFAULT;
        }
    }
    return 0;
}
