"""Test structs and request numbers against a second computation and published values."""

import pytest

from npurt.rknpu.driver import uapi_drm, uapi_rknpu, uapi_rocket
from npurt.rknpu.driver.system import ffi

UAPIS = (uapi_drm, uapi_rocket, uapi_rknpu)
ALL = [(uapi.__name__.rpartition(".")[2], request) for uapi in UAPIS for request in uapi.REQUESTS]

# Offsets of fields: Linux rocket_accel.h and drm.h, w568w/rknpu-module rknpu_ioctl.h, on LP64.
OFFSETS = {
    "struct drm_version": {"version_patchlevel": 8, "name_len": 16, "name": 24, "desc": 56},
    "struct drm_rocket_create_bo": {"handle": 4, "dma_address": 8, "offset": 16},
    "struct drm_rocket_prep_bo": {"handle": 0, "timeout_ns": 8},
    "struct drm_rocket_job": {"out_bo_handles": 16, "task_count": 24, "out_bo_handle_count": 36},
    "struct drm_rocket_submit": {"job_count": 8, "job_struct_size": 12, "reserved": 16},
    "struct rknpu_mem_create": {"obj_addr": 16, "dma_addr": 24, "iommu_domain_id": 40},
    "struct rknpu_mem_sync": {"obj_addr": 8, "offset": 16, "size": 24},
    "struct rknpu_task": {"int_mask": 12, "regcfg_amount": 24, "regcmd_addr": 32},
    "struct rknpu_submit": {
        "timeout": 4, "task_number": 12, "priority": 20, "task_obj_addr": 24,
        "task_base_addr": 40, "hw_elapse_time": 48, "core_mask": 56, "fence_fd": 60,
        "subcore_task": 64,
    },
}  # fmt: skip

# Request numbers that public sources print, from strace or from the macros of the headers.
PUBLISHED = {
    "CREATE_BO": 0xC0186440, "PREP_BO": 0x40106442, "FINI_BO": 0x40086443,
    "ACTION": 0xC0086440, "MEM_CREATE": 0xC0306442, "MEM_MAP": 0xC0106443,
    "MEM_DESTROY": 0xC0106444, "MEM_SYNC": 0xC0206445, "VERSION": 0xC0406400,
    "GEM_CLOSE": 0x40086409,
}  # fmt: skip


@pytest.mark.parametrize(("uapi", "request_"), ALL, ids=[f"{u}-{r.name}" for u, r in ALL])
def test_request_numbers_are_what_the_macros_give(uapi, request_):
    """A number is _IOC(direction, 'd', nr, sizeof(struct)), with sizeof from C."""
    assert request_.size == ffi().sizeof(request_.struct), uapi
    assert request_.number == (
        request_.direction << 30 | request_.size << 16 | ord("d") << 8 | request_.nr
    )


@pytest.mark.parametrize("uapi", UAPIS[1:])
def test_parts_have_the_sizes_that_the_drivers_check(uapi):
    assert {name: ffi().sizeof(name) for name in uapi.PARTS} == uapi.PARTS


@pytest.mark.parametrize("struct", OFFSETS)
def test_fields_are_where_the_kernel_reads_them(struct):
    assert {name: ffi().offsetof(struct, name) for name in OFFSETS[struct]} == OFFSETS[struct]


def test_numbers_that_others_published():
    ours = {request.name: request.number for _, request in ALL if request.name != "SUBMIT"}

    assert ours == PUBLISHED
    assert uapi_rocket.SUBMIT.number == 0x40186441
    assert uapi_rknpu.SUBMIT.number == 0xC0686441


def test_every_struct_is_declared_once():
    declared = " ".join(uapi.CDEF for uapi in UAPIS)

    for uapi in UAPIS:
        for request in uapi.REQUESTS:
            assert declared.count(request.struct + " ") == 1
