"""Segments of products and gated delta nets, for devices that run no other ops.

Another device runs norms, attention and the other ops, so values are copied before and after each
product.
"""

import itertools
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npurt.device import delta_check
from npurt.device.delta import DeltaNet, DeltaNets, DeltaState, why_not_delta
from npurt.device.device import F32, Device, MatMul, Packed
from npurt.device.guard import Guard
from npurt.device.segment import Array, Counter, Limits, Segment, Weights
from npurt.device.verify import Mode, Sampler, WrongResult
from npurt.graph import ops
from npurt.graph.graph import Graph
from npurt.graph.ops import Op, Precision
from npurt.graph.rows import Rows
from npurt.graph.tensor import Kind, Tensor


class ProductDevice(Device):
    """A device that compiles products, and gated delta nets if it supports them."""

    def why_not_op(self, op: Op, limits: Limits) -> str | None:
        """Return None if the device can run *op*, else the reason why not, as a sentence."""
        del limits
        if isinstance(op, ops.MatMul):
            if op.precision is Precision.EXACT:
                return "it rounds weights, and this weight must stay exact"
            if len(op.x.shape) != 2:
                return "it multiplies the rows of a run, not those of experts"
            return self.why_not(MatMul(1, op.x.columns, op.out.columns, op.weight.dtype))
        if isinstance(op, ops.GatedDeltaNet):
            return why_not_delta(self, _net(op, 1))
        return f"{self.caps.name} runs products and delta nets only"

    def compile(self, part: Graph, weights: Weights, limits: Limits) -> Segment:
        """Compile *part* into a segment.  The errors are those of `Device.pack`."""
        return ProductSegment(self, part, weights, limits)


@dataclass(slots=True)
class _Weight:
    """A product with its packed weight and counter."""

    op: ops.MatMul
    packed: Packed
    bias: F32 | None
    counter: Counter


