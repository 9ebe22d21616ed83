"""From a file's tensors to weights on devices: checked by name and shape, packed, pages let go."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from npurt.cpu.device import CpuDevice
from npurt.device import F32, Device
from npurt.errors import ModelFormatError
from npurt.llm.arch.architecture import EMBEDDING, Expected, Source
from npurt.llm.gguf import DAMAGED, GGUF
from npurt.quant.tensor import QTensor
from npurt.runtime.placement import Placed, place

FLOATS = ("f32", "f16", "bf16")

# What attention compares, the logits, and the input with the largest outliers: where a device
# rounds a whole row to one scale, it shows there most (docs/decisions/006).
FINE = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_gate", "ffn_down", "output")

# Weights that are multiplied by one input, in one call, have the same value here.
CALLS = {
    **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_gate"), "attn_qkv"),
    **dict.fromkeys(("ffn_gate", "ffn_up"), "ffn_gate_up"),
    **dict.fromkeys(("ffn_gate_shexp", "ffn_up_shexp"), "ffn_gate_up_shexp"),
}

# Products that stay on the CPU: few columns, and an error in them grows.
AT_HOME = ("ffn_gate_inp", "ffn_gate_inp_shexp", "ssm_beta", "ssm_alpha", "ssm_ba", "ssm_conv1d")


def check(file: GGUF, expected: Mapping[str, Expected], ignored: tuple[str, ...] = ()) -> None:
    """Make sure that the file has what it must, in the right shapes, and nothing unknown.

    Args:
        ignored: What names of tensors begin with that may be there and are not used.

    Raises:
        ModelFormatError: It does not.
    """
    missing = [n for n, e in expected.items() if not e.optional and n not in file]
    if missing:
        raise ModelFormatError(
            f"{file.path.name} lacks {_some(missing)}",
            remedy="check that the file is complete and its architecture is what it says",
        )
    unknown = [name for name in file if name not in expected and not name.startswith(ignored)]
    if unknown:
        raise ModelFormatError(
            f"{file.path.name} has {_some(unknown)}, which {file.architecture} does not use here",
            remedy="running without them would give wrong text; use a file of a plain model",
        )
    for name, wanted in expected.items():
        info = file.tensors.get(name)
        if info is None:
            continue
        one_row = wanted.is_weight and info.shape == wanted.shape[1:] and wanted.shape[0] == 1
        if info.shape != wanted.shape and not one_row:
            raise ModelFormatError(
                f"{name} has shape {info.shape}, the configuration says {wanted.shape}",
                remedy="convert the model to GGUF again; its metadata and tensors disagree",
            )
        if not wanted.is_weight and info.format.name not in FLOATS:
            raise ModelFormatError(
                f"{name} is {info.format.name}; vectors must be one of {', '.join(FLOATS)}",
                remedy="convert the model to GGUF again with a current converter",
            )


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest


def numbers(file: GGUF, expected: Mapping[str, Expected]) -> dict[str, F32]:
    """Return what is not multiplied by, float32, by name without ``.weight``; biases keep theirs.

    Raises:
        ModelFormatError: One holds NaN or infinity.
    """
    found = {}
    for name in (n for n, e in expected.items() if n in file and not e.is_weight):
        values = np.ascontiguousarray(file[name].dequantize())
        if not np.isfinite(values).all():
            raise ModelFormatError(f"{name} holds NaN or infinity", remedy=DAMAGED)
        found[name.removesuffix(".weight")] = values
    return found


def matrices(file: GGUF) -> Iterator[tuple[str, QTensor, bool]]:
    """Yield name and tensor of every matrix that a device may get, and whether it is `FINE`.

    Stacks of experts are ``[E, N, K]``.
    """
    names = [n for n, info in file.tensors.items() if len(info.shape) > 1 and n != EMBEDDING]
    if "output.weight" not in file:
        names.append(EMBEDDING)
    for name in names:
        kind = "output" if name == EMBEDDING else kind_of(name.removesuffix(".weight"))
        if kind not in AT_HOME:
            yield name, file[name], kind in FINE


def kind_of(name: str) -> str:
    """Return *name* of a weight without its block: what is alike in all layers."""
    return name.rpartition(".")[2]


def call_of(name: str) -> str:
    """Return what weights that are multiplied by one input have in common."""
    block, dot, kind = name.rpartition(".")
    return f"{block}{dot}{CALLS.get(kind, kind)}"


def load(
    file: GGUF,
    expected: Mapping[str, Expected],
    sources: Mapping[str, Source],
    device: Device,
    cpu: CpuDevice,
    *,
    strict: bool = False,
    progress: Callable[[int], None] = lambda nbytes: None,
) -> dict[str, Placed]:
    """Pack every matrix; return them by name without ``.weight``.

    Args:
        sources: Of weights that have no tensor of their own; other weights are not made of those
            tensors.
        progress: Called with the bytes of each weight once it is packed.

    Raises:
        NotOffloaded: *strict*, and *device* refuses a weight.
    """
    biases = numbers(file, {n: e for n, e in expected.items() if n.endswith(".bias")})
    taken = {source.tensor for source in sources.values()} | {EMBEDDING}
    names = [n for n, e in expected.items() if e.is_weight and n in file and n not in taken]
    found = {n.removesuffix(".weight"): Source(n) for n in names} | dict(sources)
    placed: list[Placed] = []
    for home in (True, False):
        here = [(name, s) for name, s in found.items() if (kind_of(name) in AT_HOME) is home]
        placed += _place(file, here, cpu if home else device, cpu, strict, progress)
    for weight in placed:
        weight.bias = biases.get(f"{weight.name}.bias")
    return {weight.name: weight for weight in placed}


def _place(
    file: GGUF,
    found: Sequence[tuple[str, Source]],
    device: Device,
    cpu: CpuDevice,
    strict: bool,
    progress: Callable[[int], None],
) -> list[Placed]:
    tensors = [(name, _tensor(file, source)) for name, source in found]

    def done(index: int) -> None:
        file.release(found[index][1].tensor)
        progress(tensors[index][1].nbytes)

    fine = {name for name, _ in found if kind_of(name) in FINE}
    return place(tensors, device, cpu, strict=strict, fine=fine, done=done)


def _tensor(file: GGUF, source: Source) -> QTensor:
    tensor = file[source.tensor]
    if tensor.ndim == 1:
        tensor = QTensor(tensor.blocks[None], tensor.format)
    return tensor if source.rows is None else tensor[source.rows]
