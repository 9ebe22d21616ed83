"""Batches and replies as bytes: the structs of idl/npurt_msg.h, in numpy.

This module calls no library.  A `BatchMessage` can be sent many times: its fields are views of its
bytes, so they can be changed in place.  tests/hexagon/test_messages.py compares the structs of
Python and C.
"""

import functools
import struct
from collections.abc import Iterable
from enum import IntEnum, IntFlag
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import DeviceFull, DeviceLost, DriverError, NpurtError, NumericsError
from npurt.hexagon.fastrpc.rpcmem import ALIGN, U8
from npurt.hexagon.idl import shared

_OF_THE_HEADER = (
    "PROTOCOL",
    "BATCH_MAGIC",
    "REPLY_MAGIC",
    "CHECK_FACTOR",
    "MAX_OPS",
    "MAX_M",
    "MAX_N",
    "MAX_K",
    "MAX_HEADS",
    "MAX_WIDTH",
)
PROTOCOL: int
BATCH_MAGIC: int
REPLY_MAGIC: int
CHECK_FACTOR: int
MAX_OPS: int
MAX_M: int
MAX_N: int
MAX_K: int
MAX_HEADS: int
MAX_WIDTH: int
ALIGNMENT = ALIGN  # bytes; offsets and the stride of x are multiples of it


def __getattr__(name: str) -> int:
    """Read a number of the header at its first use, so that an import opens no file."""
    if name not in _OF_THE_HEADER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _number(name)


@functools.cache
def _number(name: str) -> int:
    return shared.numbers("idl/npurt_msg.h")[f"NPURT_{name}"]


Words = Iterable[npt.NDArray[np.uint32]]  # arrays of one element


def _words(*names: str) -> list[tuple[str, Any]]:
    return [(name, "<u4") for name in names]


REF = np.dtype([("fd", "<i4"), *_words("offset", "nbytes", "stride")])
_REFS = [("x", REF), ("w", REF), ("y", REF)]
OP = np.dtype([*_words("kind", "flags", "m", "k", "n", "format", "group", "scale"), *_REFS])
BATCH = np.dtype(_words("magic", "protocol", "sequence", "count"))
_REPLY = _words("magic", "sequence", "status", "done", "check", "reserved")
REPLY = np.dtype([*_REPLY, ("pcycles", "<u8")])
# BATCH and REPLY again, for `struct`, which is 10 us faster than numpy
_HEAD, _WHOLE = struct.Struct("<4I"), struct.Struct("<6IQ")


class OpKind(IntEnum):
    """The kind of an op."""

    MATMUL = 1
    DELTA = 2


class OpFlag(IntFlag):
    """Flags of an op; idl/npurt_msg.h describes them."""

    SAME_X = 1
    NEW_W = 2
    GROUPED = 4
    GATES = 8


class Status(IntEnum):
    """The reason for which a batch stopped."""

    BATCH = 1
    OP = 2
    SHAPE = 3
    MAP = 4
    MEMORY = 5
    THREADS = 6
    VALUE = 7
    CACHE = 8


_MEANING = {
    Status.BATCH: "the batch is damaged or of another version",
    Status.OP: "the op has an unknown kind, format, flag or group",
    Status.SHAPE: "a size or stride of the op is not allowed",
    Status.MAP: "memory of the op is not mapped, or misaligned",
    Status.MEMORY: "the DSP has no memory for the activations of the op",
    Status.THREADS: "the DSP could not start threads",
    Status.VALUE: "the activations of the op hold NaN or infinity",
    Status.CACHE: "the operating system of the DSP refused to clean the cache",
}


class BatchMessage:
    """A batch of *count* ops: its bytes, and views of its parts.

    Attributes:
        data: The bytes of the batch.
        head: The first struct, a `BATCH`.
        ops: The ops, an array of `OP`.
    """

    def __init__(self, count: int) -> None:
        self.data = np.zeros(BATCH.itemsize + count * OP.itemsize, np.uint8)
        self.head = self.data[: BATCH.itemsize].view(BATCH)[0]
        self.ops: npt.NDArray[np.void] = self.data[BATCH.itemsize :].view(OP)
        self.head["magic"], self.head["protocol"] = (
            _number("BATCH_MAGIC"),
            _number("PROTOCOL"),
        )
        self.head["count"] = count
        self.ops["kind"] = OpKind.MATMUL

    def next(self) -> None:
        """Give the batch a new number, so that its reply differs from older replies."""
        magic, protocol, sequence, count = _HEAD.unpack_from(self.data.data)
        _HEAD.pack_into(self.data.data, 0, magic, protocol, (sequence + 1) % (1 << 32), count)


def reply() -> U8:
    """Return an empty buffer for a reply."""
    return np.zeros(REPLY.itemsize, np.uint8)


def check(request: BatchMessage, answer: U8, words: Words | None = None) -> int:
    """Check the reply to *request*; return the DSP cycles of the batch, 0 if they are unknown.

    Args:
        request: The batch.
        answer: The reply.
        words: The bits of the last number of each result, as the host reads them.

    Raises:
        DeviceLost: *answer* is damaged or does not belong to *request*, so the call or the reply
            was lost.  Or the DSP wrote other *words*, so the results were lost.
        DeviceFull: The DSP has no memory left.
        NumericsError: The activations hold NaN or infinity.
        DriverError: The DSP refused an op.
    """
    magic, sequence, status, done, check_word, _, pcycles = _WHOLE.unpack_from(answer.data)
    _, _, asked, count = _HEAD.unpack_from(request.data.data)
    if magic != _number("REPLY_MAGIC") or sequence != asked:
        raise _lost(f"the reply to batch {asked} has magic {magic:#x} and batch number {sequence}")
    if not (status in _MEANING and done < max(count, 1) if status else done == count):
        raise _lost(f"the reply is damaged: status {status}, {done} of {count} ops done")
    if status:
        raise _refusal(Status(status), done, count)
    if words is not None and _check_of(words) != check_word:
        raise _lost("the reply arrived, and the results did not")
    return int(pcycles)


def _check_of(words: Words) -> int:
    """Return the checksum of *words*, as npurt_reply defines it."""
    check, factor = 0, _number("CHECK_FACTOR")
    for word in words:
        check ^= word.item()
        check = ((check << 13 | check >> 19) * factor) & 0xFFFF_FFFF
    return check


def _lost(what: str) -> DeviceLost:
    remedy = "nothing, if npurt opens the session again and continues"
    return DeviceLost(what, remedy=remedy, call="execute", code=0)


def _refusal(status: Status, done: int, count: int) -> NpurtError:
    what = f"the DSP stopped at op {done + 1} of {count}: {_MEANING[status]}"
    if status == Status.VALUE:
        return NumericsError(
            what,
            remedy="run it with device 'cpu'; if that fails too, download the model again",
        )
    error, remedy = DriverError, "reinstall npurt; if that does not help, report it"
    if status == Status.CACHE:
        remedy = "update the firmware of the DSP; if that does not help, report it"
    if status in (Status.MEMORY, Status.THREADS):
        error, remedy = DeviceFull, "use a shorter prompt, or smaller batches"
    return error(what, remedy=remedy, call="execute", code=status)
