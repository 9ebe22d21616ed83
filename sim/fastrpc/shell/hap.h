/*
 * The HAP services of a PD: messages, power votes, time, compute resources.  Source: HAP_debug.h of
 * qualcomm/fastrpc; HAP_power.h, HAP_perf.h and HAP_compute_res.h as published in public Hexagon
 * trees.
 */
#ifndef HAP_H
#define HAP_H

#include "qurt.h"

void HAP_debug(const char *message, int level, const char *file, int line);
void HAP_debug_v2(int level, const char *file, int line, const char *format, ...);
void HAP_debug_runtime(int level, const char *file, int line, const char *format, ...);

bool vtcm_contains(uint32_t address);

int HAP_power_set(void *client, const void *request);
int HAP_power_get(void *client, void *response);
int HAP_power_destroy_client(void *client);
uint64_t HAP_perf_get_time_us(void);
uint64_t HAP_perf_get_pcycles(void);
uint64_t HAP_perf_get_qtimer_count(void);
uint64_t HAP_perf_qtimer_count_to_us(uint64_t count);
int HAP_timer_sleep(uint64_t microseconds);

int qurt_hvx_lock(int mode);
int qurt_hvx_try_lock(int mode);
int qurt_hvx_unlock(void);
int qurt_hvx_get_mode(void);
int qurt_hvx_get_units(void);
uint64_t qurt_get_core_pcycles(void);
uint64_t qurt_sysclock_get_hw_ticks(void);

/* Opaque to skels, which allocate at least eight 64-bit words for it. */
typedef struct {
    uint32_t size, least;    /* bytes of VTCM requested, and the least accepted */
    uint32_t page;           /* contiguous bytes requested */
    uint32_t address, bytes; /* granted */
    uint32_t hmx;
} resource_request;

/* Sizes and counts of pages, in the first `kinds` entries of `page`. */
typedef struct {
    uint32_t bytes, kinds;
    struct {
        uint32_t bytes, count;
    } page[8];
} vtcm_layout;

int compute_resource_attr_init(resource_request *request);
int compute_resource_attr_set_serialize(resource_request *request, uint8_t on);
int compute_resource_attr_set_hmx_param(resource_request *request, uint8_t on);
int compute_resource_attr_set_cache_mode(resource_request *request, uint8_t on);
int compute_resource_attr_set_app_type(resource_request *request, uint32_t type);
int compute_resource_attr_set_release_callback(resource_request *request,
                                               int (*callback)(uint32_t, void *), void *context);
int compute_resource_attr_set_vtcm_param(resource_request *request, uint32_t bytes, uint8_t single);
int compute_resource_attr_set_vtcm_param_v2(resource_request *request, uint32_t bytes,
                                            uint32_t page, uint32_t least);
void *compute_resource_attr_get_vtcm_ptr(resource_request *request);
int compute_resource_attr_get_vtcm_ptr_v2(resource_request *request, void **address,
                                          uint32_t *bytes);
int compute_resource_query_VTCM(uint32_t application, uint32_t *total, vtcm_layout *total_pages,
                                uint32_t *available, vtcm_layout *available_pages);
uint32_t compute_resource_acquire(resource_request *request, uint32_t microseconds);
int compute_resource_release(uint32_t id);
int compute_resource_acquire_cached(uint32_t id, uint32_t microseconds);
int compute_resource_release_cached(uint32_t id);
int compute_resource_check_release_request(uint32_t id);

#endif
