"""Encode, decode and list command words; make the tail that ends a program.

A word is ``target << 48 | value << 16 | offset``, little-endian in memory.
Sources: Mesa rkt_regcmd.c; Linux drivers/accel/rocket/rocket_job.c; w568w/rknpu-module rknpu_job.c.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from npurt.base.files import parsed
from npurt.errors import LayoutError
from npurt.rknpu.isa import regs
from npurt.rknpu.isa.regs import REG, RegWrite

TAIL = 4  # words: next address, next amount, MARK, ENABLE
_REMEDY = 'give raw little-endian words, or JSON: ["0x0201000000b11040", ...] or {"words": [...]}'
_HEXADECIMAL = re.compile("(0[xX])?[0-9a-fA-F]{1,16}")


def encode(write: RegWrite) -> int:
    """Pack one write into a command word.

    Raises:
        LayoutError: A part does not fit the word, or the value has bits that belong to no field.
    """
    limits = (
        ("target", write.target, 16),
        ("value", write.value, 32),
        ("offset", write.offset, 16),
    )
    for name, part, bits in limits:
        if not 0 <= part < 1 << bits:
            raise LayoutError(
                f"{name} {part:#x} of a command word does not fit in {bits} bits",
                remedy="take the write from npurt.rknpu.isa.regs, which checks each field",
            )
    register = regs.find(write.target, write.offset)
    if register is not None and register.reserved(write.value):
        raise LayoutError(
            f"{register.name} = {write.value:#x} sets reserved bits "
            f"{register.reserved(write.value):#x}",
            remedy=f"set only {', '.join(register.fields) or 'it to 0'}",
        )
    return write.target << 48 | write.value << 16 | write.offset


def decode(word: int) -> RegWrite:
    """Return the register write of a command word, the inverse of `encode`."""
    return RegWrite(target=word >> 48, offset=word & 0xFFFF, value=word >> 16 & 0xFFFF_FFFF)


def amount(words: int) -> int:
    """Return PC_REGISTER_AMOUNTS for a program of *words* words: 128-bit beats minus 1."""
    return (words + 1) // 2 - 1


def tail(enable: RegWrite, next_address: int | None = None, next_words: int = 0) -> list[RegWrite]:
    """Return the words that end a task and start its blocks.

    Args:
        enable: A write of ENABLE.
        next_address: The address, a multiple of 16, of the task that the PC unit starts next; None
            if it starts none.
        next_words: The number of words of the next task.

    Raises:
        LayoutError: *next_address* is not a multiple of 16, or does not fit.
    """
    if next_address is None:
        link = [REG["NOP"](), REG["PC_REGISTER_AMOUNTS"]()]
    elif next_address % 16:
        raise LayoutError(
            f"the next task is at {next_address:#x}, not a multiple of 16",
            remedy="start each task of a chain on a 64-byte boundary",
        )
    else:
        link = [
            REG["PC_BASE_ADDRESS"](pc_source_addr=next_address >> 4),
            REG["PC_REGISTER_AMOUNTS"](pc_data_amount=amount(next_words)),
        ]
    return [*link, REG["MARK"](), enable]


@dataclass(frozen=True, slots=True)
class Line:
    """One word of a listing."""

    word: int
    name: str  # name of the register, or the numbers of an unknown register
    value: int
    fields: dict[str, int]
    reserved: int  # bits set that belong to no field

    def __str__(self) -> str:
        named = [
            f"{name}={value:#x}" if "addr" in name else f"{name}={value}"
            for name, value in self.fields.items()
            if value
        ]
        if self.reserved:
            named.append(f"RESERVED BITS {self.reserved:#x}")
        return f"{self.word:016x}  {self.name:24} {self.value:#010x}  {' '.join(named)}".rstrip()


def describe(word: int) -> Line:
    """Return the register, value and fields that a word writes; an unknown word is marked so."""
    write = decode(word)
    register = regs.find(write.target, write.offset)
    if register is None:
        name = f"unknown {write.target:04x}:{write.offset:04x}"
        return Line(word, name, write.value, {}, 0)
    fields = register.decode(write.value)
    return Line(word, register.name, write.value, fields, register.reserved(write.value))


def parse(data: bytes) -> list[int]:
    """Parse a program: raw words, or a JSON list of hexadecimal words, alone or under ``words``.

    At most half of the words may write unknown registers.  Zeros, which are filler, and words
    after the last ENABLE do not count.

    Raises:
        LayoutError: The data have neither form, or most words write no known register.
    """
    is_json = data.lstrip()[:1] in (b"[", b"{")  # no register has such an offset
    words = _parse_json(data) if is_json else _parse_raw(data)
    _refuse_strangers(words[: _end(words)])
    return words


def _parse_raw(data: bytes) -> list[int]:
    over = len(data) % 8
    if over or not data:
        raise LayoutError(
            f"{len(data)} bytes are not a program of 64-bit words: "
            f"{over} are left over at byte {len(data) - over}",
            remedy=_REMEDY,
        )
    return [int(word) for word in np.frombuffer(data, "<u8")]


def _parse_json(data: bytes) -> list[int]:
    try:
        listed: Any = parsed(data)
    except ValueError as error:
        raise LayoutError(f"not JSON: {error}", remedy=_REMEDY) from error
    if isinstance(listed, dict):
        listed = listed.get("words")
    if not isinstance(listed, list):
        raise LayoutError("JSON with no list of words", remedy=_REMEDY)
    for i, text in enumerate(listed):
        if not isinstance(text, str) or not _HEXADECIMAL.fullmatch(text):
            shown = repr(text[:40]) if isinstance(text, str) else f"a {type(text).__name__}"
            raise LayoutError(
                f"word {i} of the list is {shown}, not at most 64 bits in hexadecimal",
                remedy=_REMEDY,
            )
    return [int(text, 16) for text in listed]


def _end(words: list[int]) -> int:
    """Return the end of the program in *words*: after the last MARK and ENABLE, if any."""
    mark, enable = encode(REG["MARK"]()), REG["ENABLE"]
    for i in range(len(words) - 1, 0, -1):
        if words[i - 1] == mark:
            write = decode(words[i])
            if regs.find(write.target, write.offset) is enable:
                return i + 1
    return len(words)


def _refuse_strangers(words: list[int]) -> None:
    """Raise LayoutError if most nonzero *words* write no known register, or all words are 0."""
    written = [(i, decode(word)) for i, word in enumerate(words) if word]
    if not written:
        raise LayoutError("no word of the program writes a register", remedy=_REMEDY)
    strangers = [i for i, w in written if w.target == 0 or regs.find(w.target, w.offset) is None]
    if 2 * len(strangers) > len(written):
        first = strangers[0]
        raise LayoutError(
            f"word {first}, {words[first]:#018x}, writes no known register; such "
            f"words are {len(strangers)} of {len(written)}: this is no program",
            remedy=_REMEDY,
        )
