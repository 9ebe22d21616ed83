/*
 * The services of the skel's protection domain that are not part of QuRT.
 *
 * Sources: HAP_mem.h, HAP_power.h and HAP_compute_res.h as published in public Hexagon trees; the
 * sizes of the power request are those that cdsp_peak (BSD-3) asserts; codes: qualcomm/fastrpc
 * inc/AEEStdErr.h.  Functions are weak if some firmware lacks them or refuses them to an unsigned
 * domain.
 */
#ifndef NPURT_HAP_H
#define NPURT_HAP_H

#include <stddef.h>
#include <stdint.h>

#define HAP_WEAK __attribute__((weak))

/* Return codes of methods: AEEStdErr.h's codes plus 0x80000400, the offset of the DSP. */
enum {
    DSP_OK = 0,
    DSP_E_FAILED = (int) 0x80000401,
    DSP_E_NO_MEMORY = (int) 0x80000402,
    DSP_E_BAD_PARM = (int) 0x8000040e,
    DSP_E_UNSUPPORTED = (int) 0x80000414,
    DSP_E_ALREADY = (int) 0x8000041a,
    DSP_E_OUT_OF_HANDLES = (int) 0x8000042d,
    DSP_E_NO_SUCH_MAP = (int) 0x80000448,
    DSP_E_MMAP = (int) 0x80000465,
};

/* The linker's option --wrap gives them the names __wrap_malloc and __wrap_free. */
void *malloc(size_t bytes);
void free(void *memory);

/* --- memory that the host shares: less than 2 GiB a call; (void *) -1 on failure -------------- */

enum { HAP_PROT_READ = 1, HAP_PROT_WRITE = 2 };

void *HAP_mmap(void *address, int bytes, int prot, int flags, int fd, long offset);
int HAP_munmap(void *address, int bytes);

/* --- clocks ----------------------------------------------------------------------------------- */

enum {
    HAP_POWER_SET_HVX = 2,
    HAP_POWER_SET_APPTYPE = 3,
    HAP_POWER_SET_DCVS_V3 = 12,
    HAP_POWER_COMPUTE_CLIENT_CLASS = 4,
    HAP_DCVS_V2_ADJUST_UP_DOWN = 0x1,
    HAP_DCVS_V2_PERFORMANCE_MODE = 0x10,
    HAP_DCVS_VCORNER_DISABLE = 0,
    HAP_DCVS_VCORNER_MAX = 255,
};

typedef struct {
    uint8_t target_corner, min_corner, max_corner, unused;
    uint32_t reserved[3];
} HAP_clock_params;

typedef struct {
    uint8_t set_dcvs_enable, dcvs_enable, dcvs_option;
    uint8_t set_latency;
    uint32_t latency; /* microseconds in which the DSP must wake up */
    uint8_t set_core_params;
    HAP_clock_params core_params;
    uint8_t set_bus_params;
    HAP_clock_params bus_params;
    uint8_t set_dcvs_v3_params;
    uint32_t dcvs_v3_params[6];
    uint8_t set_sleep_disable, sleep_disable;
} HAP_power_dcvs_v3;

typedef struct {
    uint8_t type; /* HAP_POWER_SET_* */
    uint8_t unused[7];
    union {
        uint8_t apptype;
        uint8_t hvx_power_up;
        HAP_power_dcvs_v3 dcvs_v3;
        uint64_t room[14];
    };
} HAP_power_request_t;

_Static_assert(sizeof(HAP_power_dcvs_v3) == 80, "as in HAP_power.h");
_Static_assert(offsetof(HAP_power_request_t, dcvs_v3) == 8, "as in HAP_power.h");
_Static_assert(sizeof(HAP_power_request_t) == 120, "as in HAP_power.h");

HAP_WEAK int HAP_power_set(void *client, HAP_power_request_t *request);

/* --- VTCM: memory beside the vector units ----------------------------------------------------- */

/* 8 words in older headers, 20 in newer ones. */
typedef struct {
    uint64_t attributes[32];
} compute_res_attr_t;

HAP_WEAK int compute_resource_attr_init(compute_res_attr_t *attr);
HAP_WEAK int compute_resource_attr_set_vtcm_param(compute_res_attr_t *attr, unsigned bytes,
                                                  uint8_t single_page);
HAP_WEAK unsigned compute_resource_acquire(compute_res_attr_t *attr, unsigned timeout_us);
HAP_WEAK void *compute_resource_attr_get_vtcm_ptr(compute_res_attr_t *attr);
HAP_WEAK int compute_resource_release(unsigned context);

#endif
