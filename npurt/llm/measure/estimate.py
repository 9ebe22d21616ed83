"""Estimate the accuracy of a model on an NPU that rounds its weights.

The relative errors of matrix products are computed from the weights.  Their effect on predictions
depends on the model, so `divergence` measures it: it evaluates a short text in simulation and with
exact arithmetic, and compares the predictions.
"""

import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from npurt.backend.estimates import Rounded, Rounding
from npurt.device.device import F32, F64, Caps, Device, Packed
from npurt.device.device import MatMul as Product
from npurt.graph.ops import ExpertMatMul, MatMul, Precision
from npurt.graph.weights import products
from npurt.llm.arch.model_builder import ModelGraph, RowsOf
from npurt.llm.arch.reading import describe
from npurt.llm.arch.weights import FileWeights
from npurt.llm.decode.llama import Llama
from npurt.llm.file.gguf import GGUF
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME

TEXT = """The old lighthouse keeper counted the steps as he climbed, as he had done every evening
for thirty-one years: two hundred and seven. At the top he lit the lamp, wrote the hour in the log,
and looked out over the water. A small boat was coming in, low and late.

def mean(values):
    # Return the average of a list of numbers, or 0 when it is empty.
    if not values:
        return 0
    return sum(values) / len(values)

Q: What is the boiling point of water at sea level?
A: 100 degrees Celsius, or 212 degrees Fahrenheit.
"""


@dataclass(frozen=True, slots=True)
class WeightEstimate:
    """The estimate of a weight on the NPU: a matrix, or a stack of experts."""

    tensor: str
    call: str  # equal for weights that one call multiplies by one input
    shape: tuple[int, ...]  # (N, K), or (E, N, K)
    dtype: str  # format in the file
    form: str  # scheme on the NPU, or the format in the file if the NPU does not round weights;
    # for a stack, the most frequent one
    error: float | None  # expected relative mean square error of the products; for a stack, the
    # mean; None if the values of the weight were not read
    nbytes: int  # bytes on the NPU


@dataclass(frozen=True, slots=True)
class Divergence:
    """The difference of a device's predictions from those of exact arithmetic."""

    mean: float  # mean KL divergence in nats, over the tokens of a text
    worst: float  # largest KL divergence
    same_best: float  # fraction of tokens after which the most probable token is the same
    tokens: int


def estimates(path: str | os.PathLike[str], rounding: Rounding) -> Iterator[WeightEstimate]:
    """Yield an estimate for each matrix of a GGUF file on a device that rounds weights.

    Raises:
        ModelFormatError: The file is damaged, or npurt cannot run it.
        NumericsError: A weight holds NaN or infinity.
    """
    with GGUF(path) as file:
        described = describe(file)
        model = described.graph(described.config.n_context)
        weights = FileWeights(file, model)
        for name, op in _on_npu(model):
            tensor, int16 = weights.quantised(name), op.precision is not Precision.ROW8
            parts = [tensor[e] for e in range(len(tensor))] if tensor.ndim == 3 else [tensor]
            rounded = [rounding.rounded(part, int16=int16) for part in parts]
            found = tensor.shape, tensor.dtype
            yield _estimate(weights.source(name).tensor, f"{op.x.name}.{op.role}", *found, rounded)
            weights.release(name)


def expected(model: ModelGraph, rounding: Rounding | None) -> Iterator[WeightEstimate]:
    """Yield the estimates that the header of a file allows, without errors of products.

    Args:
        model: The graph of the model.
        rounding: How the device rounds weights.  Each weight is assumed to have the scheme that
            most weights get.  None: the device keeps the formats of the file.
    """
    for name, op in _on_npu(model):
        *stack, n, k = (dim.size or 0 for dim in op.weight.shape)
        dtype, int16 = op.weight.dtype, op.precision is not Precision.ROW8
        if rounding:
            form, nbytes, _ = rounding.usual(n, k, int16=int16)
        else:
            form, nbytes = dtype, n * BY_NAME[dtype].row_bytes(k)
        source = model.parts.get(name) or RowsOf(name)
        yield WeightEstimate(
            source.tensor, f"{op.x.name}.{op.role}", (*stack, n, k), dtype, form,
            None, math.prod(stack) * nbytes,
        )  # fmt: skip


def _on_npu(model: ModelGraph) -> Iterator[tuple[str, MatMul | ExpertMatMul]]:
    """Yield the products that an NPU computes, with the names of their weights."""
    for name, op in products(model.graph).items():
        if op.precision is not Precision.EXACT:
            yield name, op


def _estimate(
    name: str, call: str, shape: tuple[int, ...], dtype: str, rounded: list[Rounded]
) -> WeightEstimate:
    forms, sizes, errors = zip(*rounded, strict=True)
    ((form, _),) = Counter(forms).most_common(1)
    return WeightEstimate(name, call, shape, dtype, form, fmean(errors), sum(sizes))


def divergence(
    path: str | os.PathLike[str], device: str | Device, text: str = TEXT, *, tokens: int = 512
) -> Divergence:
    """Compare predictions on *device* with exact ones, for the first *tokens* of *text*.

    The KV cache is float32 in both cases, so only products differ.
    """
    with Llama(path, Exact(), n_ctx=512, kv_type="f32", verify="off") as llm:
        ids = llm.tokenize(text)[: min(tokens, llm.n_ctx)]
        exact = _log_softmax(llm.eval(ids))
    with Llama(path, device, n_ctx=512, kv_type="f32", verify="off") as llm:
        other = _log_softmax(llm.eval(ids))
    apart = (np.exp(exact) * (exact - other)).sum(axis=1)
    same = exact.argmax(axis=1) == other.argmax(axis=1)
    return Divergence(float(apart.mean()), float(apart.max()), float(same.mean()), len(ids))


def _log_softmax(logits: F32) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    result: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = wide - np.log(
        np.exp(wide).sum(axis=1, keepdims=True)
    )
    return result


class ExactPacked(Packed):
    """A weight in the format of the file."""

    def __init__(self, device: "Exact", tensor: QTensor) -> None:
        self.device = device
        self.tensor = tensor

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.tensor.nbytes


class Exact(Device):
    """A device that multiplies dequantised weights in float32 with numpy, slowly and exactly."""

    SLICE = 4096  # rows of a weight that are dequantised at a time

    def __init__(self) -> None:
        self.caps = Caps("exact", "numpy, float32", simulated=False)

    def why_not(self, op: Product) -> str | None:
        """Return None: it supports every product."""
        return None

    def pack(self, tensor: QTensor, *, int16: bool | None = False) -> ExactPacked:
        """Return *tensor*, unchanged, as a packed weight."""
        return ExactPacked(self, tensor)

    def matmul(self, x: F32, w: Packed, out: F32) -> None:
        """Write ``x @ w.T`` to *out*."""
        for start in range(0, w.n, self.SLICE):
            rows = slice(start, start + self.SLICE)
            out[:, rows] = x @ w.tensor[rows].dequantize().T

    def multiplied(self, x: F32, w: Packed) -> F64:
        """Return *x* in float64."""
        return x.astype(np.float64)

    def close(self) -> None:
        """Do nothing."""
