"""Read an importance matrix: one weight for each column of each matrix.

llama.cpp's llama-imatrix measures the importance of a column: the mean square of the inputs.  The
file is a GGUF file with sums of squares ``NAME.in_sum2`` [matrices, K] and row counts
``NAME.counts`` [matrices, 1], or a file in llama.cpp's legacy format.  The file is untrusted, so
every value is checked.
Source: llama.cpp tools/imatrix/imatrix.cpp (`save_imatrix`, `save_imatrix_legacy`), tools/quantize,
MIT.
"""

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from npurt.base.files import opened, unreadable
from npurt.errors import ModelFormatError, NumericsError
from npurt.llm.convert.checkpoint.settings import content_of
from npurt.llm.file.gguf import GGUF
from npurt.llm.file.header import MAGIC
from npurt.quant.canonical import F32

SUMS, COUNTS = ".in_sum2", ".counts"
MAX_BYTES = 1 << 30  # maximum bytes of a file in the legacy format
AGAIN = "create the importance matrix again with llama-imatrix"

Importance = dict[str, F32]  # name of a tensor -> importance of each column [matrices, K]


def read_importance(path: Path) -> Importance:
    """Return the importance of columns by the name of the tensor.

    All columns of an expert without counted rows have importance 1.

    Raises:
        ModelFormatError: The file cannot be read, or is no importance matrix.
        NumericsError: A value is NaN, infinite or negative.
    """
    try:
        with opened(path) as file:
            is_gguf = file.read(len(MAGIC)) == MAGIC
        found = _read_gguf(path) if is_gguf else dict(_legacy(_content(path)))
    except (OSError, ValueError, struct.error) as error:
        if isinstance(error, (ModelFormatError, NumericsError)):
            raise
        raise ModelFormatError(
            f"{path} cannot be read as an importance matrix: {error}",
            remedy=unreadable(path, error) if isinstance(error, OSError) else AGAIN,
        ) from error
    if not found:
        raise ModelFormatError(f"{path} has no importance values", remedy=AGAIN)
    for name, values in found.items():
        if not np.isfinite(values).all() or (values < 0).any():
            raise NumericsError(
                f"{path}: the importance of {name} holds NaN, infinity or a negative number",
                remedy=AGAIN,
            )
    return found


def fitted(found: Importance, shapes: Mapping[str, tuple[int, ...]], path: Path) -> Importance:
    """Return the importance of the tensors with these *shapes*, each ``[1 or matrices, K]``.

    Raises:
        ModelFormatError: *found* has none of the tensors, or another number of columns for one.
    """
    fit = {}
    if not found.keys() & shapes.keys():
        raise ModelFormatError(
            f"{path} has no tensor of this model; its first tensor is {next(iter(found))}",
            remedy="pass the importance matrix of this model",
        )
    for name in found.keys() & shapes.keys():
        shape = shapes[name]
        matrices = shape[0] if len(shape) > 2 else 1
        values = found[name]
        if values.size in (shape[-1], matrices * shape[-1]):
            fit[name] = values.reshape(-1, shape[-1])
        else:
            raise ModelFormatError(
                f"{path} has {values.size} importance values for {name} of shape {shape}",
                remedy="pass the importance matrix of this model",
            )
    return fit


def _read_gguf(path: Path) -> Importance:
    with GGUF(path) as file:
        return dict(_sums(file))


def _sums(file: GGUF) -> Iterator[tuple[str, F32]]:
    for sums in file:
        name = sums.removesuffix(SUMS)
        if name == sums:
            continue
        if name + COUNTS not in file:
            raise ValueError(f"the file has no {name}{COUNTS}")
        values = file[sums].dequantize().reshape(-1, file.tensors[sums].shape[-1])
        counts = file[name + COUNTS].dequantize().reshape(-1)
        if len(counts) not in (1, len(values)):
            raise ValueError(f"{sums} has {len(values)} rows but {len(counts)} counts")
        yield name, _means(values, counts)


def _means(sums: F32, counts: F32) -> F32:
    """Return *sums* / *counts*, and 1 where the count is 0."""
    rows = np.broadcast_to(counts[:, None], (len(sums), 1))
    return np.asarray(np.where(rows > 0, sums / np.where(rows > 0, rows, 1), 1), np.float32)


# --- The legacy format ----------------------------------------------------------------------------


def _content(path: Path) -> memoryview:
    return memoryview(content_of(path, MAX_BYTES))


def _legacy(data: memoryview) -> Iterator[tuple[str, F32]]:
    """Yield names and values ``[1, matrices * K]``; the format omits the number of matrices."""
    count, at = _integer(data, 0)
    for _ in range(count):
        length, at = _integer(data, at)
        name = bytes(_part(data, at, length)).decode()
        calls, at = _integer(data, at + length)
        number, at = _integer(data, at)
        values = np.frombuffer(_part(data, at, 4 * number), "<f4").astype(np.float32)
        at += 4 * number
        if number:
            yield name, values[None] / np.float32(max(calls, 1))


def _integer(data: memoryview, at: int) -> tuple[int, int]:
    [value] = struct.unpack("<i", _part(data, at, 4))
    return value, at + 4


def _part(data: memoryview, at: int, nbytes: int) -> memoryview:
    if not 0 <= nbytes <= len(data) - at:
        raise ValueError(f"{nbytes} bytes must follow byte {at}, but the file has {len(data)}")
    return data[at : at + nbytes]
