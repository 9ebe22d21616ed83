/*
 * FastRPC's driver and the dma-heap for one program: a program that preloads this library, and the
 * real libcdsprpc in it, find /dev/fastrpc-cdsp and /dev/dma_heap/system.
 *
 * The library above the driver is the unchanged libcdsprpc of boards.  The DSP below the driver is
 * npurt's simulator: each open file of the device with a process has a session of the simulator, in
 * which a board's skel runs under qemu-hexagon.  This code implements the driver and the modules
 * that every DSP process has; dma-bufs are memfds.  NPURT_KERNEL_LOG=1 logs the requests to stderr,
 * NPURT_KERNEL_COUNTS names a file for their counts, NPURT_KERNEL_READS a file that the DSP reads
 * from the program, and NPURT_SIM_FASTRPC holds the simulator's settings.
 */
#define _GNU_SOURCE
#include "kernel.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define REMOTEPROC "/sys/class/remoteproc/remoteproc0/name"

enum { FILES = 4096 };

pthread_mutex_t kernel_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t kernel_changed = PTHREAD_COND_INITIALIZER;

static enum { OTHER, DEVICE, HEAP } kinds[FILES];
static int (*real_ioctl)(int, unsigned long, void *);
static int (*real_open)(const char *, int, ...);
static int (*real_close)(int);
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool verbose;
static pid_t owner; /* it opened the nodes; a child of vfork() shares this memory and closes them */

int fail(int error)
{
    errno = error;
    return -1;
}

void say(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    if (verbose) {
        fputs("fastrpc_kernel: ", stderr);
        vfprintf(stderr, format, values);
        fputc('\n', stderr);
    }
    va_end(values);
}

static void load(void)
{
    void *functions[] = {dlsym(RTLD_NEXT, "ioctl"), dlsym(RTLD_NEXT, "open"),
                         dlsym(RTLD_NEXT, "close")};
    memcpy(&real_ioctl, &functions[0], sizeof(real_ioctl));
    memcpy(&real_open, &functions[1], sizeof(real_open));
    memcpy(&real_close, &functions[2], sizeof(real_close));
    verbose = getenv("NPURT_KERNEL_LOG") != NULL;
    dsp_load();
    atexit(count_tell);
}

static void begin(void)
{
    pthread_once(&once, load);
}

/* --- files ----------------------------------------------------------------------------------- */

static int new_file(const char *name, int kind)
{
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd >= FILES) {
        real_close(fd);
        return fail(EMFILE);
    }
    if (fd >= 0 && kind != OTHER) {
        kinds[fd] = kind;
        owner = getpid();
    }
    return fd;
}

static int open_path(const char *path, int flags, mode_t mode)
{
    begin();
    if (faccessat(AT_FDCWD, path, F_OK, 0) && errno == EFAULT) {
        return -1; /* libcdsprpc opens NULL for domains without a name */
    }
    if (strcmp(path, "/dev/fastrpc-cdsp") == 0) {
        return dsp_present() ? new_file("fastrpc-cdsp", DEVICE) : fail(ENOENT);
    }
    if (strcmp(path, "/dev/dma_heap/system") == 0) {
        return new_file("dma-heap", HEAP);
    }
    if (strcmp(path, REMOTEPROC) == 0) {
        int fd = new_file("name", OTHER);
        bool good = fd >= 0 && write(fd, "cdsp\n", 5) == 5 && lseek(fd, 0, SEEK_SET) == 0;
        return good ? fd : -1;
    }
    return real_open(path, flags, mode);
}

/* Read the mode argument, which follows the flags if they create a file. */
#define MODE(flags, last, mode)                                                                    \
    va_list more;                                                                                  \
    va_start(more, last);                                                                          \
    mode_t mode = (flags) & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                      \
    va_end(more)

EXPORT int open(const char *path, int flags, ...)
{
    MODE(flags, flags, mode);
    return open_path(path, flags, mode);
}

EXPORT int open64(const char *path, int flags, ...)
{
    MODE(flags, flags, mode);
    return open_path(path, flags, mode);
}

EXPORT int __open_2(const char *path, int flags)
{
    return open_path(path, flags, 0);
}

EXPORT int __open64_2(const char *path, int flags)
{
    return open_path(path, flags, 0);
}

EXPORT int close(int fd)
{
    begin();
    if (fd >= 0 && fd < FILES && kinds[fd] != OTHER && getpid() == owner) {
        process *p = process_of(fd);
        if (p) {
            process_end(p);
        }
        kinds[fd] = OTHER;
    }
    return real_close(fd);
}

/* --- requests -------------------------------------------------------------------------------- */

/* Count a DMA_BUF_IOCTL_SYNC request, which copies nothing: CPU and DSP share the memory here. */
static int synchronise(int fd, unsigned long request, void *data)
{
    struct stat about;
    if (fstat(fd, &about) || !S_ISREG(about.st_mode)) {
        return real_ioctl(fd, request, data);
    }
    count_sync((uint64_t) about.st_size);
    return 0;
}

static int ask_heap(heap_allocation *asked)
{
    int fd = memory_allocate(asked->bytes);
    asked->fd = (uint32_t) fd;
    return fd < 0 ? -1 : 0;
}

static int ask_device(int fd, unsigned long request, void *data)
{
    process *p = process_of(fd);
    driver_dma *dma = data;
    driver_info *info = data;
    switch (_IOC_NR(request)) {
    case FASTRPC_ALLOC_DMA:
        dma->fd = memory_allocate(dma->bytes);
        return dma->fd < 0 ? -1 : 0;
    case FASTRPC_INVOKE:
        return p ? process_call(p, data) : fail(EINVAL);
    case FASTRPC_ATTACH: /* to the DSP's own process, in whose place a session is started */
        return process_create(fd, &(driver_create){.attributes = CREATE_UNSIGNED});
    case FASTRPC_CREATE:
        return process_create(fd, data);
    case FASTRPC_MEM_MAP:
        return p ? memory_map(p, data) : fail(EINVAL);
    case FASTRPC_MEM_UNMAP:
        return p ? memory_unmap(p, data) : fail(EINVAL);
    case FASTRPC_MMAP: /* pages for the heap: refused for an unsigned process */
        return fail(((driver_mmap *) data)->flags == MMAP_ADD_PAGES ? ENOMEM : EINVAL);
    case FASTRPC_MUNMAP:
        return fail(EINVAL);
    case FASTRPC_DSP_INFO:
        return info->attribute < DSP_ATTRIBUTES ? dsp_info(info->attribute, &info->value)
                                                : fail(EOVERFLOW);
    default:
        return fail(ENOTTY);
    }
}

EXPORT int ioctl(int fd, unsigned long request, ...)
{
    va_list more;
    va_start(more, request);
    void *data = va_arg(more, void *);
    va_end(more);
    begin();
    if (_IOC_TYPE(request) == 'b' && _IOC_NR(request) == 0) {
        return synchronise(fd, request, data);
    }
    if (fd < 0 || fd >= FILES || kinds[fd] == OTHER) {
        return real_ioctl(fd, request, data);
    }
    return kinds[fd] == HEAP ? ask_heap(data) : ask_device(fd, request, data);
}
