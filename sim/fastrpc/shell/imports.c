/*
 * The names that a skel may import.  A skel that imports any other name does not load, as in the
 * protection domain of a real DSP.
 *
 * Source: the undefined symbols of published skels (qualcomm/fastrpc test/v68 and v75, tinygrad,
 * ggml-hexagon).
 */
#include "hap.h"
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

/* Calls of the older "anysignal": set and clear return the previous signals. */
static uint32_t wait_any(qurt_signal *signal, uint32_t mask)
{
    return qurt_signal_wait(signal, mask, 0);
}

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

/* Return the packets that all threads of the PD have executed; only the simulator exports this
 * name. */
static uint64_t packets_so_far(void)
{
    account_settle();
    return account_total();
}

#define SAME(name) {#name, (void *) (name)}
#define REFUSED(name) {#name, (void *) refused}
#define WRAPPED(name) {"__wrap_" #name, (void *) (name)}, SAME(name)

static const struct {
    const char *name;
    void *at;
} imports[] = {
    WRAPPED(malloc),
    WRAPPED(calloc),
    WRAPPED(realloc),
    WRAPPED(memalign),
    WRAPPED(free),
    SAME(memcpy),
    SAME(memmove),
    SAME(memset),
    SAME(memcmp),
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
    {"__stack_chk_guard", &stack_guard},
    {"__stack_chk_fail", (void *) stack_check_failed},
    {"_Assert", (void *) assertion_failed},
    {"__cxa_finalize", (void *) nothing_to_do},
    {"__register_frame_info_bases", (void *) nothing_to_do},
    {"__deregister_frame_info_bases", (void *) nothing_to_do},

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
    SAME(qurt_sem_up),
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
    {"qurt_anysignal_init", (void *) qurt_signal_init},
    {"qurt_anysignal_destroy", (void *) qurt_signal_destroy},
    {"qurt_anysignal_wait", (void *) wait_any},
    {"qurt_anysignal_set", (void *) set_any},
    {"qurt_anysignal_clear", (void *) clear_any},
    {"qurt_anysignal_get", (void *) qurt_signal_get},
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

    {"npurt_sim_packets", (void *) packets_so_far},
};

void *import_find(const char *name)
{
    for (size_t i = 0; i < sizeof(imports) / sizeof(imports[0]); i++) {
        if (strcmp(imports[i].name, name) == 0) {
            return imports[i].at;
        }
    }
    return NULL;
}
