"""Which type each tensor of a new file gets, and its values in it.

The types are those of llama.cpp's files of one plain type (tools/quantize, `llama_tensor_get_type`,
MIT): all matrices have it, with these exceptions.

- Norms, biases and other vectors, routers and short convolutions are float32.
- The output matrix, or the embedding where that is the output matrix too, is Q6_K when the type has
  less than 8 bits.
- A row that does not divide into blocks of 256 has blocks of 32 instead, with at least as many bits
  (Q4_K: Q5_0, Q5_K: Q5_1, Q6_K: Q8_0); one that does not divide into these either is F16.

llama.cpp's mixed files (Q4_K_M and so on) give some layers more bits.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from npurt.errors import NumericsError, SettingError
from npurt.llm.file.writer import NewTensor
from npurt.quant.decode import not_finite
from npurt.quant.encode import quantize
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME, Blocks, Format

# Type -> general.file_type: llama.cpp's enum llama_ftype, include/llama.h.
FILE_TYPES = {
    "f32": 0, "f16": 1, "bf16": 32, "q8_0": 7, "q6_k": 18, "q5_k": 16, "q5_1": 9, "q5_0": 8,
    "q4_k": 14, "q4_1": 3, "q4_0": 2, "iq4_nl": 25,
}  # fmt: skip
FLOATS = ("f32", "f16", "bf16")
SMALL = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}  # for rows without whole blocks
EXACT = ("ffn_gate_inp", "ssm_conv1d", "shortconv.conv", "rope_f")  # in names; float32 as vectors
STEP = 1 << 22  # elements that are float32 at a time


def chosen(text: str) -> str:
    """Return the name of a type that users may write in capitals.

    Raises:
        SettingError: npurt writes no such files.
    """
    name = text.lower()
    if name not in FILE_TYPES:
        raise SettingError(
            f"npurt writes no files of type {text!r}", remedy=f"use one of {', '.join(FILE_TYPES)}"
        )
    return name


def type_of(name: str, shape: Sequence[int], wanted: str, *, tied: bool) -> Format:
    """Return the type of tensor *name* in a file of type *wanted*.

    Args:
        tied: The embedding is the output matrix.
    """
    if len(shape) < 2 or not name.endswith(".weight") or any(part in name for part in EXACT):
        return BY_NAME["f32"]
    head = name == "output.weight" or (name == "token_embd.weight" and tied)
    if head and wanted not in (*FLOATS, "q8_0"):
        wanted = "q6_k"
    if shape[-1] % BY_NAME[wanted].block:
        wanted = SMALL.get(wanted, "f16")
    if shape[-1] % BY_NAME[wanted].block:
        wanted = "f16"
    return BY_NAME[wanted]


def new_tensor(
    name: str, shape: tuple[int, ...], fmt: Format, matrices: Callable[[], Iterable[QTensor]]
) -> NewTensor:
    """Return a tensor that is encoded as *fmt* while it is written.

    Args:
        matrices: Returns its values: one tensor, or those of a stack in order.

    Raises (when it is written):
        NumericsError: A value is NaN or infinite, or does not fit in the type.
    """
    return NewTensor(name, shape, fmt, lambda: _blocks(name, matrices(), fmt))


def _blocks(name: str, matrices: Iterable[QTensor], fmt: Format) -> Iterator[Blocks]:
    before = 0  # rows of the matrices before
    for matrix in matrices:
        rows = matrix.blocks.reshape(-1, matrix.blocks.shape[-1])
        step = max(1, STEP // matrix.shape[-1])
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            bad = not_finite(part, matrix.format).any(axis=-1)
            if bad.any():
                raise NumericsError(
                    f"row {before + start + int(bad.argmax())} of {name} holds NaN or infinity",
                    remedy="take other weights of the model: these are damaged, or their training "
                    "or merging diverged",
                )
            if matrix.format is fmt:
                yield part
                continue
            try:
                yield quantize(QTensor(part, matrix.format).dequantize(), fmt)
            except NumericsError as error:
                raise NumericsError(
                    f"{name}, from row {before + start} on: {error.what}",
                    remedy="choose f32, which holds more"
                    if fmt.name == "bf16"
                    else "choose bf16 or f32, which hold more",
                ) from error
        before += len(rows)
