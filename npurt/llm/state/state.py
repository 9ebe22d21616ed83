"""The state of a sequence as one object.

It consists of the tokens, the keys and values of layers with attention, and the states of other
layers.  Callers can copy and restore it, take tokens back, save and load it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt import moved
from npurt.device import state_values
from npurt.errors import LayoutError
from npurt.llm.file.config import Config
from npurt.llm.state.cache import Cache
from npurt.llm.state.convolved import Convolved
from npurt.llm.state.recurrent import Recurrent, Replay

Array = npt.NDArray[Any]
Layout = tuple[tuple[int, ...], npt.DTypeLike]  # shape and dtype of an array


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An immutable copy of a state.

    Attributes:
        tokens: The tokens that the model had seen.
        arrays: Two of each layer: keys and values ``[G, length, W]``, or the state and the inputs
            of the convolution ``[kernel_size - 1, C + 2 H]``.  A state is float32 ``[H, W, W]``;
            or, where a device computes in integers, all of those: int32 ``[H, W, W + 2]``.
        own: As in `State`.
        integers: Whether states are integers.
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
        """Return the arrays, with states of integers converted to float32."""
        return [state_values(a) if a.dtype == np.int32 else a for a in self.arrays]

    values = moved.attribute("to_float32")

    def require_fit(self, layout: Iterable[Layout], n_ctx: int) -> None:
        """Raise LayoutError unless the arrays have this *layout* and the tokens fit *n_ctx*."""
        length = len(self.tokens)
        if length > n_ctx or [(array.shape, array.dtype) for array in self.arrays] != list(layout):
            raise LayoutError(
                f"a snapshot of {length} tokens does not fit this model and its context of {n_ctx}",
                remedy="restore snapshots of the same model, opened with at least that n_ctx and "
                "the same kv_type",
            )


class State:
    """The state of one model; raises the errors of `Cache`.

    Attributes:
        tokens: The tokens seen, oldest first.
        cache: Of layers with attention.
        recurrent: Of layers with delta nets, or None.
        convolved: Of layers with short convolutions, or None.
        changes: The number of changes so far.
        own: The number of first tokens whose keys and values equal those of a fresh evaluation.
            Those of later tokens depend on forgotten tokens.
    """

    def __init__(self, config: Config, n_ctx: int, kv_type: str = "f16") -> None:
        self.tokens: list[int] = []
        self.cache = Cache(config, n_ctx, kv_type)
        self.recurrent = Recurrent(config, config.delta) if config.delta else None
        self.convolved = Convolved(config) if config.convolved else None
        self.changes = 0
        self.own = n_ctx
        self._config = config

    @property
    def length(self) -> int:
        """Number of tokens seen."""
        return self.cache.length

    @property
    def whole(self) -> bool:
        """False after an interrupted run; `rewind` repairs that."""
        return self._sequential is None or self._sequential.at == self.length

    @property
    def sequential(self) -> bool:
        """Whether it has states that cannot forget tokens in the middle."""
        return self._sequential is not None

    @property
    def _sequential(self) -> Recurrent | Convolved | None:
        return self.recurrent or self.convolved

    # --- Going forward --------------------------------------------------------------------------

    def begin(self, rows: int) -> None:
        """Prepare for a run of *rows* tokens; `end` completes it."""
        if self._sequential:
            self._sequential.begin(self.length, rows)

    def end(self, tokens: Sequence[int]) -> None:
        """Record a run over *tokens*."""
        self.changes += 1
        self.tokens += tokens
        self.cache.length += len(tokens)
        if self._sequential:
            self._sequential.end(self.length)

    # --- Going back -----------------------------------------------------------------------------

    def reach(self, length: int) -> int:
        """Return the largest number of tokens, at most *length*, that `rewind` can keep."""
        length = min(length, self.length)
        return self._sequential.reach(length) if self._sequential else length

    def rewind(self, length: int, replay: Replay, most: int) -> int:
        """Keep the first *length* tokens, or as many as possible; return their number.

        Args:
            replay: Runs the delta nets alone over kept tokens.
            most: The most tokens of one call of *replay*.
        """
        length = self.reach(length)
        if self.recurrent:
            self.recurrent.rewind(length, replay, most)
        if self.convolved:
            self.convolved.rewind(length)
        self.changes += length < len(self.tokens)
        del self.tokens[length:]
        self.cache.truncate(length)
        self._claim(self.own)
        return length

    def _claim(self, own: int) -> None:
        """Take note that so many tokens are their own: all that will come, if all of these are."""
        self.own = own if own < self.length else self.cache.n_ctx

    def release(self) -> None:
        """Release everything but the tokens, for good."""
        self.cache.release()
        self.recurrent = self.convolved = None

    # --- Snapshots ------------------------------------------------------------------------------

    def layout(self, length: int, *, integers: bool = False) -> Iterator[Layout]:
        """Yield shape and dtype of the arrays that a snapshot of *length* tokens has."""
        for layer in range(self._config.n_layers):
            if self.recurrent and self._config.is_recurrent(layer):
                yield from self.recurrent.layout(layer, integers=integers)
            elif self.convolved and self._config.is_convolved(layer):
                yield from self.convolved.layout(layer)
            else:
                values = self.cache.values[layer]
                for _ in "kv":
                    yield (values.shape[0], length, values.shape[2]), values.dtype

    def snapshot(self) -> Snapshot:
        """Return a copy; raises `DeltaState.exact`'s."""
        arrays: list[Array] = []
        for layer in range(self._config.n_layers):
            if self.recurrent and self._config.is_recurrent(layer):
                arrays += self.recurrent.read(layer)
            elif self.convolved and self._config.is_convolved(layer):
                arrays += self.convolved.read(layer)
            else:
                arrays += self.cache.read(layer)
        integers = self.recurrent is not None and self.recurrent.integers
        own = min(self.own, self.length)
        return Snapshot(tuple(self.tokens), tuple(arrays), own, integers)

    def restore(self, snapshot: Snapshot) -> bool:
        """Set the state to *snapshot*.

        Returns:
            False when states were rounded, because another kind of device computed them.

        Raises:
            LayoutError: The snapshot is of another model or a larger context; nothing has changed.
        """
        length = len(snapshot.tokens)
        layout = self.layout(length, integers=snapshot.integers)
        snapshot.require_fit(layout, self.cache.n_ctx)
        exact = True
        for layer in range(self._config.n_layers):
            first, second = snapshot.arrays[2 * layer : 2 * layer + 2]
            if self.recurrent and self._config.is_recurrent(layer):
                exact &= self.recurrent.write(layer, first, second, length)
            elif self.convolved and self._config.is_convolved(layer):
                self.convolved.write(layer, first, length)
            else:
                self.cache.write(layer, first, second)
        self.changes += 1
        self.tokens[:] = snapshot.tokens
        self.cache.length = length
        if self.recurrent:
            self.recurrent.restored(length)
        if self.convolved:
            self.convolved.restored(length)
        self._claim(snapshot.own)
        return exact
