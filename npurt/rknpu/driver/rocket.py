"""The mainline driver rocket: one file, and so one address space, for each core.

SUBMIT returns at once, so one thread can keep all cores busy; docs/decisions/012 compares this with
one thread for each core.  SUBMIT does not report refused jobs; an unchanged sentinel reveals them.
Source: Linux drivers/accel/rocket.
"""

import time
from collections.abc import Sequence
from typing import Any

from npurt.rknpu.driver import uapi_drm
from npurt.rknpu.driver import uapi_rocket as uapi
from npurt.rknpu.driver.base import CorePart, Driver, Input, Job, input_cleans
from npurt.rknpu.driver.memory import Buffer, Created, Space, Suballocation
from npurt.rknpu.driver.native.run import CoreQueue, IoctlCall, ThreadPool
from npurt.rknpu.driver.system import LinuxKernel, ffi
from npurt.rknpu.isa.lower import Profile
from npurt.rknpu.isa.program import stride
from npurt.rknpu.plan.proof import Role

BACKSTOP_S = 10.0  # timeout of waits; the kernel ends jobs long before
# The kernel's timeout is for all tasks of a job together.  Half of it is a reserve for delays that
# even the slowest estimate does not include.
PLANNED_S = uapi.JOB_TIMEOUT_S / 2
# Seconds that `close` waits.  Linux 7.2 and 7.3 free a job's buffers some time after the job's
# fence was signalled, and rocket_gem_bo_free accesses the memory of the open file.  Without the
# wait, this access could be a use after free.
SETTLING_S = 0.01


class RocketSpace(Space):
    """The address space of one core."""

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

    def clean_calls(self, buffer: Buffer, start: int, end: int) -> list[IoctlCall]:
        """Return the call that cleans the whole buffer: the driver cannot clean a part."""
        fini = ffi().new("struct drm_rocket_fini_bo *", {"handle": buffer.handle})
        return [IoctlCall(self.fd, uapi.FINI_BO, fini)]


class RocketDriver(Driver):
    """The NPU under the mainline driver.

    Args:
        system: The kernel.
        fds: The node, opened once for each core; `close` closes them.
        node: The path of the node.
        threads: Whether each core has a thread that submits and waits for its jobs.

    Raises:
        NpurtError: The threads cannot be started.
    """

    name = uapi.NAME
    chained = False
    planned_s = PLANNED_S

    def __init__(
        self, system: LinuxKernel, fds: Sequence[int], node: str, *, threads: bool = False
    ) -> None:
        self.detail = f"rocket at {node}, {len(fds)} core{'s' if len(fds) > 1 else ''}"
        self.spaces = tuple(RocketSpace(system, fd) for fd in fds)
        self._pool = ThreadPool(len(fds) - 1) if threads and len(fds) > 1 else None
        self._settling_s = 0.0
        if self._pool:
            self.detail += ", a thread for each"

    def _job(
        self, parts: Sequence[CorePart], inputs: Sequence[Input], owned: Sequence[Suballocation]
    ) -> Job:
        queues, held = [], []
        self._settling_s = SETTLING_S
        for core, part in enumerate(parts):
            mine = inputs[core : core + 1]
            submit, *others = _submit(part, self.profile)
            held.append(others)
            call = IoctlCall(part.program.space.fd, uapi.SUBMIT, submit)
            copy = mine[0][0].window(0, mine[0][1]) if core and mine else None
            queues.append(CoreQueue([*input_cleans([part], mine), call], _waits(part), copy))
        return Job(parts, queues, inputs, self._pool, owned, held)

    def _patience(self, seconds: float) -> float:
        """Return a long timeout: the kernel itself ends a job that hangs, after `JOB_TIMEOUT_S`."""
        return BACKSTOP_S

    def _set_timeout(self, job: Job, timeout_s: float) -> None:
        job.run.table.timeout = int(timeout_s * 1e9)

    def reset(self) -> None:
        """Do nothing: the kernel resets a core when it ends a job."""

    def close(self) -> None:
        """Release the device, every buffer and thread.  A second call does nothing."""
        if self._pool:
            self._pool.close()
        time.sleep(self._settling_s)
        self._settling_s = 0.0
        super().close()


def _waits(part: CorePart) -> list[IoctlCall]:
    """Return the requests that wait for a core's results and make them visible to the CPU."""
    waits = []
    for buffer in part.writes:
        prep = ffi().new("struct drm_rocket_prep_bo *", {"handle": buffer.handle})
        until = ffi().addressof(prep, "timeout_ns")
        waits.append(IoctlCall(buffer.space.fd, uapi.PREP_BO, prep, until))
    return waits


def _submit(part: CorePart, profile: Profile) -> tuple[Any, ...]:
    """Return the request that runs a part on its core, and the structs that it points to."""
    new = ffi().new
    step = stride(profile) * 8
    tasks = new(
        "struct drm_rocket_task[]",
        [(part.program.address + i * step, profile.words) for i in range(part.count)],
    )
    inputs = new("uint32_t[]", [b.handle for b in (part.program.buffer, *part.reads)])
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
