"""Verify the ops of a device's segment: products by Freivalds' test, other ops by computing again.

Before a run, `choose` picks ops, whose inputs and results the segment then returns.  A product with
a packed weight is verified as `npurt.device.verify` describes.  All other ops are computed again in
float64 from the same inputs and states, and compared with `COARSE`, because the rounding of the
device is not known: this finds wrong rows and wrong kernels, but no rounding errors.  Of a product
without a packed weight, some columns are computed again.
"""

from collections import Counter as Count
from collections.abc import Mapping

import numpy as np

from npurt.device.segment import Array, Segment, Weights
from npurt.device.verify import Check, Mode, Sampler
from npurt.graph import ops
from npurt.graph.graph import WRITTEN, Graph
from npurt.graph.meaning import MEANING
from npurt.graph.ops import Op
from npurt.graph.roles import role
from npurt.graph.rows import Rows
from npurt.graph.state import Run, States
from npurt.graph.tensor import POSITIONS, Tensor

COARSE = 2.0**-4  # accepted error of an element, relative to its size and its row's; see `_is_near`
COARSE_PRODUCT = 2.0**-2  # the same of products, whose operands a device may round to 8 bits
TINY = 1e-20  # smaller numbers are equal to 0
COLUMNS = 64  # columns of a product that are computed again
EXPERT_ROWS = 4  # rows of a product with experts that are computed again