class ProductSegment(Segment):
    """Products and delta nets on a device; one call runs all products of an input."""

    def __init__(self, device: Device, part: Graph, weights: Weights, limits: Limits) -> None:
        self.part = part.check()
        self._device = device
        self._guard = Guard(part, limits)
        self._sampler = Sampler(Mode.OFF)
        self._chance = random.Random()
        self._weights: dict[str, _Weight] = {}
        self._counters: dict[str, Counter] = {op.name: Counter.of(op) for op in part.ops}
        self._states: dict[tuple[int, str], DeltaState] = {}
        for op in part.ops:
            if isinstance(op, ops.MatMul):
                int16 = op.precision in (Precision.INT16, Precision.BLOCK8)
                packed = device.pack(weights.quantised(op.weight.name), int16=int16)
                bias = None if op.bias is None else weights.values(op.bias.name)
                self._weights[op.name] = _Weight(op, packed, bias, self._counters[op.name])

    def run(self, values: Mapping[str, Array], rows: Rows) -> dict[str, Array]:
        """Run all ops; return the wanted tensors and the graph's outputs.

        Raises:
            LayoutError: *values* or *rows* do not fit the segment.
            DriverError: The device failed, or a delta net was wrong.
        """
        self._guard.begin_run(values, rows)
        values = dict(values)
        for group in _calls(self.part):
            first = group[0]
            if isinstance(first, ops.GatedDeltaNet):
                values[first.out.name] = self._delta(first, values, rows)
            else:
                values |= self._multiply([self._weights[op.name] for op in group], values)
        self._guard.end_run(rows)
        outputs = {tensor.name for tensor in self.part.tensors(Kind.OUTPUT)}
        return {name: values[name] for name in self.part.wanted | outputs}

    # --- Products -------------------------------------------------------------------------------

    def _multiply(
        self, weights: Sequence[_Weight], values: Mapping[str, Array]
    ) -> dict[str, Array]:
        x = np.ascontiguousarray(values[weights[0].op.x.name], np.float32)
        outs = [np.empty((len(x), w.packed.n), np.float32) for w in weights]
        start = time.perf_counter()
        if len(x):
            self._device.matmuls(x, [w.packed for w in weights], outs)
        seconds = time.perf_counter() - start
        total = sum(w.packed.n * w.packed.k for w in weights)
        made: dict[str, Array] = {}
        for w, y in zip(weights, outs, strict=True):
            w.counter.count(w.op, len(x), seconds * w.packed.n * w.packed.k / total)
            made[w.op.out.name] = y if w.bias is None else y + w.bias
        return made

    def packed_weight(self, op: ops.MatMul) -> Packed:
        """Return the packed weight of *op*."""
        return self._weights[op.name].packed

    # --- Delta nets -----------------------------------------------------------------------------

    def _delta(self, op: ops.GatedDeltaNet, values: Mapping[str, Array], rows: Rows) -> Array:
        out = np.empty((len(rows), op.out.columns), np.float32)
        counter = self._counters[op.name]
        for sequence, index, *_ in rows.by_sequence():
            net = _net(op, len(index), {t.name: values[t.name][index] for t in op.reads})
            state = self._state(op, sequence)
            checked = self._sampler.mode is not Mode.OFF and bool(self._sampler.choose(1))
            before = state.checkpoint() if checked else None
            start = time.perf_counter()
            state.advance(net)
            counter.count(op, len(index), time.perf_counter() - start)
            if checked:
                self._check_delta(op, net, state, before)
            out[index] = net.out.reshape(len(index), -1)
        return out

    def _check_delta(
        self, op: ops.GatedDeltaNet, net: DeltaNet, state: DeltaState, before: Any
    ) -> None:
        head = self._chance.randrange(op.heads)
        heads = slice(head, head + 1)
        counter = self._counters[op.name]
        counter.verified += 1
        then, now = state.to_float32(before, heads), state.read(heads)
        if not delta_check.is_right(net, head, then, now, self._delta_device.delta_error):
            counter.failed += 1
            raise WrongResult(f"{self._device.caps.name} computed a wrong delta net")

    @property
    def _delta_device(self) -> DeltaNets:
        assert isinstance(self._device, DeltaNets), "a device without delta nets"
        return self._device

    def _state(self, op: ops.GatedDeltaNet, sequence: int) -> DeltaState:
        key = sequence, op.state.name
        if key not in self._states:
            self._states[key] = self._delta_device.delta_state(_net(op, 1))
        return self._states[key]

    # --- States ---------------------------------------------------------------------------------

    def _named(self, state: Tensor, sequence: int) -> DeltaState:
        nets = (op for op in self.part.ops if isinstance(op, ops.GatedDeltaNet))
        return self._state(next(op for op in nets if op.state == state), sequence)

    def read(self, state: Tensor, sequence: int) -> Array:
        """Return a copy of a state in float32."""
        self._guard.begin_read(state, sequence)
        return np.array(self._named(state, sequence).read()[0])

    def write(self, state: Tensor, sequence: int, values: Array) -> None:
        """Set a state to *values*."""
        self._guard.begin_write(state, sequence, values)
        self._named(state, sequence).write(np.ascontiguousarray(values[None], np.float32))

    def checkpoint(self, sequence: int) -> Any:
        """Return an exact copy of all states."""
        for op in self.part.ops:
            if isinstance(op, ops.GatedDeltaNet):
                self._guard.begin_read(op.state, sequence)
                self._state(op, sequence)  # zeros if there was none
        return {name: s.checkpoint() for (of, name), s in self._states.items() if of == sequence}

    def restore(self, sequence: int, checkpoint: Any) -> None:
        """Restore the states that `checkpoint` returned."""
        for op in self.part.ops:
            if isinstance(op, ops.GatedDeltaNet):
                self._guard.begin_read(op.state, sequence)
                self._state(op, sequence).restore_checkpoint(checkpoint[op.state.name])

    def forget(self, sequence: int) -> None:
        """Drop all states of a sequence."""
        self._guard.forget(sequence)
        for key in [key for key in self._states if key[0] == sequence]:
            del self._states[key]

    # --- Checks and counters --------------------------------------------------------------------

    def verify(self, sampler: Sampler) -> None:
        """Verify the delta nets that *sampler* chooses; the caller verifies products."""
        self._sampler = sampler

    def verifies(self, op: Op) -> bool:
        """Return whether *op* is a delta net."""
        return isinstance(op, ops.GatedDeltaNet)

    def events(self) -> list[str]:
        """Return the events of the device, such as a restart."""
        return self._device.events()

    def counters(self) -> Iterable[Counter]:
        """Return the counters of the ops."""
        return self._counters.values()

    def close(self) -> None:
        """Release the weights and states, and keep the counters."""
        self._guard.closed = True
        self._weights.clear()
        self._states.clear()


def _calls(part: Graph) -> Iterator[list[Op]]:
    """Group the ops into calls: neighbouring products of one input, and each other op alone."""

    def key(op: Op) -> object:
        return op.x.name if isinstance(op, ops.MatMul) else op.name

    return (list(group) for _, group in itertools.groupby(part.ops, key))


def _net(op: ops.GatedDeltaNet, tokens: int, values: Mapping[str, Array] | None = None) -> DeltaNet:
    """Return the net of *op* for *tokens* tokens of one sequence, with a state of zeros."""
    width = op.v.columns // op.heads

    def of(tensor: Tensor, *shape: int) -> F32:
        array = np.zeros((tokens, tensor.columns)) if values is None else values[tensor.name]
        return np.ascontiguousarray(array, np.float32).reshape(1, tokens, *shape)

    return DeltaNet(
        q=of(op.q, op.k_heads, width),
        k=of(op.k, op.k_heads, width),
        v=of(op.v, op.heads, width),
        decay=of(op.decay, op.heads, 1),
        beta=of(op.beta, op.heads),
        out=np.empty((1, tokens, op.heads, width), np.float32),
        state=np.zeros((1, op.heads, width, width), np.float32),
        scale=op.scale,
        grouped=op.grouped,
    )
