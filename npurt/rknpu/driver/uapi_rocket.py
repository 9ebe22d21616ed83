"""The mainline driver's requests.  Declarations only.

Source: Linux include/uapi/drm/rocket_accel.h, as merged in 6.18; earlier patches had other structs.
"""

from npurt.rknpu.driver.uapi_drm import Ioctl

JOB_TIMEOUT_S = 0.5  # time after which the kernel ends a job: JOB_TIMEOUT_MS of rocket_job.c

NAME = "rocket"  # name from DRM_IOCTL_VERSION

CDEF = """
struct drm_rocket_create_bo { uint32_t size, handle; uint64_t dma_address, offset; };
struct drm_rocket_prep_bo   { uint32_t handle, reserved; int64_t timeout_ns; };
struct drm_rocket_fini_bo   { uint32_t handle, reserved; };
struct drm_rocket_task      { uint32_t regcmd, regcmd_count; };
struct drm_rocket_job {
    uint64_t tasks, in_bo_handles, out_bo_handles;
    uint32_t task_count, task_struct_size, in_bo_handle_count, out_bo_handle_count;
};
struct drm_rocket_submit {
    uint64_t jobs; uint32_t job_count, job_struct_size; uint64_t reserved;
};
"""

CREATE_BO = Ioctl("CREATE_BO", 3, 0x40, "struct drm_rocket_create_bo", 24, 0xC018_6440)
SUBMIT = Ioctl("SUBMIT", 1, 0x41, "struct drm_rocket_submit", 24, 0x4018_6441)
PREP_BO = Ioctl("PREP_BO", 1, 0x42, "struct drm_rocket_prep_bo", 16, 0x4010_6442)
FINI_BO = Ioctl("FINI_BO", 1, 0x43, "struct drm_rocket_fini_bo", 8, 0x4008_6443)

REQUESTS = (CREATE_BO, SUBMIT, PREP_BO, FINI_BO)
PARTS = {"struct drm_rocket_task": 8, "struct drm_rocket_job": 40}  # bytes of nested structs
