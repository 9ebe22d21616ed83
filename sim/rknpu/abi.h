/*
 * The interface of the two drivers: ioctl numbers and structs.  Declarations only.
 *
 * Written from include/uapi/drm/rocket_accel.h (Linux 6.18) and the rknpu driver 0.9.8
 * (rknpu_ioctl.h), independently of npurt/rknpu, which the simulator checks.
 */
#ifndef RKNPU_SIM_ABI_H
#define RKNPU_SIM_ABI_H

#include <stdint.h>

/* _IOC(dir, 'd', nr, size) of asm-generic/ioctl.h, written out */
#define DRM_IO(dir, nr, type)                                                                      \
    ((uint32_t) (dir) << 30 | (uint32_t) sizeof(type) << 16 | 'd' << 8 | (nr))
#define IOC_DIR(request) ((uint32_t) (request) >> 30)
#define IOC_SIZE(request) ((uint32_t) (request) >> 16 & 0x3FFF)
#define IOC_TYPE(request) ((uint32_t) (request) >> 8 & 0xFF)
#define IOC_NR(request) ((uint32_t) (request) & 0xFF)
enum { IOC_IN = 1, IOC_OUT = 2, IOC_INOUT = 3 };

/* --- every DRM driver ---------------------------------------------------------------------- */
struct drm_version {
    int32_t major, minor, patch, pad;
    uint64_t name_len, name, date_len, date, desc_len, desc;
};
struct drm_gem_close {
    uint32_t handle, pad;
};
#define DRM_VERSION DRM_IO(IOC_INOUT, 0x00, struct drm_version)
#define DRM_GEM_CLOSE DRM_IO(IOC_IN, 0x09, struct drm_gem_close)

/* --- rocket -------------------------------------------------------------------------------- */
struct rocket_create_bo {
    uint32_t size, handle;
    uint64_t dma_address, offset;
};
struct rocket_submit {
    uint64_t jobs;
    uint32_t job_count, job_struct_size;
    uint64_t reserved;
};
struct rocket_prep_bo {
    uint32_t handle, reserved;
    int64_t timeout_ns; /* deadline, on CLOCK_MONOTONIC */
};
struct rocket_fini_bo {
    uint32_t handle, reserved;
};
struct rocket_task {
    uint32_t regcmd, regcmd_count; /* IOVA, 64-bit words */
};
struct rocket_job {
    uint64_t tasks, in_handles, out_handles;
    uint32_t task_count, task_struct_size, in_count, out_count;
};
#define ROCKET_CREATE_BO DRM_IO(IOC_INOUT, 0x40, struct rocket_create_bo)
#define ROCKET_SUBMIT DRM_IO(IOC_IN, 0x41, struct rocket_submit)
#define ROCKET_PREP_BO DRM_IO(IOC_IN, 0x42, struct rocket_prep_bo)
#define ROCKET_FINI_BO DRM_IO(IOC_IN, 0x43, struct rocket_fini_bo)

/* --- rknpu --------------------------------------------------------------------------------- */
struct rknpu_action {
    uint32_t flags, value;
};
struct rknpu_range {
    uint32_t start, count; /* tasks */
};
struct rknpu_submit {
    uint32_t flags, timeout, task_start, task_number, task_counter;
    int32_t priority;
    uint64_t task_obj_addr;
    uint32_t iommu_domain_id, reserved;
    uint64_t task_base_addr;
    int64_t hw_elapse_time; /* ns */
    uint32_t core_mask;
    int32_t fence_fd;
    struct rknpu_range subcore_task[5];
};
struct rknpu_mem_create {
    uint32_t handle, flags;
    uint64_t size, obj_addr, dma_addr, sram_size;
    int32_t iommu_domain_id;
    uint32_t core_mask;
};
struct rknpu_mem_map {
    uint32_t handle, reserved;
    uint64_t offset;
};
struct rknpu_mem_destroy {
    uint32_t handle, reserved;
    uint64_t obj_addr;
};
struct rknpu_mem_sync {
    uint32_t flags, reserved;
    uint64_t obj_addr, offset, size;
};
struct rknpu_task {
    uint32_t flags, op_idx, enable_mask, int_mask, int_clear, int_status;
    uint32_t regcfg_amount, regcfg_offset;
    uint64_t regcmd_addr;
}; /* packed in the header; 40 bytes in either case */
_Static_assert(sizeof(struct rknpu_task) == 40, "rknpu_task has 40 bytes");
_Static_assert(sizeof(struct rknpu_submit) == 104, "rknpu_submit has 104 bytes");

#define RKNPU_ACTION DRM_IO(IOC_INOUT, 0x40, struct rknpu_action)
#define RKNPU_SUBMIT DRM_IO(IOC_INOUT, 0x41, struct rknpu_submit)
#define RKNPU_MEM_CREATE DRM_IO(IOC_INOUT, 0x42, struct rknpu_mem_create)
#define RKNPU_MEM_MAP DRM_IO(IOC_INOUT, 0x43, struct rknpu_mem_map)
#define RKNPU_MEM_DESTROY DRM_IO(IOC_INOUT, 0x44, struct rknpu_mem_destroy)
#define RKNPU_MEM_SYNC DRM_IO(IOC_INOUT, 0x45, struct rknpu_mem_sync)

enum {
    MEM_CACHEABLE = 2,
    MEM_KERNEL_MAPPING = 8,
    MEM_ZEROING = 0x20,
    MEM_IOVA_ALIGNMENT = 0x400, /* from 0.9.7 */
    MEM_FLAGS = 0x7FF,
};
/* Interrupt bits: the DPU or the PPU has finished writing. */
enum { INT_DPU_0 = 0x100, INT_DPU = 0x300, INT_PPU = 0xC00 };
enum { SYNC_TO_DEVICE = 1, SYNC_FROM_DEVICE = 2 };
enum { JOB_PC = 1, JOB_NONBLOCK = 2, JOB_PINGPONG = 4, JOB_FENCE_IN = 8, JOB_FENCE_OUT = 0x10 };

#endif
