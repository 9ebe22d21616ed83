"""Run a register program that somebody else wrote, with numpy arrays as its buffers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError, SettingError
from npurt.rknpu.driver.base import Driver
from npurt.rknpu.driver.memory import Buffer
from npurt.rknpu.isa.lower import Profile
from npurt.rknpu.plan.check import Checked, check, relocate
from npurt.rknpu.plan.proof import Role, Span

Arrays = Mapping[int, npt.NDArray[Any]]  # by address
TIMEOUT_S = 2.0


def spans_of(inputs: Arrays, outputs: Arrays) -> list[Span]:
    """Return a buffer's span for each array, for `check`.

    Raises:
        LayoutError: An array is empty, holds objects, or does not lie in memory in C order; or an
            output is read-only.
    """
    spans = []
    for role, arrays in ((Role.INPUT, inputs), (Role.OUTPUT, outputs)):
        for address, array in arrays.items():
            name = f"the {role.name.lower()} at {address:#x}"
            if not (array.nbytes and array.flags.c_contiguous):
                raise LayoutError(
                    f"{name} has {array.nbytes} bytes, in C order: {array.flags.c_contiguous}",
                    remedy="give an array with elements; np.ascontiguousarray makes its order C",
                )
            if array.dtype.hasobject:
                raise LayoutError(
                    f"{name} holds objects of Python: {array.dtype}",
                    remedy="give an array of numbers",
                )
            if role is Role.OUTPUT and not array.flags.writeable:
                raise LayoutError(f"{name} is read-only", remedy="give a copy of the array")
            spans.append(Span(address, address + array.nbytes, role, name))
    return spans


def execute(
    driver: Driver,
    words: Sequence[int],
    inputs: Arrays,
    outputs: Arrays,
    *,
    timeout_s: float = TIMEOUT_S,
) -> Checked:
    """Prove a program harmless, run it on the first core, and fill *outputs*.

    The driver chooses the addresses of buffers, so the program is moved to them; the results are
    the same.  Arrays are copied byte by byte, in the layout that the program reads and writes.

    Args:
        driver: The opened NPU; see `detect.open_driver`.
        words: As `regcmd.parse` or `program.single` returns them.
        inputs: What the program reads, by the address that it has in *words*.
        outputs: Arrays for what it writes, by address; what it does not write becomes 0.
        timeout_s: How long the program may take.

    Returns:
        What was proven of the program.

    Raises:
        SettingError: *timeout_s* is not more than 0.
        LayoutError: The program is not proven harmless; nothing was submitted.
        DeviceFull: There is no room for the buffers.
        DriverError: The NPU failed.
    """
    if not timeout_s > 0:
        raise SettingError(
            f"a timeout of {timeout_s:g} s is no time", remedy="give seconds, such as 2"
        )
    spans = spans_of(inputs, outputs)
    program = check(words, spans)
    if program.profile is Profile.SHORT and not driver.chained:
        raise LayoutError(
            f"a program without DPU_RDMA may hang the NPU under the driver {driver.name}",
            remedy="write the program with profile full, or use the vendor's driver",
        )
    contents = dict(zip(spans, [*inputs.values(), *outputs.values()], strict=True))
    buffers: dict[Span, Buffer] = {}
    try:
        for span, array in contents.items():
            buffers[span] = driver.spaces[0].alloc(array.nbytes, span.role, span.name)
            with buffers[span].cpu_access(write=True) as memory:
                memory[: array.nbytes] = 0 if span.role is Role.OUTPUT else _bytes(array)
        moved = {span: buffer.address for span, buffer in buffers.items()}
        job = driver.prepare_words(relocate(program, moved), program.profile)
        try:
            driver.run(job, timeout_s)
        finally:
            job.free()
        for span, array in contents.items():
            if span.role is Role.OUTPUT:
                with buffers[span].cpu_access(write=False) as memory:
                    _bytes(array)[:] = memory[: array.nbytes]
    finally:
        for buffer in buffers.values():
            buffer.free()
    return program


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)
