"""Run an untrusted register program, with numpy arrays as its buffers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError, SettingError
from npurt.rknpu.driver.base import Driver
from npurt.rknpu.driver.memory import Buffer
from npurt.rknpu.isa.lower import Profile
from npurt.rknpu.plan.check import Checked, check, relocate
from npurt.rknpu.plan.proof import BufferSpan, Role

Arrays = Mapping[int, npt.NDArray[Any]]  # address in the program -> array
TIMEOUT_S = 2.0


def spans_of(inputs: Arrays, outputs: Arrays) -> list[BufferSpan]:
    """Return the span of a buffer for each array, for `check`.

    Raises:
        LayoutError: An array is empty, has objects as elements, or is not in C order; or an output
            is read-only.
    """
    spans = []
    for role, arrays in ((Role.INPUT, inputs), (Role.OUTPUT, outputs)):
        for address, array in arrays.items():
            name = f"the {role.name.lower()} at {address:#x}"
            if not (array.nbytes and array.flags.c_contiguous):
                raise LayoutError(
                    f"{name} has {array.nbytes} bytes, in C order: {array.flags.c_contiguous}",
                    remedy="pass an array with elements, in C order (np.ascontiguousarray)",
                )
            if array.dtype.hasobject:
                raise LayoutError(
                    f"{name} holds objects of Python: {array.dtype}",
                    remedy="pass an array of numbers",
                )
            if role is Role.OUTPUT and not array.flags.writeable:
                raise LayoutError(f"{name} is read-only", remedy="pass a copy of the array")
            spans.append(BufferSpan(address, address + array.nbytes, role, name))
    return spans


def execute(
    driver: Driver,
    words: Sequence[int],
    inputs: Arrays,
    outputs: Arrays,
    *,
    timeout_s: float = TIMEOUT_S,
) -> Checked:
    """Prove that a program is safe, run it on the first core, and fill *outputs*.

    The driver chooses the addresses of the buffers, and this function relocates the program to
    them.  Arrays are copied byte by byte, in the layout that the program reads and writes.

    Args:
        driver: The opened NPU; see `detect.open_driver`.
        words: The program, from `regcmd.parse` or `program.single`.
        inputs: Arrays that the program reads, by their addresses in *words*.
        outputs: Arrays that the program writes, by their addresses in *words*; bytes that the
            program does not write become 0.
        timeout_s: Longest time of the program.

    Returns:
        The program with its proof.

    Raises:
        SettingError: *timeout_s* is not above 0.
        LayoutError: The proof failed; nothing was submitted.
        DeviceFull: The NPU has no memory for the buffers.
        DriverError: The NPU failed.
    """
    if not timeout_s > 0:
        raise SettingError(
            f"a timeout of {timeout_s:g} s is not above 0", remedy="pass seconds, such as 2"
        )
    spans = spans_of(inputs, outputs)
    program = check(words, spans)
    if program.profile is Profile.SHORT and not driver.chained:
        raise LayoutError(
            f"a program without DPU_RDMA may hang the NPU under the driver {driver.name}",
            remedy="write the program with profile full, or use the vendor's driver",
        )
    contents = dict(zip(spans, [*inputs.values(), *outputs.values()], strict=True))
    buffers: dict[BufferSpan, Buffer] = {}
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
