"""Make programs: the command words of a sequence of tasks, with addresses.

Tasks of equal shape share a template, so few numpy operations make a program of many tasks.  New
addresses change only three words of each task.
"""

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError
from npurt.rknpu.isa import regcmd
from npurt.rknpu.isa.formats import ATOM
from npurt.rknpu.isa.lower import Profile, fields
from npurt.rknpu.isa.regs import REG
from npurt.rknpu.isa.task import Task

U64 = npt.NDArray[np.uint64]

ALIGNMENT = 64  # bytes; Mesa starts each task of a program on a cache line

# The registers that hold the addresses of A, B and C.
ADDRESSES = ("CNA_FEATURE_DATA_ADDR", "CNA_DCOMP_ADDR0", "DPU_DST_BASE_ADDR")


def stride(profile: Profile) -> int:
    """Return the number of words from the start of a task to the start of the next."""
    line = ALIGNMENT // 8
    return -(-profile.words // line) * line


@functools.cache
def address_words(profile: Profile) -> tuple[int, ...]:
    """Return the indices of a task's words that write `ADDRESSES`."""
    return tuple(profile.order.index(REG[name]) for name in ADDRESSES)


@functools.lru_cache(maxsize=4096)
def template(task: Task, profile: Profile) -> U64:
    """Return a task's words ``[stride]``, filled up with zeros.

    All addresses are 0, and the task does not start another.

    Raises:
        LayoutError: The task does not fit CBUF, or a register.
    """
    values = fields(task)
    writes = [register(**values.get(register.name, {})) for register in profile.order]
    words = np.zeros(stride(profile), np.uint64)
    words[: profile.words] = [
        regcmd.encode(write) for write in [*writes, *regcmd.tail(profile.enable)]
    ]
    words.flags.writeable = False
    return words


def link(
    tasks: Sequence[Task],
    addresses: npt.ArrayLike,
    *,
    profile: Profile = Profile.FULL,
    chain_at: int | None = None,
) -> U64:
    """Return the words of *tasks*, ``[T, stride]``.

    Args:
        tasks: The tasks, in order.
        addresses: The addresses of A, B and C of each task ``[T, 3]`` in the NPU's address space.
        profile: The blocks that the tasks start.
        chain_at: The address of the words in a chain, in which each task starts the next; None if
            the driver starts each task.

    Raises:
        LayoutError: An address is not a multiple of 16 below 4 GiB, or a task does not fit.
    """
    words = np.stack([template(task, profile) for task in tasks])
    places = np.asarray(addresses, np.int64)
    bad = (places < 0) | (places >= 1 << 32) | (places % ATOM != 0)
    if bad.any():
        raise LayoutError(
            f"{ADDRESSES[np.argwhere(bad)[0, 1]]} = {places[bad][0]:#x} is no multiple of {ATOM} "
            "below 4 GiB",
            remedy="align each matrix to 64 bytes, and keep buffers below 4 GiB",
        )
    words[:, address_words(profile)] |= places.astype(np.uint64) << 16
    if chain_at is not None:
        chain(words, profile, chain_at)
    return words


def chain(words: U64, profile: Profile, at: int | None) -> None:
    """Write the tails of the tasks in *words* ``[T, stride]``.

    Args:
        words: A program.
        profile: The program's profile.
        at: The address of the words in a chain, in which each task starts the next; None if the
            driver starts each task.
    """
    for i in range(len(words)):
        follows = at is not None and i + 1 < len(words)
        after = (at or 0) + (i + 1) * stride(profile) * 8 if follows else None
        tail = regcmd.tail(profile.enable, after, profile.words)
        words[i, len(profile.order) : profile.words] = [regcmd.encode(w) for w in tail]


def spans(task: Task, a: int, b: int, c: int) -> dict[str, range]:
    """Return the addresses of the whole A, the image of B and the whole C of a task."""
    sizes = {
        "A": (a, task.rows * task.format.in_bytes(task.columns)),
        "B": (b, task.weight_bytes),
        "C": (c, task.rows * task.n * task.format.out_bytes),
    }
    return {name: range(start, start + size) for name, (start, size) in sizes.items()}


def single(task: Task, a: int, b: int, c: int, profile: Profile = Profile.FULL) -> list[int]:
    """Return the words of one task with the addresses of A, B and C, tail included.

    Raises:
        LayoutError: As `link`, or a matrix extends beyond 4 GiB.
    """
    for name, span in spans(task, a, b, c).items():
        if 0 <= span.start < 1 << 32 < span.stop:
            raise LayoutError(
                f"{name} at {span.start:#x} has {len(span)} bytes and extends beyond 4 GiB",
                remedy=f"put it at {(1 << 32) - len(span) & -ALIGNMENT:#x} or below",
            )
    return [int(word) for word in link([task], [[a, b, c]], profile=profile)[0, : profile.words]]
