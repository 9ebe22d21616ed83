"""Snapshots in files: written whole or not at all, and checked when they are read.

Little endian: magic, version, form of the states of delta nets (0 float32, 1 the integers that
`npurt.delta.STATE_INTEGERS` describes), number of tokens n, how many of them are their own,
identity of the model (32 bytes); the tokens, int32; the arrays of the snapshot in order, whose
shapes follow from the model, the form and n; SHA-256 of everything before.  The file states no
lengths that could be wrong: its size is known before it is read.
"""

import hashlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from npurt.delta import is_state
from npurt.errors import StateFormatError, brief
from npurt.files import opened, replacing
from npurt.llm.state.state import Snapshot, State

MAGIC = b"npurtsta"
VERSION = 3
HEADER = struct.Struct("<8sIIQQ32s")
FORMS = {0: False, 1: True}  # whether states are integers
DIGEST = 32  # bytes of a SHA-256

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class SavedState:
    """What a file says of the state in it.

    Attributes:
        tokens: The tokens that the model had seen.
        model: 32 bytes that identify the model.
        nbytes: The size of the file.
    """

    path: Path
    tokens: tuple[int, ...]
    model: bytes
    nbytes: int


def save(snapshot: Snapshot, path: str | os.PathLike[str]) -> None:
    """Write *snapshot* to *path*, whole or not at all.

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
            remedy="choose a folder that exists, can be written to, and has room for it",
        ) from error


def load(state: State, identity: bytes, n_vocab: int, path: str | os.PathLike[str]) -> Snapshot:
    """Return the snapshot in the file *path*; it fits *state*.

    Raises:
        StateFormatError: There is no such file; it is damaged; it is of another model, another
            version or another kv_type; or it does not fit the context.
    """
    source = _path(path)
    try:
        with opened(source) as file:
            return _read(file, state, identity, n_vocab, source)
    except OSError as error:
        raise StateFormatError(
            f"cannot read a state from {source}: {error.strerror or error}",
            remedy="check the path; files are made by save_state()",
        ) from error


def head_of(path: Path) -> SavedState:
    """Return what the file *path* says of the state in it, which is not checked.

    Raises:
        OSError: The file cannot be read.
        StateFormatError: It is none of ours.
    """
    with opened(path) as file:
        _, _, length, _, whose = _header(file.read(HEADER.size), path)
        size = os.fstat(file.fileno()).st_size
        if length > size // 4:
            raise _wrong(path, f"has {size} bytes for {length} tokens", "delete it: it is damaged")
        tokens = np.frombuffer(file.read(4 * length), "<i4")
    return SavedState(path, tuple(tokens.tolist()), whose, size)


def _header(head: bytes, path: Path) -> tuple[int, int, int, int, bytes]:
    """Return version, form, number of tokens, how many are their own, and the model."""
    if len(head) < HEADER.size or head[: len(MAGIC)] != MAGIC:
        raise _wrong(path, "is not a saved state", "pass a file that save_state() made")
    _, version, form, length, own, whose = HEADER.unpack(head)
    if version != VERSION:
        raise _wrong(path, f"has version {version}, not {VERSION}", "save it again with this npurt")
    return version, form, length, own, whose


def _read(file: BinaryIO, state: State, identity: bytes, n_vocab: int, path: Path) -> Snapshot:
    head = file.read(HEADER.size)
    _, form, length, own, whose = _header(head, path)
    if whose != identity:
        raise _wrong(
            path, "is of another model or kv_type", "open the model that it was saved with"
        )
    if length > state.n_ctx:
        raise _wrong(
            path,
            f"holds {length} tokens, and the context {state.n_ctx}",
            f"open the model with n_ctx={length} or more",
        )
    if form not in FORMS:
        raise _wrong(path, f"has states of a form {form}", "it is damaged: save again")
    integers = FORMS[form]
    layout = [((length,), "<i4"), *state.layout(length, integers=integers)]
    size = HEADER.size + DIGEST + sum(_nbytes(*entry) for entry in layout)
    if os.fstat(file.fileno()).st_size != size:
        raise _wrong(path, f"does not have the {size} bytes it should", "it is damaged: save again")
    digest = hashlib.sha256(head)
    tokens, *arrays = (_array(file, digest, *entry) for entry in layout)
    if file.read(DIGEST) != digest.digest():
        raise _wrong(path, "has a wrong checksum", "it is damaged: save again")
    if not all(_is_sound(array) for array in arrays):
        raise _wrong(path, "holds NaN or infinity", "it is no state to go on from: save again")
    if length and not 0 <= tokens.min() <= tokens.max() < n_vocab:
        raise _wrong(path, "has tokens outside the vocabulary", "it is damaged: save again")
    return Snapshot(tuple(tokens.tolist()), tuple(arrays), own, integers, identity)


def _is_sound(array: Array) -> bool:
    """Return whether a model can continue from *array*; integers are states."""
    return is_state(array) if array.dtype == np.int32 else bool(np.isfinite(array).all())


def _path(path: str | os.PathLike[str]) -> Path:
    try:
        named = Path(path)
        named.name.encode()
    except (TypeError, UnicodeEncodeError):
        named = Path()
    if not named.name or "\0" in str(named):
        raise StateFormatError(
            f"{brief(path, 40)} is no path of a file", remedy="pass one, a str or a Path"
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
