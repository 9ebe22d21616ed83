"""The state of a sequence: its tokens, the keys and values of attention, and recurrent states.

Callers can copy, restore, rewind and shift a state; `state_file` saves and loads it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.device.delta import state_values
from npurt.device.segment import KV_DTYPES
from npurt.errors import ContextFull, LayoutError, SettingError, brief
from npurt.graph import ops
from npurt.graph.graph import Graph
from npurt.graph.state import by_head, by_position
from npurt.graph.tensor import Tensor
from npurt.llm.file.config import Config
from npurt.runtime.execute.executor import Executor

Array = npt.NDArray[Any]
LONGEST = 1 << 22  # positions; rope tables and offsets cannot overflow their integer types
Layout = tuple[tuple[int, ...], npt.DTypeLike]  # shape and dtype of an array


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An immutable copy of a state.

    Attributes:
        tokens: The evaluated tokens.
        arrays: Two arrays per layer: keys and values ``[G, length, W]``, or the state of the delta
            net and the inputs of its convolution ``[kernel_size - 1, C + 2 H]``.  The states of all
            delta nets are float32 ``[H, W, W]`` or, if the device computes in integers, int32
            ``[H, W, W + 2]``.
        own: See `State`.
        integers: Whether the states of delta nets are integers.
        model: 32 bytes that identify the model; `Context.snapshot` sets them.
    """

    tokens: tuple[int, ...]
    arrays: tuple[Array, ...]
    own: int
    integers: bool = False
    model: bytes = bytes(32)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays)

    def to_float32(self) -> list[Array]:
        """Return the arrays, with integer states converted to float32."""
        return [state_values(a) if a.dtype == np.int32 else a for a in self.arrays]

    def require_fit(self, layout: Iterable[Layout], n_ctx: int) -> None:
        """Raise LayoutError unless the arrays match *layout* and the tokens fit in *n_ctx*."""
        length = len(self.tokens)
        if length > n_ctx or [(array.shape, array.dtype) for array in self.arrays] != list(layout):
            raise LayoutError(
                f"a snapshot of {length} tokens does not fit this model and its context of {n_ctx}",
                remedy="restore snapshots of the same model, opened with at least that n_ctx and "
                "the same kv_type",
            )


