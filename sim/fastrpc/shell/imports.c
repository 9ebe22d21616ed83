/*
 * The names that a skel may import.  A skel that imports any other name does not load, as in the
 * protection domain of a real DSP.
 *
 * shell_names.inc is generated from npurt/hexagon/doctor/shell_names.tsv, which states its source:
 * the names that the shells of real DSPs export.  A name of the list that is not simulated exists
 * here too, but calling it ends the PD with a message.
 */
#include "hap.h"
#include "helpers.h"
#include "libc.h"
#include "memory.h"
#include "queue.h"

static uint32_t stack_guard = 0x00aa55ff; /* the canary of -fstack-protector */

static void stack_check_failed(void)
{
    die("a stack was overrun");
}

static void assertion_failed(const char *text, const char *function)
{
    die("assertion failed: %s in %s", text, function);
}

/* Ignore unwinding tables and destructors: nothing unwinds, and a module is unloaded with its last
 * handle. */
static int nothing_to_do(void)
{
    return 0;
}

/* Refuse services that the shell does not provide. */
static int refused(void)
{
    return DSP_UNSUPPORTED;
}

/* Calls of the older "anysignal", which return the previous signals. */
static uint32_t set_any(qurt_signal *signal, uint32_t mask)
{
    uint32_t before = qurt_signal_get(signal);
    qurt_signal_set(signal, mask);
    return before;
}

static uint32_t clear_any(qurt_signal *signal, uint32_t mask)
{
    uint32_t before = qurt_signal_get(signal);
    qurt_signal_clear(signal, mask);
    return before;
}

/* --- the list -------------------------------------------------------------------------------- */

