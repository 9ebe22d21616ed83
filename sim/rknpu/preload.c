/*
 * The functions of the C library through which a program uses a driver.
 *
 * Each function calls the simulator for simulated paths and descriptors, otherwise the next
 * library.  The declarations are written here, because the headers have conflicting inline forms.
 */
#include "driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>

/* The function of that name in the next library, found at the first call; two threads may both find
 * it. */
#define NEXT(name) ((__typeof__(&name)) next((void **) &next_##name, #name))

static void *next(void **cache, const char *name)
{
    if (!*cache) {
        *cache = dlsym(RTLD_NEXT, name);
    }
    return *cache;
}

static int result_of(int value)
{
    if (value >= 0) {
        return value;
    }
    errno = -value;
    return -1;
}

/* --- open ------------------------------------------------------------------------------------- */

#define MODE_OF(flags, mode)                                                                       \
    unsigned mode = 0;                                                                             \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                       \
        va_list arguments;                                                                         \
        va_start(arguments, flags);                                                                \
        mode = va_arg(arguments, unsigned);                                                        \
        va_end(arguments);                                                                         \
    }

static int simulated_open(const char *path, int flags)
{
    const int fd = path ? device_open(path, flags) : NOT_OURS;
    return path && fd == NOT_OURS ? nodes_open(path, flags) : fd;
}

#define OPEN(name)                                                                                 \
    static void *next_##name;                                                                      \
    SIM_API int name(const char *path, int flags, ...)                                             \
    {                                                                                              \
        MODE_OF(flags, mode)                                                                       \
        const int fd = simulated_open(path, flags);                                                \
        return fd == NOT_OURS ? NEXT(name)(path, flags, mode) : result_of(fd);                     \
    }

#define OPENAT(name)                                                                               \
    static void *next_##name;                                                                      \
    SIM_API int name(int folder, const char *path, int flags, ...)                                 \
    {                                                                                              \
        MODE_OF(flags, mode)                                                                       \
        const int fd = simulated_open(path, flags);                                                \
        return fd == NOT_OURS ? NEXT(name)(folder, path, flags, mode) : result_of(fd);             \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

/* The functions that programs compiled with _FORTIFY_SOURCE call. */
#define OPEN_2(name)                                                                               \
    SIM_API int name(const char *path, int flags);                                                 \
    static void *next_##name;                                                                      \
    SIM_API int name(const char *path, int flags)                                                  \
    {                                                                                              \
        const int fd = simulated_open(path, flags);                                                \
        return fd == NOT_OURS ? NEXT(name)(path, flags) : result_of(fd);                           \
    }

OPEN_2(__open_2)
OPEN_2(__open64_2)

/* --- close, ioctl, mmap
 * --------------------------------------------------------------------------------- */

SIM_API int close(int fd);
static void *next_close;
SIM_API int close(int fd)
{
    const uint64_t id = device_id(fd);
    const int result = NEXT(close)(fd);
    if (id && !result) {
        device_closed(id);
    }
    return result;
}

SIM_API int ioctl(int fd, unsigned long request, ...);
static void *next_ioctl;
SIM_API int ioctl(int fd, unsigned long request, ...)
{
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    const int result = device_ioctl(fd, (uint32_t) request, (uintptr_t) argument);
    return result == NOT_OURS ? NEXT(ioctl)(fd, request, argument) : result_of(result);
}

#define MMAP(name, offset_type)                                                                    \
    static void *next_##name;                                                                      \
    SIM_API void *name(void *at, size_t size, int access, int flags, int fd, offset_type offset)   \
    {                                                                                              \
        void *made = MAP_FAILED;                                                                   \
        const int result = flags & MAP_ANONYMOUS ? NOT_OURS                                        \
                                                 : device_mmap(fd, at, size, access, flags,        \
                                                               (uint64_t) offset, &made);          \
        if (result == NOT_OURS) {                                                                  \
            return NEXT(name)(at, size, access, flags, fd, offset);                                \
        }                                                                                          \
        errno = result ? -result : errno;                                                          \
        return made;                                                                               \
    }

MMAP(mmap, off_t)
MMAP(mmap64, off64_t)
