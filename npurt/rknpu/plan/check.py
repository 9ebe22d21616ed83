"""Check a register program, whoever wrote it, against the buffers that it may touch; move it.

A program is a list of words: one task after another, each as `lower` orders its registers, each but
the last filled up with zeros to `program.stride` words.
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
from npurt.rknpu.plan.proof import Proof, Role, Span, prove

END = 1 << 32  # of the NPU's addresses


@dataclass(frozen=True, slots=True)
class Checked:
    """A program that was proven harmless."""

    words: U64  # [T, stride]
    profile: Profile
    chained: bool  # each task starts the next
    proof: Proof


def check(words: Sequence[int], buffers: Sequence[Span], *, at: int | None = None) -> Checked:
    """Prove that a program touches only *buffers* and cannot hang the NPU.

    Args:
        words: As `regcmd.parse` or `program.single` returns them.
        buffers: What the NPU may read (`Role.INPUT`) and write (`Role.OUTPUT`).
        at: The address of the program.  By default what its tasks say, or any free address when
            there is one task or the driver starts each.

    Raises:
        LayoutError: The program is not proven harmless, or it or a buffer is where none can be; the
            message says why.
    """
    table, profile = tasks_of(words)
    link = regcmd.decode(int(table[0, len(profile.order)]))
    chained = len(table) > 1 and link.offset == REG["PC_BASE_ADDRESS"].offset and link.value > 0
    if at is None:
        at = link.value - stride(profile) * 8 if chained else _free(table.nbytes, buffers)
    program = Span(at, at + table.nbytes, Role.PROGRAM, "the program")
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
            f"the program at {at:#x} is at no multiple of {ALIGNMENT} bytes",
            remedy=f"put it at {at - at % ALIGNMENT:#x}",
        )
    for one, other in pairwise(spans):
        if one.end > other.start:
            raise LayoutError(
                f"{one.name} ({one.start:#x} .. {one.end:#x}) and {other.name} "
                f"({other.start:#x} .. {other.end:#x}) overlap",
                remedy="give each buffer, and the program, addresses of its own",
            )
    proof = prove(table, spans, at=at, chained=chained, profile=profile)
    return Checked(table, profile, chained, proof)


def tasks_of(words: Sequence[int]) -> tuple[U64, Profile]:
    """Return a program as ``[T, stride]``, and its profile.

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


def relocate(program: Checked, moved: Mapping[Span, int]) -> U64:
    """Return the words of *program* after its buffers moved: *moved* has each one's new address."""
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


def _free(nbytes: int, buffers: Sequence[Span]) -> int:
    """Return an address below 4 GiB of *nbytes* that no buffer has."""
    for start in (0, *(-(-span.end // ALIGNMENT) * ALIGNMENT for span in buffers)):
        end = start + nbytes
        if end <= END and not any(s.start < end and start < s.end for s in buffers):
            return start
    raise LayoutError(
        f"the buffers leave no {nbytes} bytes below 4 GiB for the program",
        remedy="give smaller buffers",
    )
