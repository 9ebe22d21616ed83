"""The state of a model on a device that runs graphs: `State`'s interface over its segments.

Snapshots have the same arrays as those of `State`, so they move between devices.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.graph import ops
from npurt.graph.graph import Graph
from npurt.graph.tensor import Tensor
from npurt.llm.file.config import Config
from npurt.llm.state.cache import DTYPES, Positions
from npurt.llm.state.recurrent import Replay
from npurt.llm.state.state import Layout, Snapshot
from npurt.runtime.execute.executor import Executor
from npurt.segment import recurrent

Array = npt.NDArray[Any]
CHECKPOINTS = 4  # of recurrent states, each before a run


class GraphState:
    """The tokens seen, and the states of a graph's segments.

    Attributes: see `State`.
    """

    sequential = True  # a part in the middle is forgotten by evaluating the rest again
    recurrent = None
    convolved = None

    def __init__(
        self, config: Config, graph: Graph, executor: Executor, n_ctx: int, kv_type: str
    ) -> None:
        self.tokens: list[int] = []
        self.cache = Positions(n_ctx)
        self.changes = 0
        self.own = n_ctx
        self._config, self._executor = config, executor
        self._kv = np.dtype(DTYPES[kv_type])
        self._layers = list(_layers(config, graph))
        self._recurs = bool(recurrent(graph))
        self._checkpoints: OrderedDict[int, list[Any]] = OrderedDict()  # by tokens seen
        self._at: int | None = 0

    @property
    def length(self) -> int:
        """Number of tokens seen."""
        return self.cache.length

    @property
    def whole(self) -> bool:
        """False after an interrupted run; `rewind` repairs that."""
        return self._at == self.length

    # --- Going forward --------------------------------------------------------------------------

    def begin(self, rows: int) -> None:
        """Prepare for a run of *rows* tokens; `end` completes it."""
        del rows
        if self._recurs and self.length and self.length not in self._checkpoints:
            self._checkpoints[self.length] = self._executor.checkpoint()
            while len(self._checkpoints) > CHECKPOINTS:
                self._checkpoints.popitem(last=False)
        self._at = None

    def end(self, tokens: Sequence[int]) -> None:
        """Record a run over *tokens*."""
        self.changes += 1
        self.tokens += tokens
        self._at = self.cache.length = self.length + len(tokens)

    def lost(self) -> None:
        """Record that a device lost the states: all tokens have to be evaluated again."""
        self._checkpoints.clear()
        self._executor.forget()

    # --- Going back -----------------------------------------------------------------------------

    def reach(self, length: int) -> int:
        """Return the largest number of tokens, at most *length*, that `rewind` can keep."""
        length = min(length, self.length)
        if not self._recurs or length == self._at:
            return length
        return max((at for at in self._checkpoints if at <= length), default=0)

    def rewind(self, length: int, replay: Replay | None = None, most: int = 0) -> int:
        """Keep the first *length* tokens, or as many as possible; return their number."""
        del replay, most
        length = self.reach(length)
        if self._recurs and length != self._at:
            if length:
                self._executor.restore(self._checkpoints[length])
            else:
                self._executor.forget()
        for at in [at for at in self._checkpoints if at > length]:
            del self._checkpoints[at]
        self.changes += length < len(self.tokens)
        del self.tokens[length:]
        self._at = self.cache.length = length
        self.own = self.cache.n_ctx
        return length

    def release(self) -> None:
        """Release everything but the tokens, for good."""
        self._executor.close()

    # --- Snapshots ------------------------------------------------------------------------------

    def layout(self, length: int, *, integers: bool = False) -> Iterator[Layout]:
        """Yield shape and dtype of the arrays that a snapshot of *length* tokens has."""
        width, float32 = self._config.head_width, np.dtype(np.float32)
        net = self._config.delta
        for layer, _ in enumerate(self._layers):
            if self._config.is_recurrent(layer) and net:
                form = (net.width, net.width + 2) if integers else (net.width, net.width)
                yield (net.heads, *form), np.dtype(np.int32) if integers else float32
                yield (net.kernel_size - 1, net.channels + 2 * net.heads), float32
            elif self._config.is_convolved(layer):
                yield (self._config.kernel_size - 1, self._config.width), float32
                yield (0, self._config.width), float32
            else:
                yield from [((self._config.n_kv_heads, length, width), self._kv)] * 2

    def snapshot(self) -> Snapshot:
        """Return a copy; raises `Segment.read`'s errors."""
        states = self._executor.read()
        arrays: list[Array] = []
        for (shape, _), (second, _), tensors in zip(*self._shapes(self.length), strict=True):
            first, *rest = (states[tensor.name] for tensor in tensors)
            if len(shape) == 3 and len(second) == 3:  # keys and values [P, G * W]
                arrays += [_to_heads(each, shape) for each in (first, *rest)]
            elif len(shape) == 3:  # a delta net: its state, and what its convolution saw
                arrays += [first, np.zeros(second, np.float32)]
                arrays[-1][:, : rest[0].shape[1]] = rest[0]
            else:
                arrays += [first, np.zeros(second, np.float32)]
        return Snapshot(tuple(self.tokens), tuple(arrays), min(self.own, self.length), False)

    def restore(self, snapshot: Snapshot) -> bool:
        """Set the state to *snapshot*; return False if its states are integers and were rounded.

        Raises:
            LayoutError: The snapshot is of another model or a larger context; nothing has changed.
        """
        length = len(snapshot.tokens)
        layout = self.layout(length, integers=snapshot.integers)
        snapshot.require_fit(layout, self.cache.n_ctx)
        from_snapshot = snapshot.to_float32()
        states = {}
        for layer, tensors in enumerate(self._layers):
            first, second = from_snapshot[2 * layer : 2 * layer + 2]
            if len(second.shape) == 3:
                first, second = (x.transpose(1, 0, 2).reshape(length, -1) for x in (first, second))
            states[tensors[0].name] = first
            if len(tensors) == 2:
                states[tensors[1].name] = second[:, : tensors[1].columns]
        self._executor.write(states)
        self.changes += 1
        self.tokens[:] = snapshot.tokens
        self._at = self.cache.length = length
        self._checkpoints.clear()
        self.own = snapshot.own if snapshot.own < length else self.cache.n_ctx
        return not snapshot.integers

    def _shapes(self, length: int) -> tuple[list[Any], list[Any], list[tuple[Tensor, ...]]]:
        entries = list(self.layout(length))
        return entries[::2], entries[1::2], self._layers


def _to_heads(array: Array, shape: tuple[int, ...]) -> Array:
    """Return keys or values ``[P, G * W]`` as ``[G, P, W]``."""
    heads, length, width = shape
    return np.ascontiguousarray(array[:length].reshape(length, heads, width).transpose(1, 0, 2))


def _layers(config: Config, graph: Graph) -> Iterator[tuple[Tensor, ...]]:
    """Yield the states of each layer: keys and values; state and convolution; or convolution."""
    mixers = [op for op in graph.ops if op.states]
    for before, op in pairwise([None, *mixers]):
        if isinstance(op, ops.GatedDeltaNet) and before is not None:
            yield (*op.states, *before.states)
        elif op is not None and (isinstance(op, ops.Attention) or not config.delta):
            yield op.states
