"""Choose the type of each tensor of a new file, and encode its values.

As in llama.cpp's files of one plain type (tools/quantize, `llama_tensor_get_type`, MIT), all
matrices have this type, with these exceptions.

- Norms, biases and other vectors, routers and short convolutions are float32.
- The output matrix, or the embedding if it is also the output matrix, is Q6_K when the type has
  less than 8 bits.
- If the row length is no multiple of 256, the type is one with blocks of 32 and at least as many
  bits (Q5_0 for Q4_K, Q5_1 for Q5_K, Q8_0 for Q6_K); if it is no multiple of 32, the type is F16.

`mixture` implements llama.cpp's mixed types (Q4_K_M and so on), which give some layers more bits.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from npurt.errors import NumericsError, SettingError
from npurt.llm.file.writer import NewTensor
from npurt.quant.blocks import Blocks
from npurt.quant.canonical import F32
from npurt.quant.decode import not_finite
from npurt.quant.encode import quantize
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME, FLOATS, Format
from npurt.quant.weighted import quantize_weighted

# Type -> general.file_type: llama.cpp's enum llama_ftype, include/llama.h.
FILE_TYPES = {
    "f32": 0, "f16": 1, "bf16": 32, "q8_0": 7, "q6_k": 18, "q5_k": 16, "q5_1": 9, "q5_0": 8,
    "q4_k": 14, "q4_1": 3, "q4_0": 2, "iq4_nl": 25, "mxfp4": 38,
    "q4_k_m": 15, "q4_k_s": 14, "q5_k_m": 17, "q5_k_s": 16, "mxfp4_moe": 38,  # see `mixture`
}  # fmt: skip
SMALL = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}  # fallbacks for block sizes of 256
EXACT = ("ffn_gate_inp", "ssm_conv1d", "shortconv.conv", "rope_f")  # float32 if in the name
STEP = 1 << 22  # elements decoded to float32 at a time


def chosen(text: str) -> str:
    """Return the name of the file type *text* in lower case.

    Raises:
        SettingError: npurt does not write files of this type.
    """
    name = text.lower()
    if name not in FILE_TYPES:
        raise SettingError(
            f"npurt writes no files of type {text!r}", remedy=f"use one of {', '.join(FILE_TYPES)}"
        )
    return name


def is_matrix(name: str, shape: Sequence[int]) -> bool:
    """Return whether a tensor may be quantised; other tensors are float32."""
    matrix = len(shape) >= 2 and name.endswith(".weight")
    return matrix and not any(part in name for part in EXACT)


def type_of(name: str, shape: Sequence[int], wanted: str, *, tied: bool) -> Format:
    """Return the type of tensor *name* in a file of the plain type *wanted*.

    Args:
        tied: The embedding is also the output matrix.
    """
    if not is_matrix(name, shape):
        return BY_NAME["f32"]
    head = name == "output.weight" or (name == "token_embd.weight" and tied)
    if head and wanted not in (*FLOATS, "q8_0"):
        wanted = "q6_k"
    return fitting(wanted, shape)


def fitting(wanted: str, shape: Sequence[int]) -> Format:
    """Return the type *wanted*, or a fallback type whose block size divides the row length."""
    if shape[-1] % BY_NAME[wanted].block:
        wanted = SMALL.get(wanted, "f16")
    if shape[-1] % BY_NAME[wanted].block:
        wanted = "f16"
    return BY_NAME[wanted]


def new_tensor(
    name: str,
    shape: tuple[int, ...],
    fmt: Format,
    matrices: Callable[[], Iterable[QTensor]],
    importance: F32 | None = None,
) -> NewTensor:
    """Return a tensor that is encoded as *fmt* while the file is written.

    Args:
        matrices: A function that returns the values: one tensor, or the matrices of a stack in
            order.
        importance: The importance of each column, ``[1, K]`` or ``[matrices of the stack, K]``.

    Raises (while the file is written):
        NumericsError: A value is NaN or infinite, or does not fit in the type.
    """
    rows = math.prod(shape[:-1])
    return NewTensor(name, shape, fmt, lambda: _blocks(name, matrices(), fmt, importance, rows))


def _blocks(
    name: str, matrices: Iterable[QTensor], fmt: Format, importance: F32 | None, total: int
) -> Iterator[Blocks]:
    row = 0
    for matrix in matrices:
        rows = matrix.blocks.reshape(-1, matrix.blocks.shape[-1])
        step = max(1, STEP // matrix.shape[-1])
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            weights = None
            if importance is not None:
                each = total // len(importance)  # rows of one matrix of the stack
                weights = importance[np.arange(row, row + len(part)) // each]
            yield _encoded(name, row, QTensor(part, matrix.format), fmt, weights)
            row += len(part)


def _encoded(name: str, row: int, part: QTensor, fmt: Format, weights: F32 | None) -> Blocks:
    """Return the blocks of the rows *part*, which begin at *row* of the tensor *name*."""
    bad = not_finite(part.blocks, part.format).any(axis=-1)
    if bad.any():
        raise NumericsError(
            f"row {row + int(bad.argmax())} of {name} holds NaN or infinity",
            remedy="use other weights of the model: these are damaged, or their training or "
            "merging diverged",
        )
    if part.format is fmt:
        return part.blocks
    try:
        values = part.dequantize()
        return quantize(values, fmt) if weights is None else quantize_weighted(values, fmt, weights)
    except NumericsError as error:
        raise NumericsError(
            f"{name}, from row {row} on: {error.what}",
            remedy="choose f32, which has a larger range"
            if fmt.name == "bf16"
            else "choose bf16 or f32, which have a larger range",
        ) from error
