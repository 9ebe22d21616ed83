"""The vendor's driver rknpu: one file and one address space for all cores, and chained tasks.

Source: w568w/rknpu-module (the vendor's 0.9.8) rknpu_job.c, rknpu_gem.c.
"""

import errno
from collections.abc import Sequence
from typing import Any

from npurt.errors import DriverError, LayoutError
from npurt.rknpu.driver import uapi_rknpu as uapi
from npurt.rknpu.driver.base import (
    CorePart,
    CoreTasks,
    Driver,
    Input,
    Job,
    MemoryRequest,
    input_cleans,
)
from npurt.rknpu.driver.memory import PAGE, Buffer, Created, Space, Suballocation
from npurt.rknpu.driver.native.run import CoreQueue, IoctlCall
from npurt.rknpu.driver.system import LinuxKernel, ffi
from npurt.rknpu.isa.formats import FORMATS
from npurt.rknpu.isa.layout import Layout
from npurt.rknpu.isa.lower import Profile
from npurt.rknpu.isa.program import stride
from npurt.rknpu.isa.regcmd import TAIL
from npurt.rknpu.isa.task import Task
from npurt.rknpu.plan.proof import Role

LINE = 64  # bytes of a cache line
INT8 = FORMATS["int8"]
TASK_BYTES = uapi.PARTS["struct rknpu_task"]


class RknpuSpace(Space):
    """An IOMMU domain: an address space that all processes share.

    Args:
        system: The kernel.
        fd: The open node.
        version: The driver's version, from DRV_VERSION.
        domain: The number of the domain; drivers before `uapi.DOMAINS_SINCE` have only 0.
    """

    def __init__(self, system: LinuxKernel, fd: int, version: int, domain: int = 0) -> None:
        super().__init__(system, fd)
        self.domain = domain
        self._flags = {
            Role.PROGRAM: 0,  # not cached, because it is written once
            Role.TASKS: uapi.KERNEL_MAPPING,  # the kernel reads them through its own mapping
            Role.INPUT: uapi.NON_CONTIGUOUS | uapi.CACHEABLE | uapi.IOMMU,
            Role.OUTPUT: uapi.NON_CONTIGUOUS | uapi.CACHEABLE | uapi.IOMMU,
        }
        if version >= uapi.ALIGNMENT_SINCE:
            self._flags[Role.INPUT] |= uapi.IOVA_ALIGNMENT
            self._flags[Role.OUTPUT] |= uapi.IOVA_ALIGNMENT

    def _create(self, nbytes: int, role: Role) -> Created:
        made = ffi().new("struct rknpu_mem_create *", {
            "size": nbytes,
            "flags": self._flags[role],
            "iommu_domain_id": self.domain,
        })  # fmt: skip
        self.system.ioctl(self.fd, uapi.MEM_CREATE, made)
        place = ffi().new("struct rknpu_mem_map *", {"handle": made.handle})
        try:
            self.system.ioctl(self.fd, uapi.MEM_MAP, place)
            memory = self.system.map(self.fd, nbytes, place.offset)
        except BaseException:
            self._close(made.handle, made.obj_addr)
            raise
        return Created(made.handle, made.dma_addr, memory, made.obj_addr)

    def _destroy(self, buffer: Buffer) -> None:
        self._close(buffer.handle, buffer.cookie)

    def _close(self, handle: int, cookie: int) -> None:
        argument = ffi().new("struct rknpu_mem_destroy *", {"handle": handle, "obj_addr": cookie})
        self.system.ioctl(self.fd, uapi.MEM_DESTROY, argument)

    def _close_file(self) -> None:
        if self.domain == 0:  # the other domains use the same file
            super()._close_file()

    def clean_calls(self, buffer: Buffer, start: int, end: int) -> list[IoctlCall]:
        """Return the call that cleans the part, or none if the buffer is not cached."""
        if not self._flags[buffer.role] & uapi.CACHEABLE:
            return []
        return [sync_of(buffer, start, end, uapi.TO_DEVICE)]


