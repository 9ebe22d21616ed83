"""The mainline driver: one file, and so one address space, for each core.

SUBMIT returns at once and says nothing of a job that was refused, so the sentinel tells.  As it
does return at once, one thread keeps all cores busy.  Source: Linux drivers/accel/rocket.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from npurt.rknpu import uapi_drm
from npurt.rknpu import uapi_rocket as uapi
from npurt.rknpu.driver import Driver, Job, Part
from npurt.rknpu.memory import Buffer, Created, Space
from npurt.rknpu.program import stride
from npurt.rknpu.proof import Role
from npurt.rknpu.system import System, ffi


class RocketSpace(Space):
    """The address space of one file."""

    def __init__(self, system: System, fd: int) -> None:
        super().__init__(system, fd)
        self._fini = ffi().new("struct drm_rocket_fini_bo *")

    def _create(self, nbytes: int, role: Role) -> Created:
        made = ffi().new("struct drm_rocket_create_bo *", {"size": nbytes})
        self.system.ioctl(self.fd, uapi.CREATE_BO, made)
        try:
            memory = self.system.map(self.fd, nbytes, made.offset)
        except BaseException:
            self._close(made.handle)
            raise
        return Created(made.handle, made.dma_address, memory)

    def _destroy(self, buffer: Buffer) -> None:
        self._close(buffer.handle)

    def _close(self, handle: int) -> None:
        argument = ffi().new("struct drm_gem_close *", {"handle": handle})
        self.system.ioctl(self.fd, uapi_drm.GEM_CLOSE, argument)

    def to_device(self, buffer: Buffer, start: int, end: int) -> None:
        """Clean the caches, always of the whole buffer: the driver knows no parts."""
        self._fini.handle = buffer.handle
        self.system.ioctl(self.fd, uapi.FINI_BO, self._fini)


class _Request(NamedTuple):
    """One core's part as the driver wants it."""

    space: RocketSpace
    submit: Any
    preps: tuple[Any, ...]  # of each buffer it writes
    owned: tuple[Any, ...]  # what the structs point to


class RocketDriver(Driver):
    """The NPU under the mainline driver.

    Args:
        system: The kernel.
        fds: The node, opened once for each core; closed by `close`.
        node: Its path.
    """

    name = uapi.NAME
    chained = False

    def __init__(self, system: System, fds: Sequence[int], node: str) -> None:
        self.detail = f"rocket at {node}, {len(fds)} cores"
        self.spaces = tuple(RocketSpace(system, fd) for fd in fds)

    def _job(self, parts: Sequence[Part]) -> Job:
        return Job(parts, [_request(part) for part in parts])

    def _execute(self, job: Job, timeout_s: float) -> None:
        deadline = time.monotonic_ns() + int(timeout_s * 1e9)
        for request in job.request:
            request.space.system.ioctl(request.space.fd, uapi.SUBMIT, request.submit)
        for request in job.request:
            for prep in request.preps:
                prep.timeout_ns = deadline
                request.space.system.ioctl(request.space.fd, uapi.PREP_BO, prep)

    def reset(self) -> None:
        """Do nothing: the kernel has reset a core whose job it ended."""


def _request(part: Part) -> _Request:
    new = ffi().new
    space = part.program.space
    assert isinstance(space, RocketSpace)
    step = stride(RocketDriver.profile) * 8
    words = RocketDriver.profile.words
    tasks = new(
        "struct drm_rocket_task[]",
        [(part.program.address + i * step, words) for i in range(part.count)],
    )
    inputs = new("uint32_t[]", [b.handle for b in (part.program, *part.reads)])
    outputs = new("uint32_t[]", [b.handle for b in part.writes])
    job = new("struct drm_rocket_job *", {
        "tasks": _pointer(tasks),
        "task_count": part.count,
        "task_struct_size": uapi.PARTS["struct drm_rocket_task"],
        "in_bo_handles": _pointer(inputs),
        "in_bo_handle_count": len(inputs),
        "out_bo_handles": _pointer(outputs),
        "out_bo_handle_count": len(outputs),
    })  # fmt: skip
    submit = new("struct drm_rocket_submit *", {
        "jobs": _pointer(job),
        "job_count": 1,
        "job_struct_size": uapi.PARTS["struct drm_rocket_job"],
    })  # fmt: skip
    preps = tuple(new("struct drm_rocket_prep_bo *", {"handle": b.handle}) for b in part.writes)
    return _Request(space, submit, preps, (tasks, inputs, outputs, job))


def _pointer(data: Any) -> int:
    return int(ffi().cast("uintptr_t", data))
