"""Read the header of a GGUF file: the metadata as Python values, and the tensor table.

The file is untrusted.  Before the reader allocates memory, it checks every count, length, offset
and type against the size of the file.  The copies of arrays take at most as much memory as the
file.  Other values have fixed limits: names and single strings take up to 4 bytes for each of
`MAX_TEXT` bytes, and the tables of keys and tensors take up to 40 MiB.
Sources: ggml docs/gguf.md; ggml/src/gguf.cpp (limits, what llama.cpp refuses), MIT.
"""

import math
import mmap
import struct
from array import array
from dataclasses import dataclass, replace
from typing import Any

from npurt.errors import ModelFormatError
from npurt.llm.file.metadata import Metadata, optional
from npurt.llm.file.string_array import EVERY, LENGTH, StringArray
from npurt.quant.types import BY_NUMBER, FORMATS, Format

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32  # bytes; gguf.md, general.alignment

# Number of a type -> its format letter for `struct` and memoryview.  All types are little-endian.
NUMBERS: dict[int, Any] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
BOOL, STRING, ARRAY = 7, 8, 9

MAX_DIMS = 4  # GGML_MAX_DIMS
# The largest model files have some 3,000 tensors, 100 keys and arrays of 450,000 strings.  Some
# converters add the content of tokenizer.json as one string of tens of MB.
MAX_TENSORS = 1 << 16
MAX_KEYS = 1 << 12
MAX_STRINGS = 1 << 24  # strings in one array
MAX_TEXT = 1 << 26  # bytes of all names, and of strings outside arrays

DAMAGED = "the file is damaged or incomplete: download it again, or convert the model again"

_U32 = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's shape, format and position in the file.

    Attributes:
        shape: The shape in numpy's order, ``(N, K)`` for a weight; the file has the reverse order.
        offset: The start of the data in bytes from the start of the file.
        nbytes: The size of the data in bytes, without padding.
        part: The index of the file with the data, if the model is split over several files.
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    offset: int
    nbytes: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """The metadata and tensor table of a file.

    Attributes:
        data_offset: The start of the tensor data in bytes from the start of the file.
        spans: Key -> the range of bytes with the key and its value in the file.
    """

    metadata: Metadata
    tensors: dict[str, TensorInfo]
    data_offset: int
    spans: dict[str, slice]


