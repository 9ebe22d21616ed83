/* Services without state: messages, power votes, time and the vector units. */
#include "hap.h"

enum { QTIMER_HZ = 19200000, REFUSED = (int) 0x80000414, MODE_128 = 1 };

/* --- messages -------------------------------------------------------------------------------- */

static void message(int level, const char *file, int line, const char *format, va_list values)
{
    char text[256]; /* MAX_FARF_LEN */
    account_pause();
    text_format(text, sizeof(text), format, values);
    say("[%d] %s:%d: %s", level, file, line, text);
    account_resume();
}

void HAP_debug(const char *text, int level, const char *file, int line)
{
    say("[%d] %s:%d: %s", level, file, line, text);
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

/* --- power ----------------------------------------------------------------------------------- */

int HAP_power_set(void *client, const void *request)
{
    (void) client;
    if (!request) {
        return DSP_BAD_PARAMETER;
    }
    return shared->machine.power ? DSP_OK : REFUSED;
}

int HAP_power_get(void *client, void *response)
{
    (void) client;
    (void) response;
    return REFUSED;
}

int HAP_power_destroy_client(void *client)
{
    (void) client;
    return DSP_OK;
}

/* --- time ------------------------------------------------------------------------------------ */

uint64_t HAP_perf_get_time_us(void)
{
    return sys_time();
}

/* Cycles are not simulated: count the packets of all threads instead. */
uint64_t HAP_perf_get_pcycles(void)
{
    account_settle();
    return account_total();
}

uint64_t qurt_get_core_pcycles(void)
{
    return HAP_perf_get_pcycles();
}

/* Return the time in ticks: 19.2 per microsecond, as 19 + 1 / 5.  To avoid a division, 1 / 5 is
 * approximated by 0x33333334 / 2^32. */
uint64_t HAP_perf_get_qtimer_count(void)
{
    uint64_t us = sys_time();
    return us * 19 + ((us & 0xffffffffu) * 0x33333334u >> 32);
}

uint64_t qurt_sysclock_get_hw_ticks(void)
{
    return HAP_perf_get_qtimer_count();
}

uint64_t HAP_perf_qtimer_count_to_us(uint64_t count)
{
    return ((count >> 16) * 3413u) + ((count & 0xffffu) * 3413u >> 16); /* 2^16 / 19.2 = 3413.3 */
}

int HAP_timer_sleep(uint64_t microseconds)
{
    return qurt_timer_sleep(microseconds);
}

/* --- vector units ---------------------------------------------------------------------------- */

int qurt_hvx_lock(int mode)
{
    return mode == MODE_128 && shared->machine.hvx ? QURT_EOK : QURT_EINVALID;
}

int qurt_hvx_try_lock(int mode)
{
    return qurt_hvx_lock(mode);
}

int qurt_hvx_unlock(void)
{
    return QURT_EOK;
}

int qurt_hvx_get_mode(void)
{
    return shared->machine.hvx ? MODE_128 : -1;
}

/* Return the number of HVX contexts of 128 bytes, in bits 8 to 15. */
int qurt_hvx_get_units(void)
{
    return (int) (shared->machine.hvx << 8);
}
