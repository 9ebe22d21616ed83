"""The mainline driver: one file, and so one address space, for each core.

SUBMIT returns at once and says nothing of a job that was refused, so the sentinel tells.  As it
does return at once, one thread keeps all cores busy.  Source: Linux drivers/accel/rocket.
"""

import time
from collections.abc import Sequence
from typing import Any

from npurt.rknpu import uapi_drm
from npurt.rknpu import uapi_rocket as uapi
from npurt.rknpu.driver import Driver, Job, Part
from npurt.rknpu.lower import Profile
from npurt.rknpu.memory import Buffer, Created, Space
from npurt.rknpu.program import stride
from npurt.rknpu.proof import Role
from npurt.rknpu.system import Call, System, ffi

BACKSTOP_S = 10.0


class RocketSpace(Space):
    """The address space of one file."""

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

    def cleaning(self, buffer: Buffer, start: int, end: int) -> list[Call]:
        """Clean the caches, always of the whole buffer: the driver knows no parts."""
        fini = ffi().new("struct drm_rocket_fini_bo *", {"handle": buffer.handle})
        return [Call(self.fd, uapi.FINI_BO, fini)]


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
        self.detail = f"rocket at {node}, {len(fds)} core{'s' if len(fds) > 1 else ''}"
        self.spaces = tuple(RocketSpace(system, fd) for fd in fds)

    def _job(self, parts: Sequence[Part], calls: list[Call]) -> Job:
        structs = [_submit(part, self.profile) for part in parts]
        submits = [
            Call(part.program.space.fd, uapi.SUBMIT, submit)
            for part, (submit, *_) in zip(parts, structs, strict=True)
        ]
        waits = [
            Call(
                part.program.space.fd,
                uapi.PREP_BO,
                ffi().new("struct drm_rocket_prep_bo *", {"handle": buffer.handle}),
            )
            for part in parts
            for buffer in part.writes
        ]
        preps = [call.argument for call in waits]
        return Job(parts, [*calls, *submits, *waits], preps, held=structs)

    def _patience(self, job: Job) -> float:
        """Wait for long: the kernel itself ends a job that hangs, after 0.5 s."""
        return BACKSTOP_S

    def _set_timeout(self, job: Job, timeout_s: float) -> None:
        deadline = time.monotonic_ns() + int(timeout_s * 1e9)
        for prep in job.waits:
            prep.timeout_ns = deadline

    def reset(self) -> None:
        """Do nothing: the kernel has reset a core whose job it ended."""


def _submit(part: Part, profile: Profile) -> tuple[Any, ...]:
    """Return the request that runs a part on its core, and what it points to."""
    new = ffi().new
    step = stride(profile) * 8
    tasks = new(
        "struct drm_rocket_task[]",
        [(part.program.address + i * step, profile.words) for i in range(part.count)],
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
    return submit, tasks, inputs, outputs, job


def _pointer(data: Any) -> int:
    return int(ffi().cast("uintptr_t", data))
