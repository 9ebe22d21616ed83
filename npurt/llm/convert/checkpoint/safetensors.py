"""Read checkpoints in the safetensors format with memory-mapped files.

A file consists of the length of the header (8 bytes, little-endian), the header, and the data.  The
header is a JSON object: name -> dtype, shape and data range.  The files are untrusted, so every
value is checked.
Source: huggingface/safetensors README, "Format", Apache-2.0.
"""

import json
import math
import mmap
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.base.file_kinds import kind_of
from npurt.base.files import opened
from npurt.errors import ModelFormatError
from npurt.llm.convert.checkpoint.settings import read_json
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME, Format

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
DTYPES = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
BYTES = "U8"  # the dtype of quantised codes
# Limits.  A Qwen3-Next has 74,000 tensors, whose names take 10 MB; weights of images have 5 axes.
MAX_HEADER = 1 << 25  # bytes
MAX_TENSORS = 1 << 18
MAX_NAME = 256  # characters
MAX_AXES = 8
MAX_FILES = 1000
ADAPTERS = ("adapter_model.safetensors",)  # written by peft
SHARD = re.compile(r"(?P<model>.+)-\d{5}-of-(?P<count>\d{5})\.safetensors", re.ASCII | re.DOTALL)
AGAIN = "download the whole folder again"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a checkpoint: its bytes in the mapped file."""

    name: str
    dtype: str  # the name of the type in the file
    shape: tuple[int, ...]
    data: memoryview
    file: str  # the name of the file

    @property
    def format(self) -> Format:
        """The element type.

        Raises:
            ModelFormatError: npurt does not convert this type.
        """
        if self.dtype not in DTYPES:
            raise ModelFormatError(
                f"{self.name} is of type {self.dtype}; npurt converts {', '.join(DTYPES)}",
                remedy="use the checkpoint before quantisation",
            )
        return BY_NAME[DTYPES[self.dtype]]

    def tensor(self, shape: tuple[int, ...] | None = None) -> QTensor:
        """Return the values; *shape* may add or drop axes of length 1.  Errors as `format`."""
        return QTensor.from_bytes(self.data, self.format, self.shape if shape is None else shape)

    def raw(self) -> npt.NDArray[np.uint8]:
        """Return the values of a tensor of bytes.

        Raises:
            ModelFormatError: The tensor has another type.
        """
        if self.dtype != BYTES:
            raise ModelFormatError(
                f"{self.name} is of type {self.dtype}, not {BYTES}", remedy=AGAIN
            )
        return np.frombuffer(self.data, np.uint8).reshape(self.shape)


def read(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of all files of a checkpoint, by name.

    Raises:
        ModelFormatError: A file is missing or damaged, or two files have different tensors of one
            name.
    """
    found: dict[str, StoredTensor] = {}
    for path in files(folder):
        for stored in _tensors(path):
            add(found, stored.name, stored)
        if len(found) > MAX_TENSORS:
            raise _bad(path, f"the checkpoint has more than {MAX_TENSORS} tensors")
    return found


def add(found: dict[str, StoredTensor], name: str, each: StoredTensor) -> None:
    """Add a tensor to *found*, unless it is there with the same content.

    Raises:
        ModelFormatError: *found* has another tensor of this name.
    """
    twin = found.setdefault(name, each)
    if twin is not each and not _identical(twin, each):
        raise ModelFormatError(
            f"the checkpoint has {name} twice with different content: as {twin.name} in "
            f"{twin.file}, and as {each.name} in {each.file}",
            remedy="move the files of another version of the model out of the folder",
        )


def _identical(one: StoredTensor, other: StoredTensor) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape) and np.array_equal(
        np.frombuffer(one.data, np.uint8), np.frombuffer(other.data, np.uint8)
    )


def files(folder: Path) -> list[Path]:
    """Return the paths of a checkpoint's weight files.

    Without an index, these are model.safetensors, a complete set of shards, or the only file.

    Raises:
        ModelFormatError: The folder has no weight files, a shard is missing, or the index is
            damaged.
    """
    index = folder / INDEX
    if not index.exists():
        return _without_index(folder)
    try:
        names = set(read_json(index)["weight_map"].values())
        plain = len(names) <= MAX_FILES and all(Path(name).name == name for name in names)
    except (KeyError, TypeError, AttributeError) as error:
        raise _bad(index, f"the index lists no files ({error!r:.80})") from error
    if not plain:
        raise _bad(index, "the index lists names of files outside its folder")
    missing = sorted(name for name in names if not (folder / name).is_file())
    if missing:
        raise _bad(index, f"these files are missing: {', '.join(missing[:5])}")
    return [folder / name for name in sorted(names)]