class State:
    """The tokens of one sequence, and its states in the segments of a graph.

    If a device fails, the states of all sequences are lost (`Executor.losses`).  A `State` detects
    the loss at its next use.

    Args:
        sequence: The number of the sequence in the segments.

    Attributes:
        tokens: The tokens of the sequence, oldest first.
        n_ctx: The maximum number of positions.
        changes: The number of changes so far.
        own: The number of tokens, from the first on, whose keys and values equal those of a fresh
            evaluation.  The keys and values of later tokens depend on tokens that `shift` dropped.
        sequence: The number of the sequence in the segments.
    """

    def __init__(
        self,
        config: Config,
        graph: Graph,
        executor: Executor,
        n_ctx: int,
        kv_type: str,
        sequence: int = 0,
    ) -> None:
        self.tokens: list[int] = []
        self.n_ctx = self.own = n_ctx
        self.changes = 0
        self.sequence = sequence
        self._config, self._executor = config, executor
        self._losses = executor.losses
        self._kv = np.dtype(KV_DTYPES[kv_type])
        self._layers = list(_layers(config, graph))
        self._at: int | None = 0  # tokens that all states include; None during a change
        self._in_place = 0  # tokens, from the first on, whose keys and values are surely valid

    @property
    def length(self) -> int:
        """The number of tokens."""
        return len(self.tokens)

    @property
    def first_stale(self) -> int | None:
        """The first token to evaluate again, or None if the states include all tokens.

        States lag behind the tokens after an interrupted run or a device failure.
        """
        self._note_losses()
        return None if self._at == len(self.tokens) else self._at or 0

    def require(self, count: int) -> None:
        """Raise an error if *count* more tokens do not fit in the context.

        Raises:
            ContextFull: The tokens do not fit.
        """
        if self.length + count > self.n_ctx:
            raise ContextFull(
                f"{count} more tokens do not fit: {self.length} of {self.n_ctx} positions are used",
                remedy="raise n_ctx (-c), or shorten the prompt" if count > self.n_ctx
                else "raise n_ctx (-c), shorten the prompt, call reset(), or forget the oldest "
                "tokens with context_shift=True (--context-shift)",
            )  # fmt: skip

    # --- Evaluation -----------------------------------------------------------------------------

    def begin(self) -> int | None:
        """Prepare for a run, which `end` or `catch_up` completes.

        Returns:
            The position at which the run begins; None if a device lost its states.
        """
        position, self._at = self._at, None
        assert position is not None, "the position of the states is unknown"
        return position if self._executor.begin(self.sequence, position) else None

    def end(self, tokens: Sequence[int]) -> None:
        """Append *tokens* and record that a run evaluated them."""
        self.changes += 1
        self.tokens += tokens
        self._at = self._in_place = self.length

    def catch_up(self, position: int) -> None:
        """Record that the states include the first *position* tokens."""
        self._at = self._in_place = position

    def lose(self) -> None:
        """Drop all states after a device failure, and keep the tokens."""
        self._at, self._in_place = None, 0
        self._executor.forget(self.sequence)
        self._losses = self._executor.losses
        self._at = 0

    def _note_losses(self) -> None:
        """Drop all states if a device failed in a run of another sequence."""
        if self._losses != self._executor.losses:
            self.lose()

    # --- Rewinding ------------------------------------------------------------------------------

    def reach(self, length: int) -> int:
        """Return the largest number of tokens, at most *length*, to which states can rewind."""
        self._note_losses()
        length = min(length, self.length)
        if length == self._at:
            return length
        return self._executor.reach(self.sequence, min(length, self._in_place))

    def rewind(self, length: int) -> None:
        """Keep the first *length* tokens, and rewind the states to as many of them as possible.

        `first_stale` is the first token that must be evaluated again.
        """
        self._note_losses()
        self.changes += length < self.length
        del self.tokens[length:]
        length = self.length
        if self._at != length:
            kept, self._at = self.reach(length), None
            self._at = self._in_place = self._executor.rewind(self.sequence, kept)
            self._losses = self._executor.losses
        self._claim(self.own)

    @property
    def shifts(self) -> bool:
        """Whether `shift` can drop tokens in the middle of the sequence."""
        return self._executor.shifts

    def shift(self, keep: int, drop: int) -> None:
        """Drop *drop* tokens after the first *keep* tokens, and move the later tokens forward."""
        self._at, self._in_place = None, 0
        self._executor.shift(self.sequence, keep, drop)
        self.own = min(self.own, keep)
        del self.tokens[keep : keep + drop]
        self._at = self._in_place = self.length

    def fork(self, source: "State", length: int) -> None:
        """Replace this state by the first *length* tokens of *source*; see `Context.fork`."""
        wrong = source.first_stale is not None or not 0 <= length <= source.length
        if wrong or (length < source.length and self._executor.recurrent):
            raise LayoutError(
                f"{length} of {source.length} tokens cannot be forked",
                remedy="fork only evaluated tokens; if the model has recurrent states, fork all of "
                "the tokens",
            )
        self.rewind(0)
        self._at, self._in_place = None, 0
        done = self._executor.fork(source.sequence, self.sequence, length)
        self.tokens[:] = source.tokens[:length]
        self.changes += 1
        if done:
            self._at = self._in_place = length
            self._losses = self._executor.losses
        self._claim(source.own)

    def _claim(self, own: int) -> None:
        """Set `own` to *own*, or to `n_ctx` if *own* includes all tokens.

        In the second case, tokens that are added later are fresh as well.
        """
        self.own = own if own < self.length else self.n_ctx

    def release(self) -> None:
        """Release the memory of the states; the state can no longer be evaluated."""
        self._executor.forget(self.sequence)
        del self._executor

    # --- Snapshots ------------------------------------------------------------------------------

    def layout(self, length: int, *, integers: bool = False) -> Iterator[Layout]:
        """Yield the shape and dtype of each array in a snapshot of *length* tokens."""
        return layout(self._config, self._kv, length, integers=integers)

    def snapshot(self) -> Snapshot:
        """Return a copy of the state.  Raises the errors of `Segment.read`."""
        states, arrays = self._executor.read(self.sequence), list[Array]()
        shapes = [shape for shape, _ in self.layout(self.length)]
        for shape, second, tensors in zip(shapes[::2], shapes[1::2], self._layers, strict=True):
            first, *rest = (states[tensor.name] for tensor in tensors)
            if len(second) == 3:  # keys and values [P, G * W]
                heads, length, _ = shape
                arrays += [by_head(each[:length], heads).copy() for each in (first, *rest)]
                continue
            arrays += [first, np.zeros(second, np.float32)]
            for inputs in rest:  # inputs of the convolution before a delta net
                arrays[-1][:, : inputs.shape[1]] = inputs
        forms = {layer[0].dtype for layer in zip(arrays[::2], arrays[1::2], strict=True)
                 if layer[0].ndim == 3 and layer[1].ndim == 2}  # fmt: skip
        integers = forms == {np.dtype(np.int32)}
        if not integers:  # only some devices have integer states: convert these to float32
            arrays = [state_values(a) if a.dtype == np.int32 else a for a in arrays]
        return Snapshot(tuple(self.tokens), tuple(arrays), min(self.own, self.length), integers)

    def restore(self, snapshot: Snapshot) -> bool:
        """Set the state to *snapshot*.

        Returns:
            False if states were rounded because another type of device computed them.

        Raises:
            LayoutError: The snapshot is of another model or a larger context.  The state is
                unchanged.
        """
        length = len(snapshot.tokens)
        snapshot.require_fit(self.layout(length, integers=snapshot.integers), self.n_ctx)
        states = {}
        for layer, tensors in enumerate(self._layers):
            first, second = snapshot.arrays[2 * layer : 2 * layer + 2]
            if second.ndim == 3:
                first, second = by_position(first), by_position(second)
            states[tensors[0].name] = first
            if len(tensors) == 2:
                states[tensors[1].name] = second[:, : tensors[1].columns]
        self._at, self._in_place = None, 0
        exact = self._executor.write(self.sequence, states)
        self._losses = self._executor.losses
        self.changes += 1
        self.tokens[:] = snapshot.tokens
        self._at = self._in_place = length
        self._claim(snapshot.own)
        return exact