def read_header(data: mmap.mmap | bytes, size: int | None = None) -> Header:
    """Parse the header of a GGUF file.

    Args:
        data: The bytes of the file, or its first bytes.
        size: The size of the whole file in bytes; None if *data* are the whole file.

    Raises:
        ModelFormatError: The header is invalid.
        Incomplete: *data* end within the header.
    """
    size = len(data) if size is None else size
    cursor = _Cursor(data, size)
    _check_version(cursor)
    n_tensors = cursor.count("tensors", MAX_TENSORS, size=8 + 4 + 8 + 4 + 8)
    n_keys = cursor.count("keys", MAX_KEYS, size=8 + 4 + 1)
    metadata, spans = _read_metadata(cursor, n_keys)
    alignment = optional(metadata, "general.alignment", int, DEFAULT_ALIGNMENT)
    if alignment < 8 or alignment & (alignment - 1):
        raise bad(f"general.alignment = {alignment} is not a power of two of at least 8")
    tensors = [_read_tensor(cursor) for _ in range(n_tensors)]
    start = -(-cursor.at // alignment) * alignment
    return Header(metadata, _place(tensors, start, alignment, size), start, spans)


def _check_version(cursor: "_Cursor") -> None:
    magic = cursor.read(4, "the magic")
    if magic != MAGIC:
        raise ModelFormatError(
            f"not a GGUF file: it starts with {magic!r}", remedy="pass a .gguf model file"
        )
    version = cursor.u32()
    if version in VERSIONS:
        return
    if version & 0xFFFF == 0:
        raise ModelFormatError(
            "the file is big-endian", remedy="convert it with `gguf-convert-endian FILE little`"
        )
    raise ModelFormatError(
        f"GGUF version {version} is not one of {VERSIONS}",
        remedy="convert the model again; if the version is newer than 3, update npurt",
    )


def _read_metadata(cursor: "_Cursor", n_keys: int) -> tuple[dict[str, Any], dict[str, slice]]:
    metadata: dict[str, Any] = {}
    spans: dict[str, slice] = {}
    for _ in range(n_keys):
        start = cursor.at
        key = cursor.name("a key")
        if key in metadata:
            raise bad(f"key {key!r} occurs twice")
        metadata[key] = cursor.value(cursor.u32(), key)
        spans[key] = slice(start, cursor.at)
    return metadata, spans


def _read_tensor(cursor: "_Cursor") -> TensorInfo:
    """Read one entry of the tensor table; its offset is relative to the start of the data."""
    name = cursor.name("a tensor name")
    n_dims = cursor.u32()
    if not 1 <= n_dims <= MAX_DIMS:
        raise bad(f"tensor {name!r} has {n_dims} dimensions, not 1 to {MAX_DIMS}")
    shape = tuple(cursor.u64() for _ in range(n_dims))[::-1]
    number = cursor.u32()
    fmt = BY_NUMBER.get(number)
    if fmt is None:
        raise ModelFormatError(
            f"tensor {name!r} is of ggml type {number}, which npurt does not read",
            remedy=f"use a file with only {', '.join(f.name for f in FORMATS)} tensors",
        )
    if 0 in shape or shape[-1] % fmt.block:
        raise bad(f"tensor {name!r} of shape {shape} does not divide into {fmt.name} blocks")
    nbytes = math.prod(shape[:-1]) * fmt.row_bytes(shape[-1])
    return TensorInfo(name, shape, fmt, cursor.u64(), nbytes)


def _place(
    tensors: list[TensorInfo], start: int, alignment: int, size: int
) -> dict[str, TensorInfo]:
    """Return name -> tensor with absolute offsets; check alignment, overlap and the file size."""
    end = 0
    for info in sorted(tensors, key=lambda info: info.offset):
        if info.offset % alignment or info.offset < end:
            raise bad(f"tensor {info.name!r} at {info.offset} is misaligned or overlaps another")
        end = info.offset + info.nbytes
        if start + end > size:
            raise bad(
                f"tensor {info.name!r} ends at {start + end}, past the file's end at {size} bytes"
            )
    placed = {info.name: replace(info, offset=start + info.offset) for info in tensors}
    if len(placed) < len(tensors):
        raise bad("two tensors have the same name")
    return placed


class Incomplete(Exception):
    """The given bytes end within the header, which takes at least *needed* bytes."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


class _Cursor:
    """A reader of consecutive values that never reads past *end*, the size of the file."""

    def __init__(self, data: mmap.mmap | bytes, end: int) -> None:
        self.data = data
        self.end = end
        self.at = 0
        self.text_left = MAX_TEXT

    def read(self, nbytes: int, what: str) -> bytes:
        """Return the next *nbytes* bytes."""
        if nbytes > self.end - self.at:
            raise bad(f"{what} takes {nbytes} bytes at {self.at}, but the file has {self.end}")
        self.at += nbytes
        if self.at > len(self.data):
            raise Incomplete(self.at)
        return self.data[self.at - nbytes : self.at]

    def u32(self) -> int:
        return int(_U32.unpack(self.read(4, "a number"))[0])

    def u64(self) -> int:
        return int(LENGTH.unpack(self.read(8, "a number"))[0])

    def count(self, what: str, limit: int, *, size: int) -> int:
        """Return the next count of *what*, each of which takes at least *size* bytes."""
        count = self.u64()
        if count > limit or count * size > self.end - self.at:
            raise bad(f"{count} {what} do not fit in the file, or are more than {limit}")
        return count

    def text(self, what: str) -> bytes:
        """Return the next string."""
        nbytes = self.u64()
        self.text_left -= nbytes
        if self.text_left < 0 and nbytes <= self.end - self.at:
            raise bad(f"the names and strings up to {what} have more than {MAX_TEXT} bytes")
        return self.read(nbytes, what)

    def name(self, what: str) -> str:
        """Return the next string, which must be UTF-8."""
        text = self.text(what)
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise bad(f"{what} is not UTF-8: {text[:60]!r}") from None

    def value(self, kind: int, key: str) -> Any:
        """Return the next metadata value, of type number *kind*."""
        if kind in NUMBERS:
            return self.numbers(kind, 1, key)[0]
        if kind == BOOL:
            return bool(self.flags(1, key)[0])
        if kind == STRING:
            return self.text(key).decode("utf-8", "surrogateescape")
        if kind == ARRAY:
            return self.array(key)
        raise bad(f"{key!r} is of unknown type {kind}")

    def array(self, key: str) -> Any:
        """Return the next array: a memoryview of numbers or flags, or a `StringArray`.

        Arrays of arrays are refused, as in llama.cpp, because no model has any.
        """
        kind = self.u32()
        if kind in NUMBERS:
            return self.numbers(kind, self.u64(), key)
        if kind == BOOL:
            return self.flags(self.u64(), key)
        if kind == STRING:
            return self.strings(self.count("strings", MAX_STRINGS, size=8))
        raise bad(f"{key!r} is an array of type {kind}, not of numbers, booleans or strings")

    def numbers(self, kind: int, count: int, key: str) -> "memoryview[Any]":
        """Return *count* numbers of type number *kind*."""
        data = self.read(count * struct.calcsize(NUMBERS[kind]), key)
        values: memoryview[Any] = memoryview(data).cast(NUMBERS[kind])
        return values

    def flags(self, count: int, key: str) -> "memoryview[Any]":
        """Return *count* booleans, whose bytes must be 0 or 1."""
        flags = self.read(count, key)
        if flags.count(0) + flags.count(1) < count:
            raise bad(f"{key!r} holds a boolean that is neither 0 nor 1")
        return memoryview(flags).cast("?")

    def strings(self, count: int) -> StringArray:
        """Return *count* strings.

        A vocabulary has up to 300,000 strings, so this loop takes most of the time to open a file.
        """
        data, begin, at, unpack = self.data, self.at, self.at, LENGTH.unpack_from
        starts, longest = array("Q"), 0
        for i in range(0, count, EVERY):
            starts.append(at - begin)
            first = at
            try:
                for _ in range(min(EVERY, count - i)):
                    length = unpack(data, at)[0]
                    at += 8 + length
                    if length > longest:
                        longest = length
            except (struct.error, OverflowError):
                raise self._cut_string(first, i, count) from None
            if at > len(data):
                raise self._cut_string(first, i, count)
        return StringArray(self.read(at - begin, "strings"), starts, count, longest)

    def _cut_string(self, at: int, first: int, count: int) -> Exception:
        """Return the error for the first string that is cut off.

        String number *first* begins at byte *at*; it or a later string is cut off.
        """
        for i in range(first, count):
            what, needed = f"string {i} of {count}", at + 8
            if needed <= len(self.data):
                at = needed = needed + LENGTH.unpack_from(self.data, at)[0]
            if needed > len(self.data):
                break
        return self.cut(needed, what)

    def cut(self, needed: int, what: str) -> Exception:
        """Return the error for *what*, which ends at byte *needed*, past the end of the data."""
        return bad(f"{what} is cut off") if needed > self.end else Incomplete(needed)


def bad(what: str) -> ModelFormatError:
    """Return the error *what* of a damaged file."""
    return ModelFormatError(what, remedy=DAMAGED)
