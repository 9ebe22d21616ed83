"""Estimate the division of a model between NPU and CPU, from the header of its file."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from npurt.backend.estimates import Estimator
from npurt.backend.host_cost import host_product_seconds
from npurt.device.device import MatMul
from npurt.graph.ops import Precision
from npurt.graph.weights import products
from npurt.llm.arch.model_builder import ModelGraph
from npurt.llm.file.config import Config
from npurt.llm.measure.speed import PROMPT
from npurt.quant import types

EXACT = "it must not be rounded"


@dataclass(frozen=True, slots=True)
class Share:
    """The weights that a device multiplies by; the CPU does everything else.

    Attributes:
        device: The name of the device.
        weights: The number of weights; a stack of experts counts as one.
        nbytes: Bytes of these weights on the device.
        others: For each reason why weights stay on the CPU, the number of such weights.
    """

    device: str
    weights: int
    nbytes: int
    others: dict[str, int]


class _WeightShape(NamedTuple):
    """A weight: a matrix, or a stack of experts."""

    op: MatMul  # the product of one row with one matrix
    matrices: int
    exact: bool
    head: bool  # whether only the last token of a run is multiplied by the weight

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        row_bytes = types.BY_NAME[self.op.format].row_bytes(self.op.k)
        return self.matrices * self.op.n * row_bytes


def share_of_cpu(model: ModelGraph) -> Share:
    """Return the share of the CPU if it computes everything."""
    weights = list(_weights(model))
    return Share("cpu", len(weights), sum(weight.nbytes for weight in weights), {})


def share(model: ModelGraph, estimator: Estimator, nbytes: int | None = None) -> Share:
    """Return the share of a device.

    Args:
        model: The graph of the model.
        estimator: The cost model of the device.
        nbytes: The bytes of the weights on the device, if the weights were rounded; by default
            those of the usual schemes.
    """
    others, there = Counter[str](), list[int]()
    for weight in _weights(model):
        reason = EXACT if weight.exact else estimator.why_not(weight.op)
        if reason:
            others[reason] += 1
        else:
            there.append(weight.matrices * estimator.weight_bytes(weight.op))
    total = sum(there) if nbytes is None else nbytes
    return Share(estimator.title, len(there), total, dict(others))


def host_rates(model: ModelGraph, config: Config) -> tuple[float, float]:
    """Return upper bounds of the tokens per second of an RK3588's CPU, for prefill and decode.

    The time includes only matrix products.
    """
    weights = list(_weights(model))

    def rate(tokens: int) -> float:
        return tokens / sum(_seconds(weight, tokens, config) for weight in weights)

    return rate(PROMPT), rate(1)


def _seconds(weight: _WeightShape, tokens: int, config: Config) -> float:
    """Return the seconds of the products with *weight* in a run of *tokens*."""
    rows, times = 1 if weight.head else tokens, 1
    if weight.matrices > 1 and config.experts:
        rows *= config.experts.top_k
        times = min(weight.matrices, rows)
        rows = -(-rows // times)
    return times * host_product_seconds(replace(weight.op, m=rows))


def _weights(model: ModelGraph) -> Iterator[_WeightShape]:
    for op in products(model.graph).values():
        *stack, n, k = (dim.size or 0 for dim in op.weight.shape)
        product = MatMul(1, k, n, op.weight.dtype)
        yield _WeightShape(
            product, math.prod(stack), op.precision is Precision.EXACT, op.role == "output"
        )