def require_positions(n_ctx: int, kv_type: str) -> None:
    """Raise an error if a KV cache of this size or type is not possible.

    Raises:
        SettingError: *n_ctx* is out of range, or *kv_type* is unknown.
    """
    if not 1 <= n_ctx <= LONGEST:
        raise SettingError(
            f"a context cannot have {brief(n_ctx)} tokens",
            remedy=f"use an n_ctx (-c) of 1 to {LONGEST}",
        )
    if not isinstance(kv_type, str) or kv_type not in KV_DTYPES:
        raise SettingError(
            f"the KV cache cannot have the type {brief(kv_type)}",
            remedy=f"use one of {', '.join(KV_DTYPES)}",
        )


def layout(
    config: Config, kv: np.dtype[Any], length: int, *, integers: bool = False
) -> Iterator[Layout]:
    """Yield the shape and dtype of each array in a snapshot of *length* tokens, two per layer."""
    net, float32 = config.delta, np.dtype(np.float32)
    for layer in range(config.n_layers if config.causal else 0):
        if config.is_recurrent(layer) and net:
            shape = (net.width, net.width + 2) if integers else (net.width, net.width)
            yield (net.heads, *shape), np.dtype(np.int32) if integers else float32
            yield (net.kernel_size - 1, net.channels + 2 * net.heads), float32
        elif config.is_convolved(layer):
            yield (config.kernel_size - 1, config.width), float32
            yield (0, config.width), float32
        else:
            yield from [((config.n_kv_heads, length, config.head_width), kv)] * 2


def _layers(config: Config, graph: Graph) -> Iterator[tuple[Tensor, ...]]:
    """Yield the state tensors of each layer.

    Attention has keys and values, a delta net its state and the inputs of its convolution, a short
    convolution its inputs.
    """
    mixers = [op for op in graph.ops if op.states]
    for before, op in pairwise([None, *mixers]):
        if isinstance(op, ops.GatedDeltaNet) and before is not None:
            yield (*op.states, *before.states)
        elif op is not None and (isinstance(op, ops.Attention) or not config.delta):
            yield op.states