class Checks:
    """Verifies the ops of one segment.

    Attributes:
        verified, failed: Numbers of verified and of wrong results, by name of the op.
    """

    def __init__(self, part: Graph, segment: Segment, weights: Weights, sampler: Sampler) -> None:
        self.verified: Count[str] = Count()
        self.failed: Count[str] = Count()
        self._segment, self._weights = segment, weights
        self._sampler = sampler
        self._ops = [
            op for op in part.ops if _can_be_computed_again(op) and not segment.verifies(op)
        ]
        self._products: dict[str, Check] = {}
        for op in part.ops:
            if isinstance(op, ops.MatMul) and (packed := segment.packed_weight(op)) is not None:
                self._products[op.name] = Check(op.weight.name, packed, self._bias(op))
        self._chosen: list[tuple[Op, States]] = []
        self._random = np.random.default_rng()

    def _bias(self, op: ops.MatMul) -> Array | None:
        return None if op.bias is None else self._weights.values(op.bias.name)

    def choose(self, rows: Rows) -> None:
        """Choose ops to verify in the next run of *rows*, and copy their states."""
        if self._sampler.mode is Mode.OFF:
            return
        several = len(rows) > 1
        chosen = set(self._sampler.choose(len(self._ops)))
        if self._sampler.mode is Mode.SAMPLE and self._sampler.is_first((id(self), several)):
            chosen |= {i for i, op in enumerate(self._ops) if self._is_first(op, several)}
        self._chosen = [(self._ops[i], self._states(self._ops[i], rows)) for i in sorted(chosen)]
        self._segment.taps = frozenset(
            t.name for op, _ in self._chosen for t in (*op.reads, *op.writes) if t.kind in WRITTEN
        )

    def _is_first(self, op: Op, several: bool) -> bool:
        shapes = [(t.dtype, t.shape) for t in (*op.reads, *op.writes)]
        return self._sampler.is_first((type(op), *shapes, several))

    def _states(self, op: Op, rows: Rows) -> States:
        """Return copies of the states of *op* before the run."""
        states = States(Graph(op.name, (op,)))
        for span in rows.by_sequence() if op.states else ():
            held = states.of(span.sequence)
            for tensor in op.states:
                values = self._segment.read(tensor, span.sequence)
                held[tensor.name] = values[: span.first] if _has_positions(tensor) else values
        return states

    def wrong(self, given: Mapping[str, Array], made: Mapping[str, Array], rows: Rows) -> Op | None:
        """Verify the chosen ops after a run; return the first op with a wrong result, or None.

        Args:
            given: The inputs of the run.
            made: The results, with the tensors that `Segment.taps` names.
        """
        chosen, self._chosen, self._segment.taps = self._chosen, [], frozenset()
        values = {**given, **made}
        for op, states in chosen:
            if not {t.name for t in (*op.reads, *op.writes) if t.kind in WRITTEN} <= values.keys():
                continue  # the device does not return this inner tensor
            self.verified[op.name] += 1
            if not self._is_right(op, values, rows, states):
                self.failed[op.name] += 1
                return op
        return None

    def _is_right(self, op: Op, values: Mapping[str, Array], rows: Rows, states: States) -> bool:
        check = self._products.get(op.name)
        if check is not None and isinstance(op, ops.MatMul):
            x, y = values[op.x.name], values[op.out.name]
            return not len(x) or check.accepts(np.ascontiguousarray(x, np.float32), y)
        if isinstance(op, ops.MatMul | ops.ExpertMatMul):
            return self._is_product(op, values)
        read = {tensor.name for tensor in op.reads} & values.keys()
        given = {name: _exact(values[name]) for name in read}
        run = Run(np.float64, given, self._weights.values, self._load_rows, rows, states)
        with np.errstate(all="ignore"):
            again = MEANING[type(op)](op, run)
        return all(
            _is_near(values[t.name], want, COARSE) for t, want in zip(op.writes, again, strict=True)
        )

    def _is_product(self, op: ops.MatMul | ops.ExpertMatMul, values: Mapping[str, Array]) -> bool:
        """Compute some columns of some rows of a product again."""
        weight = self._weights.quantised(op.weight.name)
        x, y = values[op.x.name], values[op.out.name]
        columns = np.sort(
            self._random.choice(y.shape[-1], min(COLUMNS, y.shape[-1]), replace=False)
        )
        bias = None if op.bias is None else self._weights.values(op.bias.name)
        if isinstance(op, ops.MatMul):
            part = weight[columns].dequantize().astype(np.float64)
            want = _exact(x) @ part.T + (0 if bias is None else bias[columns])
            return _is_near(y[:, columns], want, COARSE_PRODUCT)
        experts, right = values[op.experts.name], True
        for t in self._random.choice(len(y), min(EXPERT_ROWS, len(y)), replace=False):
            for j, expert in enumerate(experts[t]):
                part = weight[int(expert)][columns].dequantize().astype(np.float64)
                want = part @ _exact(x[t] if x.ndim == 2 else x[t, j])
                want += 0 if bias is None else bias[expert][columns]
                right &= _is_near(y[t, j][None, columns], want[None], COARSE_PRODUCT)
        return right

    def _load_rows(self, name: str, index: Array) -> Array:
        return self._weights.quantised(name)[index].dequantize()


def _exact(values: Array) -> Array:
    return values.astype(np.float64) if values.dtype.kind == "f" else values


def _can_be_computed_again(op: Op) -> bool:
    """Return whether *op* has only float results: close scores may give other experts."""
    return type(op) in MEANING and all(tensor.dtype != "i32" for tensor in op.writes)


def _has_positions(tensor: Tensor) -> bool:
    return POSITIONS in tensor.shape


def _is_near(found: Array, want: Array, bound: float) -> bool:
    """Return whether *found* is close to *want*; rows of *want* with an overflow are accepted.

    The error of an element may be *bound* times the sum of its size and the root mean square of its
    row.
    """
    if found.size != want.size:
        return False
    if not want.size:
        return True
    want = want.reshape(len(want), -1)
    found = found.reshape(want.shape).astype(np.float64)
    with np.errstate(all="ignore"):
        scale = abs(want) + np.sqrt((want**2).mean(axis=1, keepdims=True)) + TINY
        near = abs(found - want) <= bound * scale
    return bool((near.all(axis=1) | ~np.isfinite(want).all(axis=1)).all())


def described(op: Op) -> str:
    """Return what *op* computes, for messages."""
    if isinstance(op, ops.MatMul | ops.ExpertMatMul):
        return f"product with {op.weight.name}"
    return f"{role(op)} ({op.name})"
