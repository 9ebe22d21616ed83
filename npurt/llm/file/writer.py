"""Write a GGUF file atomically: the file gets its name when it is complete.

Source: ggml docs/gguf.md, MIT.
"""

import errno
import itertools
import math
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npurt.base.files import replacing, require_file
from npurt.errors import NpurtError, SettingError
from npurt.llm.file.header import ARRAY, BOOL, DEFAULT_ALIGNMENT, MAGIC, NUMBERS, STRING
from npurt.models.download import progress_bar
from npurt.quant.blocks import Blocks
from npurt.quant.types import Format

VERSION = 3
U32, F32 = 4, 6  # type numbers of integers and floats, as in llama.cpp's files
_KINDS = {np.dtype(f"<{letter}"): kind for kind, letter in NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to be written.

    Attributes:
        shape: The shape in numpy's order.
        blocks: A function that returns the blocks in pieces; it is called once.
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    blocks: Callable[[], Iterable[Blocks]]

    @property
    def nbytes(self) -> int:
        """The size of the data in bytes."""
        return math.prod(self.shape[:-1]) * self.format.row_bytes(self.shape[-1])


def encoded(key: str, value: Any) -> bytes:
    """Return the encoding of a key and its value in a file.

    Args:
        value: A bool, int (from 0 to 2^32 - 1), float (float32) or str, a list of str, or a numpy
            array of numbers or booleans.
    """
    return _text(key) + _value(value)


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<IB", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", U32, value)
    if isinstance(value, float):
        return struct.pack("<If", F32, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _text(value)
    if isinstance(value, np.ndarray):
        kind = BOOL if value.dtype == bool else _KINDS[value.dtype.newbyteorder("<")]
        return struct.pack("<IIQ", ARRAY, kind, len(value)) + value.tobytes()
    return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(_text, value))


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def header(keys: Iterable[bytes], tensors: Sequence[NewTensor] = ()) -> bytes:
    """Return the bytes of a file before the tensor data.

    Args:
        keys: The encoded keys and values, from `encoded`.
        tensors: The tensors, in the order of their data.
    """
    pairs = list(keys)
    sizes = itertools.accumulate((_padded(t.nbytes) for t in tensors), initial=0)
    table = [
        _text(tensor.name)
        + struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape[::-1])
        + struct.pack("<IQ", tensor.format.number, offset)
        for tensor, offset in zip(tensors, sizes, strict=False)
    ]
    counts = struct.pack("<IQQ", VERSION, len(tensors), len(pairs))
    data = b"".join([MAGIC, counts, *pairs, *table])
    return data.ljust(_padded(len(data)), b"\0")


def _padded(nbytes: int) -> int:
    return -(-nbytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def refuse_source(target: Path, sources: Iterable[Path]) -> None:
    """Raise an error if *target* would overwrite a source file.

    Raises:
        SettingError: *target* is one of *sources*, or a link to one.
    """
    exists = os.path.exists  # False, without an exception, for impossible names
    if exists(target) and any(exists(each) and target.samefile(each) for each in sources):
        raise SettingError(
            f"{target} is a source file",
            remedy="give the new file another name",
        )


def write(
    path: Path, keys: Mapping[str, bytes], tensors: Sequence[NewTensor], *, progress: bool = True
) -> None:
    """Write the file *path*; an existing file is replaced when the new file is complete.

    Args:
        keys: Key -> its encoding by `encoded`, without ``general.alignment``.
        progress: Show a progress bar on standard error, if it is a terminal.

    Raises:
        NpurtError: The disk has too little free space, or the file cannot be written.
    """
    start = header(keys.values(), tensors)
    total = len(start) + sum(_padded(tensor.nbytes) for tensor in tensors)
    try:
        _require_space(path, total)
        with replacing(path) as file, progress_bar(total, progress) as bar:
            file.write(start)
            for tensor in tensors:
                bar.set_description(tensor.name[-30:])
                written = 0
                for blocks in tensor.blocks():
                    data = np.ascontiguousarray(blocks).view(np.uint8).reshape(-1)
                    written += file.write(data.data)
                    bar.update(len(data))
                assert written == tensor.nbytes, f"{tensor.name}: {written} of {tensor.nbytes}"
                file.write(bytes(_padded(written) - written))
    except NpurtError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = "free space, or choose another folder" if full else "choose another name or folder"
        raise NpurtError(
            f"cannot write {path}: {error.strerror or error}",
            remedy=f"{advice}; the incomplete file was removed",
        ) from error


def _require_space(path: Path, nbytes: int) -> None:
    require_file(path)
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise SettingError(
            f"there is no folder {folder}", remedy="create it, or choose another folder"
        )
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise NpurtError(
            f"{path} takes {nbytes / 1e6:.0f} MB, but {folder} has {free / 1e6:.0f} MB free",
            remedy="free space, or choose a folder on another disk or a type with fewer bits",
        )
