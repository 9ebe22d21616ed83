"""Open a GGUF file: its metadata as Python values, its tensors as views of the mapped file.

The file may come from a stranger.  Before it allocates memory, the reader checks every count,
length, offset and type against the bytes in the file.  Opening a file takes no more memory than its
own size: arrays are copied, and an array of strings becomes one text with the end of each string
(`StringArray`).  Two parts may take more, up to a limit: names and single texts take up to 4 bytes
for each of their `MAX_TEXT` bytes, and the tables of keys and tensors up to 40 MiB.  The reader
does not check the bytes of tensors.  A split model is read as one: metadata from the first file,
tensors from all.
Sources: ggml docs/gguf.md; ggml/src/gguf.cpp (limits, what llama.cpp refuses), tools/gguf-split
(keys of parts), MIT.
"""

import contextlib
import math
import mmap
import os
import stat
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError, ModelFormatError, SettingError, brief
from npurt.llm.file import parts
from npurt.llm.file.metadata import Metadata, optional, require
from npurt.llm.file.string_array import StringArray
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NUMBER, FORMATS, Format

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32  # bytes; gguf.md, general.alignment

NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
BOOL, STRING, ARRAY = 7, 8, 9

MAX_DIMS = 4  # GGML_MAX_DIMS
# The largest model files have some 3,000 tensors, 100 keys and arrays of 450,000 strings.  Some
# converters add a tokenizer.json, one text of tens of MB.
MAX_TENSORS = 1 << 16
MAX_KEYS = 1 << 12
MAX_STRINGS = 1 << 24  # of one array
CHUNK = 4096  # strings that are read at once
MAX_TEXT = 1 << 26  # bytes of all names, and of strings outside arrays

DAMAGED = "the file is damaged or incomplete: download it again, or convert the model again"

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The place of a tensor in the file.

    Attributes:
        shape: In numpy's order, ``(N, K)`` for a weight; the file has the reverse order.
        offset: Bytes from the start of the file.
        nbytes: Bytes of the data, without padding.
        part: Index of the file that has it, in a model that is split over several.
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    offset: int
    nbytes: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """The metadata and tensor table of a file; its data start *data_offset* bytes into it.

    Attributes:
        spans: Key -> where the file has it and its value.
    """

    metadata: Metadata
    tensors: dict[str, TensorInfo]
    data_offset: int
    spans: dict[str, slice]


