"""Check an untrusted register program against the buffers that it may access; relocate it.

A program is a list of words: a sequence of tasks with registers in the order of `lower`.  Zeros
fill up each task except the last to `program.stride` words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from npurt.errors import LayoutError
from npurt.rknpu.isa import regcmd
from npurt.rknpu.isa.lower import Profile
from npurt.rknpu.isa.program import ADDRESSES, ALIGNMENT, U64, address_words, stride
from npurt.rknpu.isa.regs import REG, RegWrite
from npurt.rknpu.plan.proof import BufferSpan, Proof, Role, prove

END = 1 << 32  # end of the NPU's address space


@dataclass(frozen=True, slots=True)
class Checked:
    """A program that was proven safe."""

    words: U64  # [T, stride]
    profile: Profile
    chained: bool  # each task starts the next
    proof: Proof


def check(words: Sequence[int], buffers: Sequence[BufferSpan], *, at: int | None = None) -> Checked:
    """Prove that a program accesses only *buffers* and cannot hang the NPU.

    Args:
        words: The words, from `regcmd.parse` or `program.single`.
        buffers: The memory that the NPU may read (`Role.INPUT`) and write (`Role.OUTPUT`).
        at: The address of the program.  By default it follows from the links of a chain; a program
            without a chain gets any free address.

    Raises:
        LayoutError: The proof failed, or the program or a buffer has an invalid address.
    """
    table, profile = tasks_of(words)
    link = regcmd.decode(int(table[0, len(profile.order)]))
    chained = len(table) > 1 and link.offset == REG["PC_BASE_ADDRESS"].offset and link.value > 0
    if at is None:
        at = link.value - stride(profile) * 8 if chained else _free(table.nbytes, buffers)
    program = BufferSpan(at, at + table.nbytes, Role.PROGRAM, "the program")
    spans = sorted([*buffers, program], key=lambda span: span.start)
    for span in spans:
        if not 0 <= span.start < span.end <= END:
            raise LayoutError(
                f"{span.name} ({span.start:#x} .. {span.end:#x}) is empty, or not within the "
                "NPU's 4 GiB of addresses",
                remedy=f"put all of it between 0 and {END:#x}",
            )
    if at % ALIGNMENT:
        raise LayoutError(
            f"the program starts at {at:#x}, which is no multiple of {ALIGNMENT} bytes",
            remedy=f"put it at {at - at % ALIGNMENT:#x}",
        )
    for one, other in pairwise(spans):
        if one.end > other.start:
            raise LayoutError(
                f"{one.name} ({one.start:#x} .. {one.end:#x}) and {other.name} "
                f"({other.start:#x} .. {other.end:#x}) overlap",
                remedy="give the buffers and the program disjoint addresses",
            )
    proof = prove(table, spans, at=at, chained=chained, profile=profile)
    return Checked(table, profile, chained, proof)


def tasks_of(words: Sequence[int]) -> tuple[U64, Profile]:
    """Return the words of a program as ``[T, stride]``, and the program's profile.

    Raises:
        LayoutError: The words are not whole tasks of one profile.
    """
    count = len(words)
    while count and not words[count - 1]:
        count -= 1
    for profile in Profile:
        last, step = profile.words - 1, stride(profile)
        whole = count > last and (count - profile.words) % step == 0
        if whole and _same_register(regcmd.decode(words[last]), profile.enable):
            table = np.zeros(((count - profile.words) // step + 1) * step, np.uint64)
            table[:count] = words[:count]
            return table.reshape(-1, step), profile
    lengths = " or ".join(f"{each.words} ({each.value})" for each in Profile)
    raise LayoutError(
        f"{count} words are not whole matmul tasks of {lengths} words that end with ENABLE",
        remedy="make the program with `npurt regcmd matmul` or npurt.rknpu.isa.program; start each "
        f"task at a multiple of {ALIGNMENT} bytes",
    )


def _same_register(one: RegWrite, other: RegWrite) -> bool:
    return (one.target, one.offset) == (other.target, other.offset)


def relocate(program: Checked, moved: Mapping[BufferSpan, int]) -> U64:
    """Return the words of *program* for moved buffers; *moved* maps buffers to new addresses."""
    words = program.words.copy()
    for i, name in zip(address_words(program.profile), ADDRESSES, strict=True):
        role = Role.OUTPUT if name == "DPU_DST_BASE_ADDR" else Role.INPUT
        for task in words:
            old = regcmd.decode(int(task[i])).value
            (span,) = [s for s in moved if s.role is role and s.start <= old < s.end]
            task[i] = regcmd.encode(REG[name](**{_field(name): old - span.start + moved[span]}))
    return words


def _field(register: str) -> str:
    """Return the name of the only field of a register."""
    (name,) = REG[register].fields
    return name


def _free(nbytes: int, buffers: Sequence[BufferSpan]) -> int:
    """Return the address of *nbytes* free bytes below 4 GiB."""
    for start in (0, *(-(-span.end // ALIGNMENT) * ALIGNMENT for span in buffers)):
        end = start + nbytes
        if end <= END and not any(s.start < end and start < s.end for s in buffers):
            return start
    raise LayoutError(
        f"the buffers leave no {nbytes} bytes below 4 GiB for the program",
        remedy="give smaller buffers",
    )
