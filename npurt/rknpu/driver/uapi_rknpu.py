"""The requests of the vendor's driver with DRM nodes.  Declarations only.

Source: w568w/rknpu-module (the vendor's 0.9.8) rknpu_ioctl.h; drivers before 0.9.6 have a
smaller rknpu_mem_create, so its request number differs.
"""

from npurt.rknpu.driver.uapi_drm import Ioctl

NAME = "rknpu"  # name from DRM_IOCTL_VERSION

CDEF = """
struct rknpu_action { uint32_t flags, value; };
struct rknpu_mem_create {
    uint32_t handle, flags; uint64_t size, obj_addr, dma_addr, sram_size;
    int32_t iommu_domain_id; uint32_t core_mask;
};
struct rknpu_mem_map     { uint32_t handle, reserved; uint64_t offset; };
struct rknpu_mem_destroy { uint32_t handle, reserved; uint64_t obj_addr; };
struct rknpu_mem_sync    { uint32_t flags, reserved; uint64_t obj_addr, offset, size; };
struct rknpu_task {
    uint32_t flags, op_idx, enable_mask, int_mask, int_clear, int_status;
    uint32_t regcfg_amount, regcfg_offset; uint64_t regcmd_addr;
};
struct rknpu_subcore_task { uint32_t task_start, task_number; };
struct rknpu_submit {
    uint32_t flags, timeout, task_start, task_number, task_counter; int32_t priority;
    uint64_t task_obj_addr; uint32_t iommu_domain_id, reserved; uint64_t task_base_addr;
    int64_t hw_elapse_time; uint32_t core_mask; int32_t fence_fd;
    struct rknpu_subcore_task subcore_task[5];
};
"""

ACTION = Ioctl("ACTION", 3, 0x40, "struct rknpu_action", 8, 0xC008_6440)
SUBMIT = Ioctl("SUBMIT", 3, 0x41, "struct rknpu_submit", 104, 0xC068_6441)
MEM_CREATE = Ioctl("MEM_CREATE", 3, 0x42, "struct rknpu_mem_create", 48, 0xC030_6442)
MEM_MAP = Ioctl("MEM_MAP", 3, 0x43, "struct rknpu_mem_map", 16, 0xC010_6443)
MEM_DESTROY = Ioctl("MEM_DESTROY", 3, 0x44, "struct rknpu_mem_destroy", 16, 0xC010_6444)
MEM_SYNC = Ioctl("MEM_SYNC", 3, 0x45, "struct rknpu_mem_sync", 32, 0xC020_6445)

REQUESTS = (ACTION, SUBMIT, MEM_CREATE, MEM_MAP, MEM_DESTROY, MEM_SYNC)
PARTS = {"struct rknpu_task": 40, "struct rknpu_subcore_task": 8}  # bytes

# MEM_CREATE flags
NON_CONTIGUOUS, CACHEABLE, KERNEL_MAPPING, IOMMU = 0x1, 0x2, 0x8, 0x10
IOVA_ALIGNMENT = 0x400  # since 0.9.7: prevents permanent fragmentation of the address space

# MEM_SYNC flags
TO_DEVICE, FROM_DEVICE = 1, 2

# SUBMIT flags: run command words; alternate the register groups.  Without NONBLOCK, SUBMIT waits.
PC, PINGPONG = 0x1, 0x4

# ACTION flags
DRV_VERSION, RESET, GET_IOMMU_EN = 1, 6, 18

INT_MASK = 0x300  # both register groups of the DPU, the block that finishes a product last
INT_CLEAR = 0x1FFFF
CORE_MASK = {1: 0b001, 2: 0b011, 3: 0b111}  # number of used cores -> mask
FIRST_SLOT = {1: 0, 2: 0, 3: 2}  # number of used cores -> index in subcore_task [M] rknpu_job.c
MAX_TASKS = 4095  # chained tasks of a core in one submit
OLDEST = 906  # oldest supported version from DRV_VERSION: 0.9.6, see `release`
ALIGNMENT_SINCE = 907  # first version with IOVA_ALIGNMENT
DOMAINS = 16  # IOMMU domains
DOMAINS_SINCE = 908  # first version with more domains than 0


def release(version: int) -> str:
    """Return a version number in the usual notation: "0.9.6" for 906."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