def _without_index(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.glob("*.safetensors") if path.name not in ADAPTERS)
    shards = [match for path in found if (match := SHARD.fullmatch(path.name))]
    if folder / WHOLE in found:
        return [folder / WHOLE]
    if len(found) == 1 and not shards:
        return found
    if not found:
        kind = kind_of(folder)
        raise ModelFormatError(
            f"{folder} has no .safetensors file: it is {kind.what}", remedy=kind.remedy
        )
    sets = {(shard["model"], int(shard["count"])) for shard in shards}
    if len(shards) < len(found) or len(sets) > 1:
        raise ModelFormatError(
            f"{folder} has several models: {', '.join(path.name for path in found[:5])}",
            remedy="move the files of one model into a folder, with config.json and tokenizer.json",
        )
    [(model, count)] = sets
    names = [f"{model}-{i + 1:05}-of-{count:05}.safetensors" for i in range(min(count, MAX_FILES))]
    missing = [name for name in names if folder / name not in found]
    if missing:
        raise ModelFormatError(
            f"{folder} lacks {len(missing)} of {count} files: {', '.join(missing[:5])}",
            remedy=f"download the missing files into {folder}",
        )
    return [folder / name for name in names]


def _tensors(path: Path) -> list[StoredTensor]:
    try:
        with opened(path) as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise _bad(path, f"the file cannot be read ({error})") from error
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(MAX_HEADER, len(data) - 8):
        raise _bad(path, f"the header has {size} bytes, the file {len(data)}")
    try:
        entries = json.loads(bytes(data[8 : 8 + size]), object_pairs_hook=_unique)
        entries.pop("__metadata__", None)
        _require_contiguous(path, entries, len(data) - 8 - size)
        return [_stored(path, name, entry, data[8 + size :]) for name, entry in entries.items()]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ModelFormatError):
            raise
        raise _bad(path, f"the header is no table of tensors ({error!r:.80})") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict; raise ValueError if a name occurs twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{twice:.40} occurs twice")
    return found


def _require_contiguous(path: Path, entries: dict[str, Any], size: int) -> None:
    """Raise an error if tensors overlap or bytes belong to no tensor; the format forbids both."""
    end = 0
    for (start, stop), name in sorted((each["data_offsets"], n) for n, each in entries.items()):
        if start != end:
            raise _bad(path, f"{name} begins at {start}, but the previous tensor ends at {end}")
        end = stop
    if end != size:
        raise _bad(path, f"the tensors end at {end}, but the data at {size}")


def _stored(path: Path, name: str, entry: dict[str, Any], data: memoryview) -> StoredTensor:
    dtype, shape = f"{entry['dtype']:.20}", tuple(entry["shape"])
    start, stop = entry["data_offsets"]
    if len(name) > MAX_NAME or len(shape) > MAX_AXES:
        raise _bad(path, f"{name:.40} has {len(name)} characters and {len(shape)} axes")
    if any(type(n) is not int or not 0 <= n < 1 << 63 for n in (start, stop, *shape)):
        raise _bad(path, f"{name} has an impossible shape or data range")
    if not start <= stop <= len(data):
        raise _bad(path, f"{name} ends at {stop}, past the file's {len(data)} bytes of data")
    if dtype in DTYPES or dtype == BYTES:
        size = 1 if dtype == BYTES else BY_NAME[DTYPES[dtype]].block_bytes
        nbytes = math.prod(shape) * size
        if nbytes != stop - start:
            raise _bad(path, f"{name} of shape {shape} takes {nbytes} bytes, not {stop - start}")
    return StoredTensor(name, dtype, shape, data[start:stop], path.name)


def _bad(path: Path, what: str) -> ModelFormatError:
    return ModelFormatError(f"{path.name}: {what}", remedy=AGAIN)
