"""From a file's tensors to weights on devices: checked by name and shape, packed, pages let go."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from npurt.cpu.device import CpuDevice
from npurt.device import F32, Device
from npurt.errors import ModelFormatError
from npurt.llm.arch.decoder import Expected
from npurt.llm.gguf import DAMAGED, GGUF
from npurt.quant.tensor import QTensor
from npurt.runtime.placement import Placed, place

FLOATS = ("f32", "f16", "bf16")
EMBEDDING = "token_embd.weight"

# What attention compares, the logits, and the input with the largest outliers: where a device
# rounds a whole row to one scale, it shows there most (docs/decisions/006).
FINE = ("attn_q", "attn_k", "attn_v", "attn_qkv", "ffn_down", "output")


def check(file: GGUF, expected: Mapping[str, Expected]) -> None:
    """Make sure that the file has what it must, in the right shapes, and nothing unknown.

    Raises:
        ModelFormatError: It does not.
    """
    missing = [n for n, e in expected.items() if not e.optional and n not in file]
    if missing:
        raise ModelFormatError(
            f"{file.path.name} lacks {_some(missing)}",
            remedy="check that the file is complete and its architecture is what it says",
        )
    unknown = [name for name in file if name not in expected]
    if unknown:
        raise ModelFormatError(
            f"{file.path.name} has {_some(unknown)}, which {file.architecture} does not use here",
            remedy="running without them would give wrong text; use a file of a plain model",
        )
    for name, info in file.tensors.items():
        if info.shape != expected[name].shape:
            raise ModelFormatError(
                f"{name} has shape {info.shape}, the configuration says {expected[name].shape}",
                remedy="convert the model to GGUF again; its metadata and tensors disagree",
            )
        if len(info.shape) == 1 and info.format.name not in FLOATS:
            raise ModelFormatError(
                f"{name} is {info.format.name}; vectors must be one of {', '.join(FLOATS)}",
                remedy="convert the model to GGUF again with a current converter",
            )


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest


def vectors(file: GGUF) -> dict[str, F32]:
    """Return the 1-D tensors, float32, by name without ``.weight``; biases keep ``.bias``.

    Raises:
        ModelFormatError: One holds NaN or infinity.
    """
    found = {}
    for name, info in file.tensors.items():
        if len(info.shape) == 1:
            values = np.ascontiguousarray(file[name].dequantize())
            if not np.isfinite(values).all():
                raise ModelFormatError(f"{name} holds NaN or infinity", remedy=DAMAGED)
            found[name.removesuffix(".weight")] = values
    return found


def matrices(file: GGUF) -> Iterator[tuple[str, QTensor, bool]]:
    """Yield name and tensor of every matrix that is multiplied, and whether it is `FINE`."""
    names = [n for n, info in file.tensors.items() if len(info.shape) == 2 and n != EMBEDDING]
    if "output.weight" not in file:
        names.append(EMBEDDING)
    for name in names:
        yield name, file[name], _role(name).rpartition(".")[2] in FINE


def _role(name: str) -> str:
    """Return the name of a matrix without ``.weight``; a tied embedding is the output."""
    return "output" if name == EMBEDDING else name.removesuffix(".weight")


def load(
    file: GGUF,
    device: Device,
    cpu: CpuDevice,
    *,
    strict: bool = False,
    progress: Callable[[int], None] = lambda nbytes: None,
) -> dict[str, Placed]:
    """Pack every matrix; return them by name without ``.weight``.

    The head of a tied model is its token embedding, here called ``output``.

    Args:
        progress: Called with the bytes of each tensor once it is packed.

    Raises:
        NotOffloaded: *strict*, and *device* refuses a weight.
    """
    biases = {n.removesuffix(".bias"): v for n, v in vectors(file).items() if n.endswith(".bias")}
    found = list(matrices(file))

    def done(index: int) -> None:
        name = found[index][0]
        file.release(name)
        progress(file.tensors[name].nbytes)

    tensors = [(_role(name), tensor) for name, tensor, _ in found]
    fine = {_role(name) for name, _, wanted in found if wanted}
    placed = place(tensors, device, cpu, strict=strict, fine=fine, done=done)
    for weight in placed:
        weight.bias = biases.get(weight.name)
    return {weight.name: weight for weight in placed}
