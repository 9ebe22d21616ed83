"""Save snapshots to files atomically, and check them when they are loaded.

The format is little-endian: magic; version; format of the states of delta nets (0 for float32, 1
for the integers of `npurt.device.delta`); number of tokens n; `Snapshot.own`; identity of
the model (32 bytes); the tokens as int32; the arrays of the snapshot in order; SHA-256 of all
preceding bytes.  The model, the format of the states and n determine the shapes of the arrays, so
the expected file size is known before the arrays are read.
"""

import hashlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from npurt.base.files import opened, replacing, unreadable
from npurt.device.delta import is_state
from npurt.errors import StateFormatError, brief
from npurt.llm.state.state import Snapshot, State

MAGIC = b"npurtsta"
VERSION = 3
HEADER = struct.Struct("<8sIIQQ32s")
FORMS = {0: False, 1: True}  # format of the states -> whether they are integers
DIGEST = 32  # bytes of a SHA-256

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class SavedState:
    """The header of a saved state.

    Attributes:
        tokens: The tokens of the state.
        model: 32 bytes that identify the model.
        nbytes: The size of the file.
    """

    path: Path
    tokens: tuple[int, ...]
    model: bytes
    nbytes: int


def save(snapshot: Snapshot, path: str | os.PathLike[str]) -> None:
    """Write *snapshot* to the file *path* atomically.

    Raises:
        StateFormatError: The file cannot be written.
    """
    counts = len(snapshot.tokens), snapshot.own
    parts = [HEADER.pack(MAGIC, VERSION, snapshot.integers, *counts, snapshot.model)]
    parts += [np.array(snapshot.tokens, "<i4").tobytes()]
    parts += [array.tobytes() for array in snapshot.arrays]
    target = _path(path)
    digest = hashlib.sha256()
    try:
        with replacing(target) as file:
            for part in parts:
                digest.update(part)
                file.write(part)
            file.write(digest.digest())
    except OSError as error:
        raise StateFormatError(
            f"cannot write a state to {target}: {error.strerror or error}",
            remedy="choose a folder that exists, is writable and has enough free space",
        ) from error


def load(state: State, identity: bytes, n_vocab: int, path: str | os.PathLike[str]) -> Snapshot:
    """Return the snapshot in the file *path*, after checking that *state* can restore it.

    Raises:
        StateFormatError: The file does not exist or is damaged; it was saved with another model,
            format version or kv_type; or its tokens do not fit in the context.
    """
    source = _path(path)
    try:
        with opened(source) as file:
            return _read(file, state, identity, n_vocab, source)
    except OSError as error:
        raise StateFormatError(
            f"cannot read a state from {source}: {error.strerror or error}",
            remedy=f"{unreadable(source, error)}; save_state() writes these files",
        ) from error


def head_of(path: Path) -> SavedState:
    """Return the header of the saved state in the file *path*; its arrays are not checked.

    Raises:
        OSError: The file cannot be read.
        StateFormatError: The file is not a saved state of this version.
    """
    with opened(path) as file:
        _, _, length, _, model = _header(file.read(HEADER.size), path)
        size = os.fstat(file.fileno()).st_size
        if length > size // 4:
            raise _wrong(path, f"has {size} bytes for {length} tokens", "delete it: it is damaged")
        tokens = np.frombuffer(file.read(4 * length), "<i4")
    return SavedState(path, tuple(tokens.tolist()), model, size)


def _header(head: bytes, path: Path) -> tuple[int, int, int, int, bytes]:
    """Return the version, format of states, number of tokens, `Snapshot.own`, and the model."""
    if len(head) < HEADER.size or head[: len(MAGIC)] != MAGIC:
        raise _wrong(path, "is not a saved state", "pass a file that save_state() made")
    _, version, form, length, own, model = HEADER.unpack(head)
    if version != VERSION:
        raise _wrong(path, f"has version {version}, not {VERSION}", "save it again with this npurt")
    return version, form, length, own, model


def _read(file: BinaryIO, state: State, identity: bytes, n_vocab: int, path: Path) -> Snapshot:
    head = file.read(HEADER.size)
    _, form, length, own, model = _header(head, path)
    if model != identity:
        raise _wrong(
            path,
            "is of another model or kv_type",
            "open the model with which the state was saved",
        )
    if length > state.n_ctx:
        raise _wrong(
            path,
            f"holds {length} tokens, but the context holds only {state.n_ctx}",
            f"open the model with n_ctx={length} or more",
        )
    if form not in FORMS:
        raise _wrong(
            path, f"has states of the unknown format {form}", "the file is damaged: save again"
        )
    integers = FORMS[form]
    layout = [((length,), "<i4"), *state.layout(length, integers=integers)]
    size = HEADER.size + DIGEST + sum(_nbytes(*entry) for entry in layout)
    if os.fstat(file.fileno()).st_size != size:
        raise _wrong(
            path, f"does not have the expected {size} bytes", "the file is damaged: save again"
        )
    digest = hashlib.sha256(head)
    tokens, *arrays = (_array(file, digest, *entry) for entry in layout)
    if file.read(DIGEST) != digest.digest():
        raise _wrong(path, "has a wrong checksum", "the file is damaged: save again")
    if not all(_is_sound(array) for array in arrays):
        raise _wrong(
            path, "holds NaN or infinity", "a model cannot continue from it: save another state"
        )
    if length and not 0 <= tokens.min() <= tokens.max() < n_vocab:
        raise _wrong(path, "has tokens outside the vocabulary", "the file is damaged: save again")
    return Snapshot(tuple(tokens.tolist()), tuple(arrays), own, integers, identity)


def _is_sound(array: Array) -> bool:
    """Return whether all values of *array* are valid; int32 arrays are states of delta nets."""
    return is_state(array) if array.dtype == np.int32 else bool(np.isfinite(array).all())


def _path(path: str | os.PathLike[str]) -> Path:
    try:
        named = Path(path)
        named.name.encode()
    except (TypeError, UnicodeEncodeError):
        named = Path()
    if not named.name or "\0" in str(named):
        raise StateFormatError(
            f"{brief(path, 40)} is no path of a file", remedy="pass a path, as a str or a Path"
        )
    return named


def _nbytes(shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def _array(file: BinaryIO, digest: Any, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    data = file.read(_nbytes(shape, dtype))
    digest.update(data)
    return np.frombuffer(data.ljust(_nbytes(shape, dtype), b"\0"), dtype).reshape(shape)


def _wrong(path: Path, what: str, remedy: str) -> StateFormatError:
    return StateFormatError(f"{path} {what}", remedy=remedy)
