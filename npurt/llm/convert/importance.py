"""Read an importance matrix: how much each column of each matrix matters.

llama.cpp's llama-imatrix measures it: the mean square of the inputs of a matrix.  The file is a
GGUF file with sums of squares ``NAME.in_sum2`` [matrices, K] and numbers of rows ``NAME.counts``
[matrices, 1], or one of the older form.  It may come from a stranger: everything is checked.
Source: llama.cpp tools/imatrix/imatrix.cpp (`save_imatrix`, `save_imatrix_legacy`), tools/quantize,
MIT.
"""

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from npurt.errors import ModelFormatError, NumericsError
from npurt.llm.convert.checkpoint.settings import content_of
from npurt.llm.file.gguf import GGUF
from npurt.llm.file.header import MAGIC
from npurt.quant.canonical import F32

SUMS, COUNTS = ".in_sum2", ".counts"
MOST = 1 << 30  # bytes of a file of the older form
AGAIN = "make it again with llama-imatrix"

Importance = dict[str, F32]  # name of a tensor -> [matrices, K]


def read_importance(path: Path) -> Importance:
    """Return the importance of columns by the name of the tensor.

    Columns of experts that no row went to count alike.

    Raises:
        ModelFormatError: The file cannot be read, or is no importance matrix.
        NumericsError: A value is NaN, infinite or below 0.
    """
    try:
        with open(path, "rb") as file:
            is_gguf = file.read(len(MAGIC)) == MAGIC
        found = _read_gguf(path) if is_gguf else dict(_legacy(_content(path)))
    except (OSError, ValueError, struct.error) as error:
        if isinstance(error, (ModelFormatError, NumericsError)):
            raise
        raise ModelFormatError(
            f"{path} cannot be read as an importance matrix: {error}",
            remedy="check the path" if isinstance(error, OSError) else AGAIN,
        ) from error
    if not found:
        raise ModelFormatError(f"{path} has no importances", remedy=AGAIN)
    for name, values in found.items():
        if not np.isfinite(values).all() or (values < 0).any():
            raise NumericsError(
                f"{path}: the importance of {name} holds NaN, infinity or a number below 0",
                remedy=AGAIN,
            )
    return found


def fitted(found: Importance, shapes: Mapping[str, tuple[int, ...]], path: Path) -> Importance:
    """Return the importances of tensors of this model, ``[1 or matrices, K]``.

    Raises:
        ModelFormatError: No tensor of this model has one, or one has another number of columns.
    """
    fit = {}
    if not found.keys() & shapes.keys():
        raise ModelFormatError(
            f"{path} is of no tensor of this model, but of {next(iter(found))} and so on",
            remedy="give the importance matrix of this model",
        )
    for name in found.keys() & shapes.keys():
        shape = shapes[name]
        matrices = shape[0] if len(shape) > 2 else 1
        values = found[name]
        if values.size in (shape[-1], matrices * shape[-1]):
            fit[name] = values.reshape(-1, shape[-1])
        else:
            raise ModelFormatError(
                f"{path} has {values.size} importances for {name} of shape {shape}",
                remedy="give the importance matrix of this model",
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
            raise ValueError(f"it has no {name}{COUNTS}")
        values = file[sums].dequantize().reshape(-1, file.tensors[sums].shape[-1])
        counts = file[name + COUNTS].dequantize().reshape(-1)
        if len(counts) not in (1, len(values)):
            raise ValueError(f"{sums} has {len(values)} rows, and there are {len(counts)} counts")
        yield name, _means(values, counts)


def _means(sums: F32, counts: F32) -> F32:
    """Return *sums* over *counts*; ones where nothing was counted."""
    rows = np.broadcast_to(counts[:, None], (len(sums), 1))
    return np.asarray(np.where(rows > 0, sums / np.where(rows > 0, rows, 1), 1), np.float32)


# --- The older form -------------------------------------------------------------------------------


def _content(path: Path) -> memoryview:
    if path.stat().st_size > MOST:
        raise ValueError(f"it has more than {MOST} bytes")
    return memoryview(content_of(path))


def _legacy(data: memoryview) -> Iterator[tuple[str, F32]]:
    """Yield names and values ``[1, matrices * K]``: the form does not say how many there are."""
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
        raise ValueError(f"{nbytes} bytes must follow byte {at}, but it has {len(data)} in all")
    return data[at : at + nbytes]
