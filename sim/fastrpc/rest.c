/* Exports of libcdsprpc that programs for unsigned PDs do not need.  The remote_* and fastrpc_*
 * calls do nothing or return AEE_EUNSUPPORTED. */
#include "sim.h"
#include <stdarg.h>
#include <stdio.h>

int remote_set_mode(uint32_t mode)
{
    (void) mode;
    return AEE_SUCCESS;
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

/* --- FARF messages of host programs ---------------------------------------------------------- */

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