def sync_of(buffer: Buffer, start: int, end: int, direction: int) -> IoctlCall:
    """Return the request for the cache lines from *start* to *end*."""
    first = start // LINE * LINE
    sync = ffi().new("struct rknpu_mem_sync *", {
        "flags": direction,
        "obj_addr": buffer.cookie,
        "offset": first,
        "size": min(-(-end // LINE) * LINE, buffer.nbytes) - first,
    })  # fmt: skip
    return IoctlCall(buffer.space.fd, uapi.MEM_SYNC, sync)


class RknpuDriver(Driver):
    """The NPU under the vendor's driver.

    Args:
        system: The kernel.
        fd: The open node; `close` closes it.
        node: The path of the node.
        cores: The number of cores.
        version: The driver's version, from DRV_VERSION.
    """

    name = uapi.NAME
    chained = True

    def __init__(self, system: LinuxKernel, fd: int, node: str, cores: int, version: int) -> None:
        self.detail = (
            f"rknpu {uapi.release(version)} at {node}, {cores} core{'s' if cores > 1 else ''}"
        )
        self._version = version
        self._space = RknpuSpace(system, fd, version)
        self._others: list[RknpuSpace] = []
        self.spaces = (self._space,) * cores

    def more_spaces(self) -> tuple[Space, ...]:
        """Return the next IOMMU domain as address space of all cores, or none."""
        domain = len(self._others) + 1
        if self._version < uapi.DOMAINS_SINCE or domain >= uapi.DOMAINS:
            return ()
        first = self._space
        self._others.append(RknpuSpace(first.system, first.fd, self._version, domain))
        return (self._others[-1],) * len(self.spaces)

    def close(self) -> None:
        """Release the device and every buffer.  A second call does nothing."""
        for space in self._others:
            space.close()
        super().close()

    def refuses_all_cores(self) -> bool:
        """Return whether the driver refuses a job with a minimal product on each core.

        The driver has no request for the number of cores, and the chip in the device tree may have
        more cores than the driver.  Other errors are ignored here; later requests report them.
        """
        size = INT8.group
        task = Task(INT8, Layout.ROW, 1, size, size, rows=1, columns=size)
        buffers: list[Buffer] = []
        try:
            buffers.append(self._space.alloc(PAGE, Role.INPUT, "A and B"))
            buffers.append(self._space.alloc(PAGE, Role.OUTPUT, "C"))
            a, c = (buffer.address for buffer in buffers)
            job = self.prepare([
                CoreTasks([task], [(a, a + PAGE // 2, c + core * PAGE // 4)])
                for core in range(len(self.spaces))
            ])  # fmt: skip
            try:
                self._try(job, job.max_s)
            finally:
                job.free()
        except DriverError as error:
            return error.call == uapi.SUBMIT.name and error.code == errno.EINVAL
        finally:
            for buffer in buffers:
                buffer.free()
            self._space.trim()
        return False

    def _tables(self, spaces: Sequence[Space], tasks: Sequence[int]) -> Sequence[MemoryRequest]:
        """Return the memory for the structs that describe each task to the kernel."""
        return [MemoryRequest(spaces[0], sum(tasks) * TASK_BYTES, Role.TASKS, "tasks", TASK_BYTES)]

    def _job(
        self, parts: Sequence[CorePart], inputs: Sequence[Input], owned: Sequence[Suballocation]
    ) -> Job:
        if max(part.count for part in parts) > uapi.MAX_TASKS:
            raise LayoutError(
                f"a core cannot run {max(part.count for part in parts)} tasks in one job",
                remedy=f"use at most {uapi.MAX_TASKS} tasks: larger tiles, or several jobs",
            )
        tasks = owned[-1]
        assert isinstance(tasks.space, RknpuSpace)
        with tasks.write() as memory:
            table = ffi().from_buffer("struct rknpu_task[]", memory)
            _fill(table, parts, self.profile)
        submit = _submit(parts, tasks, tasks.space.domain)
        call = IoctlCall(self._space.fd, uapi.SUBMIT, submit)
        ends = [sync for part in parts for sync in _syncs(part)]
        queue = CoreQueue([*input_cleans(parts, inputs), call], ends)
        return Job(parts, [queue], inputs, owned=owned, held=[submit])

    def _set_timeout(self, job: Job, timeout_s: float) -> None:
        (submit,) = job.held
        submit.timeout = int(timeout_s * 1000)

    def elapsed_ns(self, job: Job) -> int | None:
        """Return the time from the first command to the interrupt, measured by the driver."""
        (submit,) = job.held
        return int(submit.hw_elapse_time)

    def reset(self) -> None:
        """Reset all cores.

        Raises:
            DriverError: The reset failed.
        """
        argument = ffi().new("struct rknpu_action *", {"flags": uapi.RESET})
        self._space.system.ioctl(self._space.fd, uapi.ACTION, argument)


def _fill(table: Any, parts: Sequence[CorePart], profile: Profile) -> None:
    """Write an entry for each task to *table*, core after core."""
    step = stride(profile) * 8
    i = 0
    for part in parts:
        for place in range(part.count):
            table[i] = {
                "enable_mask": profile.enable.value,
                "int_mask": uapi.INT_MASK,
                "int_clear": uapi.INT_CLEAR,
                "regcfg_amount": profile.words - TAIL,
                "regcmd_addr": part.program.address + place * step,
            }
            i += 1


def _submit(parts: Sequence[CorePart], tasks: Suballocation, domain: int) -> Any:
    """Return the request that runs each part on its core."""
    submit = ffi().new("struct rknpu_submit *", {
        "flags": uapi.PC | uapi.PINGPONG,
        "task_number": sum(part.count for part in parts),
        "task_obj_addr": tasks.buffer.cookie,
        "iommu_domain_id": domain,
        "core_mask": uapi.CORE_MASK[len(parts)],
        "fence_fd": -1,
    })  # fmt: skip
    start = tasks.start // TASK_BYTES
    for slot, part in enumerate(parts, uapi.FIRST_SLOT[len(parts)]):
        submit.subcore_task[slot] = {"task_start": start, "task_number": part.count}
        start += part.count
    return submit


def _syncs(part: CorePart) -> list[IoctlCall]:
    """Return the requests that make a core's results visible to the CPU."""
    low = int(part.proof.results[:, 0].min())
    high = int(part.proof.results[:, 1].max())
    return [
        sync_of(
            buffer,
            max(low - buffer.address, 0),
            min(high - buffer.address, buffer.nbytes),
            uapi.FROM_DEVICE,
        )
        for buffer in part.writes
    ]