#define SHELL_NAME(name, versions)                                                                 \
    UNREACHABLE static void absent_##name(void)                                                    \
    {                                                                                              \
        die(#name " is not simulated");                                                            \
    }
#include "shell_names.inc"
#undef SHELL_NAME

#define SHELL_NAME(name, versions) AT_##name,
enum {
#include "shell_names.inc"
    NAMES
};
#undef SHELL_NAME

/* Bit v - 64 of `versions`: the shells for version v export the name. */
#define SHELL_NAME(name, versions) {#name, versions, (void *) absent_##name},
static const struct {
    const char *name;
    uint32_t versions;
    void *absent;
} names[NAMES] = {
#include "shell_names.inc"
};

/* --- what is simulated; a name that is not in the list does not compile --------------------------
 * */

#define NAMED(name, function) [AT_##name] = (void *) (function)
#define SAME(name) NAMED(name, name)
#define REFUSED(name) NAMED(name, refused)
#define WRAPPED(name) NAMED(__wrap_##name, name)

static void *const simulated[NAMES] = {
    WRAPPED(malloc),
    WRAPPED(calloc),
    WRAPPED(realloc),
    WRAPPED(memalign),
    WRAPPED(free),
    SAME(malloc),
    SAME(memcpy),
    SAME(memmove),
    SAME(memset),
    SAME(memcmp),
    SAME(memscpy),
    SAME(memsmove),
    SAME(strlen),
    SAME(strcmp),
    SAME(strncmp),
    SAME(strcpy),
    SAME(strncpy),
    SAME(strlcpy),
    SAME(strchr),
    SAME(strstr),
    SAME(strtok_r),
    SAME(strtoul),
    SAME(atoi),
    SAME(snprintf),
    SAME(vsnprintf),
    NAMED(__stack_chk_guard, &stack_guard),
    NAMED(__stack_chk_fail, stack_check_failed),
    NAMED(_Assert, assertion_failed),
    NAMED(__cxa_finalize, nothing_to_do),
    NAMED(__register_frame_info_bases, nothing_to_do),
    NAMED(__deregister_frame_info_bases, nothing_to_do),
    NAMED(__tls_get_addr, tls_address),
    SAME(__hexagon_udivsi3),
    SAME(__hexagon_umodsi3),
    SAME(__hexagon_divsi3),
    SAME(__hexagon_modsi3),
    SAME(__hexagon_udivdi3),
    SAME(__hexagon_umoddi3),
    SAME(__hexagon_divdi3),
    SAME(__hexagon_moddi3),
    SAME(__save_r16_through_r17),
    SAME(__save_r16_through_r19),
    SAME(__save_r16_through_r21),
    SAME(__save_r16_through_r23),
    SAME(__save_r16_through_r25),
    SAME(__save_r16_through_r27),
    SAME(__restore_r16_through_r17_and_deallocframe),
    SAME(__restore_r16_through_r19_and_deallocframe),
    SAME(__restore_r16_through_r21_and_deallocframe),
    SAME(__restore_r16_through_r23_and_deallocframe),
    SAME(__restore_r16_through_r25_and_deallocframe),
    SAME(__restore_r16_through_r27_and_deallocframe),
    SAME(__restore_r16_through_r17_and_deallocframe_before_tailcall),
    SAME(__restore_r16_through_r19_and_deallocframe_before_tailcall),
    SAME(__restore_r16_through_r21_and_deallocframe_before_tailcall),
    SAME(__restore_r16_through_r23_and_deallocframe_before_tailcall),
    SAME(__restore_r16_through_r25_and_deallocframe_before_tailcall),
    SAME(__restore_r16_through_r27_and_deallocframe_before_tailcall),

    SAME(HAP_debug),
    SAME(HAP_debug_v2),
    SAME(HAP_debug_runtime),
    SAME(HAP_mmap),
    SAME(HAP_mmap2),
    SAME(HAP_munmap),
    SAME(HAP_munmap2),
    SAME(HAP_mmap_get),
    SAME(HAP_mmap_put),
    SAME(HAP_power_set),
    SAME(HAP_power_get),
    SAME(HAP_power_destroy_client),
    SAME(HAP_perf_get_time_us),
    SAME(HAP_perf_get_pcycles),
    SAME(HAP_perf_get_qtimer_count),
    SAME(HAP_perf_qtimer_count_to_us),
    SAME(HAP_timer_sleep),
    SAME(compute_resource_attr_init),
    SAME(compute_resource_attr_set_serialize),
    SAME(compute_resource_attr_set_hmx_param),
    SAME(compute_resource_attr_set_cache_mode),
    SAME(compute_resource_attr_set_app_type),
    SAME(compute_resource_attr_set_release_callback),
    SAME(compute_resource_attr_set_vtcm_param),
    SAME(compute_resource_attr_set_vtcm_param_v2),
    SAME(compute_resource_attr_get_vtcm_ptr),
    SAME(compute_resource_attr_get_vtcm_ptr_v2),
    SAME(compute_resource_query_VTCM),
    SAME(compute_resource_acquire),
    SAME(compute_resource_release),
    SAME(compute_resource_acquire_cached),
    SAME(compute_resource_release_cached),
    SAME(compute_resource_check_release_request),

    SAME(qurt_thread_create),
    SAME(qurt_thread_exit),
    SAME(qurt_thread_join),
    SAME(qurt_thread_get_id),
    SAME(qurt_thread_get_priority),
    SAME(qurt_thread_set_priority),
    SAME(qurt_thread_get_name),
    SAME(qurt_mutex_init),
    SAME(qurt_mutex_destroy),
    SAME(qurt_mutex_lock),
    SAME(qurt_mutex_unlock),
    SAME(qurt_mutex_try_lock),
    SAME(qurt_sem_init),
    SAME(qurt_sem_init_val),
    SAME(qurt_sem_destroy),
    SAME(qurt_sem_add),
    SAME(qurt_sem_down),
    SAME(qurt_sem_try_down),
    SAME(qurt_barrier_init),
    SAME(qurt_barrier_destroy),
    SAME(qurt_barrier_wait),
    SAME(qurt_signal_init),
    SAME(qurt_signal_destroy),
    SAME(qurt_signal_wait),
    SAME(qurt_signal_set),
    SAME(qurt_signal_clear),
    SAME(qurt_signal_get),

    NAMED(qurt_anysignal_set, set_any),
    NAMED(qurt_anysignal_clear, clear_any),
    SAME(qurt_cond_init),
    SAME(qurt_cond_destroy),
    SAME(qurt_cond_wait),
    SAME(qurt_cond_signal),
    SAME(qurt_cond_broadcast),
    SAME(qurt_futex_wait),
    SAME(qurt_futex_wake),
    SAME(qurt_timer_sleep),
    SAME(qurt_mem_cache_clean),
    SAME(qurt_get_core_pcycles),
    SAME(qurt_sysclock_get_hw_ticks),
    SAME(qurt_hvx_lock),
    SAME(qurt_hvx_try_lock),
    SAME(qurt_hvx_unlock),
    SAME(qurt_hvx_get_mode),
    SAME(qurt_hvx_get_units),

    SAME(dspqueue_import),
    SAME(dspqueue_close),
    SAME(dspqueue_write),
    SAME(dspqueue_write_noblock),
    SAME(dspqueue_write_early_wakeup_noblock),
    SAME(dspqueue_read),
    SAME(dspqueue_read_noblock),
    SAME(dspqueue_peek),
    SAME(dspqueue_peek_noblock),

    REFUSED(HAP_cache_lock),
    REFUSED(HAP_cache_unlock),
    REFUSED(HAP_query_total_cachelock),
    REFUSED(HAP_query_avail_cachelock),
    REFUSED(HAP_mem_get_stats),
    REFUSED(HAP_mem_set_grow_size),
    REFUSED(adsp_mmap_fd_getinfo),

};

/* Return whether shells for this machine's version export a name.  No shell of some versions is
 * known, v69 for example: there both neighbours must export the name. */
static bool exported(uint32_t versions)
{
    enum { FIRST = 64 };
    uint32_t listed = 0;
    for (uint32_t i = 0; i < NAMES; i++) {
        listed |= names[i].versions;
    }
    uint32_t arch = shared->machine.arch; /* 0x68: the digits are decimal */
    uint32_t bit = (arch >> 4) * 10 + (arch & 15) - FIRST;
    uint32_t below = listed & ((2u << bit) - 1), above = listed & -(1u << bit);
    uint32_t low = below ? 31 - (uint32_t) __builtin_clz(below) : (uint32_t) __builtin_ctz(listed);
    uint32_t high = above ? (uint32_t) __builtin_ctz(above) : 31 - (uint32_t) __builtin_clz(listed);
    return versions >> low & versions >> high & 1;
}

void *import_find(const char *name)
{
    for (uint32_t i = 0; i < NAMES; i++) {
        if (strcmp(names[i].name, name) == 0) {
            bool there = exported(names[i].versions) && strcmp(name, shared->machine.without);
            void *at = simulated[i] ? failing(name, simulated[i]) : names[i].absent;
            return there ? at : NULL;
        }
    }
    return NULL;
}
