"""Requantise a GGUF file: write it with matrices of another type."""

import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from npurt.errors import ModelFormatError
from npurt.llm.convert.importance import Importance, fitted, read_importance
from npurt.llm.convert.mixture import Override, Types
from npurt.llm.convert.types import FILE_TYPES, chosen, new_tensor
from npurt.llm.file.gguf import GGUF
from npurt.llm.file.writer import encoded, refuse_source, write
from npurt.quant.tensor import QTensor
from npurt.quant.types import FLOATS

MAX_AXES = 3  # axes of a stack of expert matrices
DROPPED = ("general.alignment", "split.no", "split.count", "split.tensors.count")


def requantise(
    source: Path,
    target: Path,
    kind: str,
    *,
    overrides: Sequence[Override] = (),
    importance: Path | None = None,
    progress: bool = True,
) -> int:
    """Write all parts of *source* as the file *target* with matrices of type *kind*.

    The metadata are copied, except for the keys of the type and of the split.  Requantising a
    tensor that is already quantised adds a second rounding error, so a warning is issued.

    Args:
        overrides: Types of some of the tensors.
        importance: An importance matrix; see `npurt.llm.convert.importance`.

    Returns:
        The number of already quantised tensors that now have another type.

    Raises:
        SettingError: npurt does not write this type, *target* is a file of *source*, or an override
            matches no tensor.
        ModelFormatError: *source* or *importance* is damaged, *source* has a tensor of more than 3
            axes, or *importance* is of another model.
        NumericsError: A value is NaN or infinite, or does not fit in the type.
        NpurtError: *target* cannot be written.
    """
    kind = chosen(kind)
    measured = read_importance(importance) if importance else {}
    with GGUF(source) as file:
        refuse_source(target, [*map(Path, file.paths), *([importance] if importance else [])])
        types = Types(kind, file.tensors, file.metadata, overrides)
        shapes = {name: info.shape for name, info in file.tensors.items()}
        weights = fitted(measured, shapes, importance) if importance else {}
        again, tensors = 0, []
        for name, info in file.tensors.items():
            if len(info.shape) > MAX_AXES:
                raise ModelFormatError(
                    f"tensor {name} has {len(info.shape)} axes; tensors of text models have at "
                    f"most {MAX_AXES}",
                    remedy="pass the file of a text model; npurt does not requantise projectors of "
                    "images or audio",
                )
            fmt = types.of(name, info.shape)
            again += info.format.name not in FLOATS and info.format is not fmt
            values = partial(_one, file, name)
            tensors.append(new_tensor(name, info.shape, fmt, values, weights.get(name)))
        if again:
            warnings.warn(
                f"{again} tensors of {source.name} are quantised already; requantising adds a "
                "second rounding error",
                stacklevel=2,
            )
        keys = {key: file.encoded(key) for key in file.metadata if key not in DROPPED}
        keys["general.file_type"] = encoded("general.file_type", FILE_TYPES[kind])
        keys["general.quantization_version"] = encoded("general.quantization_version", 2)
        if importance:
            for key, value in _about(importance, weights).items():
                keys[key] = encoded(key, value)
        write(target, keys, tensors, progress=progress)
    return again


def _one(file: GGUF, name: str) -> list[QTensor]:
    return [file[name]]


def _about(importance: Path, weights: Importance) -> dict[str, str | int]:
    """Return llama.cpp's metadata keys about the importance matrix."""
    return {
        "quantize.imatrix.file": importance.name,
        "quantize.imatrix.entries_count": len(weights),
    }