class GGUF:
    """A GGUF file, mapped read-only, or all files of a model that is split.

    Tensors are views of the mapping, and stay valid after `close`.  Nobody may truncate the file
    while it is open: the kernel would end the process at the next read.

    Attributes:
        path: The file; of a model that is split, the first one.
        paths: All files.
        metadata: Key -> bool, int, float, str, numpy array or `StringArray`.  Strings that are
            not UTF-8 hold surrogate escapes.
        tensors: Name -> `TensorInfo`, in the files' order.
        data_offset: Where tensor data starts, bytes from the start of the (first) file.

    Raises:
        SettingError: *path* is not a path.
        ModelFormatError: The file cannot be opened, or is not a GGUF file that npurt reads, or a
            part of the model is missing or does not belong to it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            self.path = Path(path)
        except TypeError as error:
            raise SettingError(
                f"{brief(path, 40)} is no path",
                remedy="pass the path of a GGUF file, a str or a Path",
            ) from error
        with contextlib.ExitStack() as stack:
            mapping, header = _open_file(path, stack)
            mappings, headers = [mapping], [(self.path.name, header)]
            for file in parts.others(self.path, header.metadata):
                mapping, header = _open_file(file, stack)
                mappings.append(mapping)
                headers.append((file.name, header))
            self._take(headers)
            stack.pop_all()
        self._mappings = mappings

    def _take(self, headers: Sequence[tuple[str, Header]]) -> None:
        """Take over what the files of the model say, each a name and a header, in order."""
        (name, first), *others = headers
        tensors = first.tensors
        for index, (file, header) in enumerate(others, 1):
            parts.check(file, header.metadata, index, first.metadata)
            _add_tensors(tensors, header, index, file)
        parts.check_total(name, first.metadata, len(tensors))
        self.metadata = first.metadata
        self.tensors = tensors
        self.data_offset = first.data_offset
        self.paths = [self.path.with_name(file) for file, _ in headers]
        self._spans = first.spans

    @property
    def architecture(self) -> str:
        """The model's architecture, such as ``llama``.  ModelFormatError if the file names none."""
        return require(self.metadata, "general.architecture", str)

    def __getitem__(self, name: str) -> QTensor:
        """Return tensor *name* as a view of the file.  ModelFormatError if there is none."""
        info = self._info(name)
        return QTensor.from_bytes(self._view(info), info.format, info.shape)

    def _view(self, info: TensorInfo) -> memoryview:
        """Return the bytes of a tensor."""
        return memoryview(self._mapped(info.part))[info.offset : info.offset + info.nbytes]

    def beginning(self, name: str, most: int) -> bytes:
        """Return the first bytes of tensor *name*, at most *most*.  Errors as `[]`."""
        info = self._info(name)
        return bytes(self._view(replace(info, nbytes=min(most, info.nbytes))))

    def encoded(self, key: str) -> bytes:
        """Return a key and its value as the (first) file has them.

        Raises:
            LayoutError: The file is closed.
            ModelFormatError: There is no such key.
        """
        if not isinstance(key, str) or key not in self._spans:
            raise ModelFormatError(
                f"{self.path.name} has no key {brief(key)}",
                remedy="choose one of the keys in its metadata",
            )
        return self._mapped(0)[self._spans[key]]

    def get(self, name: str) -> QTensor | None:
        """Return tensor *name*, or None if the file has no such tensor."""
        return self[name] if isinstance(name, str) and name in self.tensors else None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def release(self, name: str) -> None:
        """Let the kernel drop the pages that hold only tensor *name*.

        If somebody uses the tensor again, the kernel reads them from the file.  Does nothing on a
        system without madvise.
        """
        info = self._info(name)
        first = -(-info.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (info.offset + info.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last and hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(OSError):  # madvise is a hint
                self._mapped(info.part).madvise(mmap.MADV_DONTNEED, first, last - first)

    def close(self) -> None:
        """Release the mapping, which ends with its last view.  A second call does nothing.

        The mapping is never closed by force: numpy arrays of a memoryview keep it alive but do not
        lock it, and reading an unmapped page would end the process.
        """
        self._mappings = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _info(self, name: str) -> TensorInfo:
        if name not in self:
            raise ModelFormatError(
                f"{self.path.name} has no tensor {brief(name, 80)}",
                remedy="choose one of its tensors, list(file); if the model needs this one, the "
                "file is not complete",
            )
        return self.tensors[name]

    def _mapped(self, part: int) -> mmap.mmap:
        if not self._mappings:
            raise LayoutError(f"{self.path.name} is closed", remedy="open the file again")
        return self._mappings[part]


@contextlib.contextmanager
def errors_of(path: str | os.PathLike[str]) -> Iterator[None]:
    """Have each `ModelFormatError` of the ``with`` body name the file."""
    try:
        yield
    except ModelFormatError as error:
        name = Path(path).name
        if name in error.what:
            raise
        raise ModelFormatError(f"{name}: {error.what}", remedy=error.remedy) from error


def _open_file(
    path: str | os.PathLike[str], stack: contextlib.ExitStack
) -> tuple[mmap.mmap, Header]:
    """Map a file, have *stack* close it, and read its header; errors name the file."""
    mapping = _map(path)
    stack.callback(mapping.close)
    with errors_of(path):
        return mapping, read_header(mapping)


def _add_tensors(tensors: dict[str, TensorInfo], part: Header, index: int, name: str) -> None:
    """Add the tensors of part *index*, the file *name*, to those of the parts before it."""
    if len(tensors) + len(part.tensors) > MAX_TENSORS:
        raise _bad(f"{name}: the model has more than {MAX_TENSORS} tensors")
    for info in part.tensors.values():
        if info.name in tensors:
            raise _bad(f"{name}: tensor {info.name!r} is in an earlier part as well")
        tensors[info.name] = replace(info, part=index)


def _map(path: str | os.PathLike[str]) -> mmap.mmap:
    """Map a regular file, and close its descriptor."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not block
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
            raise _unreadable(path, "it is empty or not a regular file")
        return mmap.mmap(fd, status.st_size, access=mmap.ACCESS_READ)
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(fd)


def _unreadable(path: str | os.PathLike[str], why: object) -> ModelFormatError:
    return ModelFormatError(
        f"cannot open {os.fspath(path) or repr('')}: {why}",
        remedy="pass the path of a .gguf file that you may read",
    )


def read_header(data: mmap.mmap | bytes, size: int | None = None) -> Header:
    """Parse the header of a GGUF file.

    Args:
        data: The bytes of the file, or its first bytes.
        size: Bytes of the whole file, when *data* are only its first ones.

    Raises:
        ModelFormatError: The header is wrong in any respect.
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
        raise _bad(f"general.alignment = {alignment} is not a power of two from 8")
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
            raise _bad(f"key {key!r} is there twice")
        metadata[key] = cursor.value(cursor.u32(), key)
        spans[key] = slice(start, cursor.at)
    return metadata, spans


def _read_tensor(cursor: "_Cursor") -> TensorInfo:
    """Read one row of the tensor table.  Its offset is relative to the start of the data."""
    name = cursor.name("a tensor name")
    n_dims = cursor.u32()
    if not 1 <= n_dims <= MAX_DIMS:
        raise _bad(f"tensor {name!r} has {n_dims} dimensions, not 1 to {MAX_DIMS}")
    shape = tuple(cursor.u64() for _ in range(n_dims))[::-1]
    number = cursor.u32()
    fmt = BY_NUMBER.get(number)
    if fmt is None:
        raise ModelFormatError(
            f"tensor {name!r} is of ggml type {number}, which npurt does not read",
            remedy=f"use a file with {', '.join(f.name for f in FORMATS)} tensors only",
        )
    if 0 in shape or shape[-1] % fmt.block:
        raise _bad(f"tensor {name!r} of shape {shape} does not divide into {fmt.name} blocks")
    nbytes = math.prod(shape[:-1]) * fmt.row_bytes(shape[-1])
    return TensorInfo(name, shape, fmt, cursor.u64(), nbytes)


def _place(
    tensors: list[TensorInfo], start: int, alignment: int, size: int
) -> dict[str, TensorInfo]:
    """Check that tensors are aligned, disjoint and inside the file; make offsets absolute."""
    end = 0
    for info in sorted(tensors, key=lambda info: info.offset):
        if info.offset % alignment or info.offset < end:
            raise _bad(f"tensor {info.name!r} at {info.offset} is misaligned or overlaps another")
        end = info.offset + info.nbytes
        if start + end > size:
            raise _bad(f"tensor {info.name!r} ends at {start + end}, past the {size} bytes there")
    placed = {info.name: replace(info, offset=start + info.offset) for info in tensors}
    if len(placed) < len(tensors):
        raise _bad("two tensors have the same name")
    return placed


class Incomplete(Exception):
    """The header goes on behind the bytes that are there; it has *needed* bytes at least."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


class _Cursor:
    """Reads values in order, and never past the end of a file of *end* bytes."""

    def __init__(self, data: mmap.mmap | bytes, end: int) -> None:
        self.data = data
        self.end = end
        self.at = 0
        self.text_left = MAX_TEXT

    def read(self, nbytes: int, what: str) -> bytes:
        """Return the next *nbytes* bytes."""
        if nbytes > self.end - self.at:
            raise _bad(f"{what} takes {nbytes} bytes at {self.at} of {self.end}")
        self.at += nbytes
        if self.at > len(self.data):
            raise Incomplete(self.at)
        return self.data[self.at - nbytes : self.at]

    def u32(self) -> int:
        return int(_U32.unpack(self.read(4, "a number"))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.read(8, "a number"))[0])

    def count(self, what: str, limit: int, *, size: int) -> int:
        """Return the next count, of items that take at least *size* bytes each."""
        count = self.u64()
        if count > limit or count * size > self.end - self.at:
            raise _bad(f"{count} {what} do not fit in the file, or are more than {limit}")
        return count

    def text(self, what: str) -> bytes:
        """Return the next string."""
        nbytes = self.u64()
        self.text_left -= nbytes
        if self.text_left < 0 and nbytes <= self.end - self.at:
            raise _bad(f"{what} and the names and texts before it have more than {MAX_TEXT} bytes")
        return self.read(nbytes, what)

    def name(self, what: str) -> str:
        """Return the next string, which must be UTF-8."""
        text = self.text(what)
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise _bad(f"{what} is not UTF-8: {text[:60]!r}") from None

    def value(self, kind: int, key: str) -> Any:
        """Return the next metadata value, of type number *kind*."""
        if kind in NUMBERS:
            dtype = NUMBERS[kind]
            return np.frombuffer(self.read(dtype.itemsize, key), dtype)[0].item()
        if kind == BOOL:
            return bool(self.flags(1, key)[0])
        if kind == STRING:
            return self.text(key).decode("utf-8", "surrogateescape")
        if kind == ARRAY:
            return self.array(key)
        raise _bad(f"{key!r} is of unknown type {kind}")

    def array(self, key: str) -> Any:
        """Return the next array: numpy for numbers and flags, `StringArray` for strings.

        Arrays of arrays are refused, as in llama.cpp: no model has any.
        """
        kind = self.u32()
        if kind in NUMBERS:
            dtype = NUMBERS[kind]
            return np.frombuffer(self.read(self.u64() * dtype.itemsize, key), dtype)
        if kind == BOOL:
            return self.flags(self.u64(), key)
        if kind == STRING:
            return self.strings(self.count("strings", MAX_STRINGS, size=8))
        raise _bad(f"{key!r} is an array of type {kind}, not of numbers, booleans or strings")

    def flags(self, count: int, key: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return *count* booleans, whose bytes must be 0 or 1."""
        flags = np.frombuffer(self.read(count, key), np.uint8)
        if flags.max(initial=0) > 1:
            raise _bad(f"{key!r} holds a boolean that is neither 0 nor 1")
        return flags.view(np.bool_)

    def strings(self, count: int) -> StringArray:
        """Return *count* strings.

        A vocabulary has up to 300,000: this loop takes most of the time to open a file.
        """
        data, at, unpack = self.data, self.at, _U64.unpack_from
        end, first = len(data), at + 8  # of the first text
        ends = array("Q", [0]) * (count + 1)
        for i in range(count):
            if at + 8 > end:
                raise self.cut(at + 8, f"string {i} of {count}")
            at += 8 + unpack(data, at)[0]
            if at > end:
                raise self.cut(at, f"string {i} of {count}")
            ends[i + 1] = at - first - 8 * i
        texts = bytearray()
        for i in range(0, count, CHUNK):
            texts += self._texts(np.frombuffer(ends, np.uint64)[i : i + CHUNK + 1], i).data
        self.at = at
        return StringArray(texts, ends)

    def _texts(self, ends: npt.NDArray[np.uint64], first: int) -> npt.NDArray[np.uint8]:
        """Return the texts of strings from number *first* on, without the lengths before them.

        Args:
            ends: Where the texts before and each of these end, in bytes of text.
        """
        starts = (ends - ends[0])[:-1].astype(np.intp) + 8 * np.arange(len(ends) - 1)
        begin = self.at + int(ends[0]) + 8 * first
        nbytes = int(ends[-1] - ends[0]) + 8 * len(starts)
        is_text = np.ones(nbytes, np.bool_)
        for i in range(8):
            is_text[starts + i] = False
        return np.frombuffer(self.data, np.uint8, nbytes, begin)[is_text]

    def cut(self, needed: int, what: str) -> Exception:
        """Return the error for *what*, which ends at *needed*, behind the bytes that are there."""
        return _bad(f"{what} is cut off") if needed > self.end else Incomplete(needed)


def _bad(what: str) -> ModelFormatError:
    return ModelFormatError(what, remedy=DAMAGED)
