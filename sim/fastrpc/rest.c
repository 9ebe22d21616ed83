/* What libcdsprpc exports and a runtime for unsigned PDs does not need: refused, or nothing to do. */
#include "sim.h"
#include <stdarg.h>
#include <stdio.h>

/* Handles of 32 bits are deprecated: they have no domain. */
int remote_handle_open(const char *name, uint32_t *handle)
{
    (void) name;
    (void) handle;
    report("remote_handle_open is not simulated: use remote_handle64_open");
    return AEE_EUNSUPPORTED;
}

int remote_handle_invoke(uint32_t handle, uint32_t scalars, remote_arg *arguments)
{
    (void) handle;
    (void) scalars;
    (void) arguments;
    return AEE_EUNSUPPORTED;
}

int remote_handle_close(uint32_t handle)
{
    (void) handle;
    return AEE_EUNSUPPORTED;
}

int remote_set_mode(uint32_t mode)
{
    (void) mode;
    return AEE_SUCCESS;
}

/* Growing the heap of a PD: not for unsigned ones. */
int remote_mmap64(int fd, uint32_t flags, uint64_t address, int64_t bytes, uint64_t *mapped)
{
    (void) fd;
    (void) flags;
    (void) address;
    (void) bytes;
    (void) mapped;
    return AEE_EUNSUPPORTED;
}

int remote_mmap(int fd, uint32_t flags, uint32_t address, int bytes, uint32_t *mapped)
{
    (void) mapped;
    return remote_mmap64(fd, flags, address, bytes, NULL);
}

int remote_munmap64(uint64_t mapped, int64_t bytes)
{
    (void) mapped;
    (void) bytes;
    return AEE_ENOSUCHMAP;
}

int remote_munmap(uint32_t mapped, int bytes)
{
    return remote_munmap64(mapped, bytes);
}

int remote_mem_map(int domain, int fd, int flags, uint64_t address, size_t bytes, uint64_t *mapped)
{
    (void) domain;
    return remote_mmap64(fd, (uint32_t) flags, address, (int64_t) bytes, mapped);
}

int remote_mem_unmap(int domain, uint64_t mapped, size_t bytes)
{
    (void) domain;
    return remote_munmap64(mapped, (int64_t) bytes);
}

int fastrpc_async_get_status(uint64_t job, int timeout_us, int *result)
{
    (void) job;
    (void) timeout_us;
    (void) result;
    return AEE_EUNSUPPORTED;
}

int fastrpc_release_async_job(uint64_t job)
{
    (void) job;
    return AEE_EUNSUPPORTED;
}

/* --- messages of programs that use FARF on this side ------------------------------------------- */

static void message(int level, const char *file, int line, const char *format, va_list values)
{
    char text[256]; /* MAX_FARF_LEN */
    vsnprintf(text, sizeof(text), format, values);
    fprintf(stderr, "[%d] %s:%d: %s\n", level, file, line, text);
}

void HAP_debug_v2(int level, const char *file, int line, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    message(level, file, line, format, values);
    va_end(values);
}

void HAP_debug_runtime(int level, const char *file, int line, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    message(level, file, line, format, values);
    va_end(values);
}
