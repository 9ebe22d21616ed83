"""Add the matrix products of LoRA adapters to a model's graph (docs/decisions/028)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from npurt.errors import ModelFormatError
from npurt.graph.ops import Add, MatMul, Op, Precision
from npurt.graph.tensor import Dim, Kind, Tensor
from npurt.llm.arch.model_builder import ModelGraph
from npurt.llm.file.adapter import Adapter, LowRank
from npurt.quant.tensor import QTensor

SHOWN = 3  # names that an error lists


def require_architecture(adapters: Sequence[Adapter], architecture: str) -> None:
    """Raise an error if an adapter was made for another architecture than *architecture*.

    Raises:
        ModelFormatError: An adapter names another architecture.
    """
    for adapter in adapters:
        if adapter.architecture != architecture:
            raise ModelFormatError(
                f"{adapter.name} adapts models of architecture {adapter.architecture}; this model "
                f"has architecture {architecture}",
                remedy="use an adapter that was made for this model",
            )


def adapted(model: ModelGraph, adapters: Sequence[Adapter]) -> ModelGraph:
    """Return *model* with ``factor * B (A x)`` added to each product that an adapter changes.

    Products with the same input and role remain adjacent, so that a device can compute them
    together; the ops of the adapters follow the last of these products.

    Raises:
        ModelFormatError: An adapter changes a tensor other than a matrix in a layer, or its shape
            differs from the shape of the weight.
    """
    products = {
        op.weight.name: op
        for op in model.graph.ops
        if isinstance(op, MatMul) and op.role != "output" and op.weight.name not in model.parts
    }
    for adapter in adapters:
        _require_fit(adapter, products)
    rewriting = _Rewriting(adapters, products)
    for op in model.graph.ops:
        rewriting.add(op)
    graph = replace(model.graph, ops=tuple(rewriting.ops)).check()
    return replace(model, graph=graph, extra={**model.extra, **rewriting.weights})


def _require_fit(adapter: Adapter, products: Mapping[str, MatMul]) -> None:
    unknown = [name for name in adapter.parts if name not in products]
    if unknown:
        more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
        raise ModelFormatError(
            f"{adapter.name} changes {', '.join(unknown[:SHOWN])}{more}; npurt adapts only the "
            "matrices in the layers of this model, no embedding, output matrix, expert or norm",
            remedy="use an adapter for this model that changes only matrices in its layers; or "
            "merge the adapter into the weights before conversion",
        )
    for name, part in adapter.parts.items():
        wanted = tuple(dim.size for dim in products[name].weight.shape)
        found = (part.b.shape[0], part.a.shape[1])
        if found != wanted:
            raise ModelFormatError(
                f"{adapter.name} adapts {name} of shape {found}; this model has shape {wanted}",
                remedy="use an adapter that was made for this model",
            )


class _Rewriting:
    """The op list of the adapted graph while it is built.

    Attributes:
        ops: The ops added so far.
        weights: The matrices of the adapters, by their tensor names in `ops`.
    """

    def __init__(self, adapters: Sequence[Adapter], products: Mapping[str, MatMul]) -> None:
        self._adapters = adapters
        self._products = products
        self._last = {(op.x.name, op.role): op.name for op in products.values()}
        self._waiting: list[MatMul] = []  # products whose adapter ops are not added yet
        self._renamed: dict[str, Tensor] = {}  # name of a product's output -> the adapted output
        self.ops: list[Op] = []
        self.weights: dict[str, QTensor] = {}

    def add(self, op: Op) -> None:
        """Add *op*, with adapted inputs, and the ops of adapters.

        The ops of adapters follow the last product with the same input and role.
        """
        names = {tensor.name for tensor in op.reads}
        if not names.isdisjoint(product.out.name for product in self._waiting):
            self._flush()
        reads = {field: getattr(op, field) for field in op.READS}
        changed: dict[str, Any] = {
            field: self._renamed[tensor.name]
            for field, tensor in reads.items()
            if isinstance(tensor, Tensor) and tensor.name in self._renamed
        }
        current = replace(op, **changed) if changed else op
        self.ops.append(current)
        if isinstance(op, MatMul) and isinstance(current, MatMul):
            if op.weight.name in self._products:
                self._waiting.append(current)
            if self._last.get((op.x.name, op.role)) == op.name:
                self._flush()

    def _flush(self) -> None:
        """Add the adapters' ops for all waiting products.

        The three ops of one product are adjacent, so that the ops of the next product can reuse
        their buffers.
        """
        for product in self._waiting:
            out = product.out
            for i, adapter in enumerate(self._adapters):
                part = adapter.parts.get(product.weight.name)
                if part and part.factor:
                    added = self._added(product, out, i, part)
                    out = added[-1].out
                    self.ops += added
            if out is not product.out:
                self._renamed[product.out.name] = out
        self._waiting.clear()

    def _added(
        self, product: MatMul, out: Tensor, i: int, part: LowRank
    ) -> tuple[MatMul, MatMul, Add]:
        """Return the ops that add ``factor * B (A x)`` to *out*."""
        name = f"{product.name}.lora{i}"
        rank, columns = Dim("R", part.a.shape[0]), product.weight.shape[0]
        a = Tensor(f"{name}_a.weight", (rank, product.weight.shape[1]), "f32", Kind.WEIGHT)
        b = Tensor(f"{name}_b.weight", (columns, rank), "f32", Kind.WEIGHT)
        self.weights |= {a.name: part.a, b.name: part.b}
        low = Tensor(f"{name}_a", (*out.shape[:-1], rank))
        high = Tensor(f"{name}_b", out.shape)
        exact = Precision.EXACT  # A and B are small and unquantised: the host multiplies by them
        return (
            MatMul(low.name, product.x, a, None, low, "lora_a", exact),
            MatMul(high.name, low, b, None, high, "lora_b", exact),
            Add(name, out, high, Tensor(name, out.shape), part.factor),
        )
