"""The batch and its reply as bytes: the structs of idl/npurt_msg.h, in numpy.

Pure: touches no library.  A request is made once for a step that is done many times, its fields
are views of its bytes.  tests/hexagon/test_messages.py compares the two languages.
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
ALIGNMENT = ALIGN  # bytes, of offsets and of the stride of x


def __getattr__(name: str) -> int:
    """Read a number of the header when it is first used: an import opens no file."""
    if name not in _OF_THE_HEADER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _number(name)


@functools.cache
def _number(name: str) -> int:
    return shared.numbers("idl/npurt_msg.h")[f"NPURT_{name}"]


Words = Iterable[npt.NDArray[np.uint32]]  # of one element each


def _words(*names: str) -> list[tuple[str, Any]]:
    return [(name, "<u4") for name in names]


REF = np.dtype([("fd", "<i4"), *_words("offset", "nbytes", "stride")])
_REFS = [("x", REF), ("w", REF), ("y", REF)]
OP = np.dtype([*_words("kind", "flags", "m", "k", "n", "format", "group", "scale"), *_REFS])
BATCH = np.dtype(_words("magic", "protocol", "sequence", "count"))
_REPLY = _words("magic", "sequence", "status", "done", "check", "reserved")
REPLY = np.dtype([*_REPLY, ("pcycles", "<u8")])
_HEAD, _WHOLE = struct.Struct("<4I"), struct.Struct("<6IQ")  # the two again: numpy takes 10 us more


class Kind(IntEnum):
    """The kind of an op."""

    MATMUL = 1
    DELTA = 2


class Flag(IntFlag):
    """Flags of an op: facts that it relies on, and variants of delta nets."""

    SAME_X = 1
    NEW_W = 2
    GROUPED = 4
    GATES = 8


class Status(IntEnum):
    """Why a batch stopped."""

    BATCH = 1
    OP = 2
    SHAPE = 3
    MAP = 4
    MEMORY = 5
    THREADS = 6
    VALUE = 7


_MEANING = {
    Status.BATCH: "the batch is damaged or of another version",
    Status.OP: "it has an unknown kind, format, flag or group",
    Status.SHAPE: "one of its sizes or strides is not allowed",
    Status.MAP: "a part of memory that it names is not mapped, or misaligned",
    Status.MEMORY: "the DSP has no memory for its activations",
    Status.THREADS: "the DSP could not start threads",
    Status.VALUE: "its activations hold NaN or infinity",
}


class Request:
    """A batch of *count* ops: its bytes, and its parts as views of them.

    Attributes:
        data: What is sent.
        head: The first struct, of `BATCH`.
        ops: The ops, of `OP`.
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
        self.ops["kind"] = Kind.MATMUL

    def next(self) -> None:
        """Give the batch a new number, which tells its reply from older ones."""
        magic, protocol, sequence, count = _HEAD.unpack_from(self.data.data)
        _HEAD.pack_into(self.data.data, 0, magic, protocol, (sequence + 1) % (1 << 32), count)


def reply() -> U8:
    """Return room for a reply."""
    return np.zeros(REPLY.itemsize, np.uint8)


def check(request: Request, answer: U8, words: Words | None = None) -> int:
    """Return the DSP cycles that *request* took, 0 where they are not known.

    Args:
        request: What was asked.
        answer: The reply.
        words: The bits of the last number of each result, as the host sees them.

    Raises:
        DeviceLost: *answer* is not the reply to *request*, or damaged: the call or the reply did
            not arrive whole.  Or *words* are not those that the DSP wrote: the reply arrived, and
            the results did not.
        DeviceFull: The DSP has no memory left.
        NumericsError: There is a NaN or an infinity in the activations.
        DriverError: The DSP refused an op.
    """
    magic, sequence, status, done, check_word, _, pcycles = _WHOLE.unpack_from(answer.data)
    _, _, asked, count = _HEAD.unpack_from(request.data.data)
    if magic != _number("REPLY_MAGIC") or sequence != asked:
        raise _lost(f"the reply is not that of batch {asked}: magic {magic:#x}, batch {sequence}")
    if not (status in _MEANING and done < max(count, 1) if status else done == count):
        raise _lost(f"the reply is damaged: status {status}, {done} of {count} ops done")
    if status:
        raise _refusal(Status(status), done, count)
    if words is not None and _check_of(words) != check_word:
        raise _lost("the reply came, and results did not")
    return int(pcycles)


def _check_of(words: Words) -> int:
    """Return the checksum of *words* that a reply has; see npurt_reply."""
    check, factor = 0, _number("CHECK_FACTOR")
    for word in words:
        check ^= word.item()
        check = ((check << 13 | check >> 19) * factor) & 0xFFFF_FFFF
    return check


def _lost(what: str) -> DeviceLost:
    remedy = "nothing, if the session is opened again and goes on"
    return DeviceLost(what, remedy=remedy, call="execute", code=0)


def _refusal(status: Status, done: int, count: int) -> NpurtError:
    what = f"the DSP stopped at op {done + 1} of {count}: {_MEANING[status]}"
    if status == Status.VALUE:
        return NumericsError(what, remedy="check the model file with device 'cpu'")
    error, remedy = DriverError, "reinstall npurt; if that does not help, report it"
    if status in (Status.MEMORY, Status.THREADS):
        error, remedy = DeviceFull, "use a shorter prompt, or smaller batches"
    return error(what, remedy=remedy, call="execute", code=status)
