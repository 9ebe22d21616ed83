"""States of gated delta nets on the DSP.

The host keeps a copy of an earlier state and the rows of the tokens since then.  From them it
restores the state after an interrupted call or a lost session.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.device.delta import ALL, I32, DeltaNet, DeltaState
from npurt.device.device import F32
from npurt.errors import NpurtError
from npurt.hexagon.device.delta_memory import DeltaMemory, StateVersion
from npurt.hexagon.device.session_memory import SessionMemory
from npurt.hexagon.layout import delta

MAX_ROWS = 32  # kept before the host copies the state again; about half the size of a state

OnSession = Callable[[Callable[[SessionMemory], None]], None]


class HexagonState(DeltaState):
    """The state of a delta net on the DSP; it survives the loss of the DSP's memory.

    Args:
        on_session: Calls a function with the memory of a session; if the session is lost during the
            call, calls the function again with that of a new session.
        lock: The lock of the device.
        net: The net whose `state` is the start.
    """

    integers = True

    def __init__(self, on_session: OnSession, lock: RLock, net: DeltaNet) -> None:
        self._on_session, self._lock = on_session, lock
        self._shape = delta.shape_of(net)
        self._version = StateVersion(net.state.copy())
        self._memory: DeltaMemory | None = None
        self._in_memory: StateVersion | None = None  # the version in `_memory`; None: unknown

    def advance(self, net: DeltaNet) -> None:
        """See `DeltaState.advance`; errors as `HexagonDevice.delta_net`."""
        self._on_session(partial(self._advance, net))

    def _advance(self, net: DeltaNet, session_memory: SessionMemory) -> None:
        if self._memory is None:
            self._memory = DeltaMemory(session_memory, self._shape)
        memory, version, tokens = self._memory, self._version, net.v.shape[1]
        for start in range(0, tokens, memory.tokens):
            part = net if tokens <= memory.tokens else net.after(start).first(memory.tokens)
            self._make_current(memory, version)
            self._in_memory = None
            version = self._in_memory = _after(version, memory.run(part), memory)
        self._version = version

    def _make_current(self, memory: DeltaMemory, version: StateVersion) -> None:
        """Load *version* into *memory* unless *memory* already holds it."""
        if self._in_memory is not version:
            self._in_memory = None
            memory.load(version)
            self._in_memory = version

    def write(self, values: F32) -> None:
        """See `DeltaState.write`."""
        self._version = StateVersion(values.copy())

    def checkpoint(self) -> StateVersion:
        """See `DeltaState.checkpoint`; copies the state from the DSP if the DSP holds it."""
        with self._lock:
            if self._version.rows and self._memory and self._in_memory is self._version:
                self._version = self._in_memory = StateVersion(self._memory.copy())
            return self._version

    def restore_checkpoint(self, checkpoint: StateVersion) -> None:
        """See `DeltaState.restore_checkpoint`."""
        self._version = checkpoint

    def to_float32(self, checkpoint: StateVersion, heads: slice = ALL) -> F32:
        """See `DeltaState.to_float32`."""
        shape = self._shape
        if checkpoint.rows:
            start = self.to_float32(StateVersion(checkpoint.start))
            return delta.passed(start, checkpoint.rows, shape)[:, heads]
        if checkpoint.start.dtype == np.float32:
            return checkpoint.start[:, heads]
        words = checkpoint.start.reshape(shape.sequences, shape.heads, -1)[:, heads]
        values = np.empty((*words.shape[:2], shape.width, shape.width), np.float32)
        delta.unpack_state(words.reshape(-1, shape.words), shape, values)
        return values

    def history(self, checkpoint: StateVersion) -> tuple[npt.NDArray[Any], tuple[DeltaNet, ...]]:
        """See `DeltaState.history`: integers, and the rows of tokens since then."""
        shape, start = self._shape, checkpoint.start
        nets = tuple(delta.net_of(rows, shape) for rows in checkpoint.rows)
        if start.dtype == np.float32:
            return start, nets
        return delta.exact_state(start.reshape(-1, shape.words), shape), nets

    def exact(self) -> I32:
        """See `DeltaState.exact`; calls the DSP if its memory does not hold the current state."""
        if self.checkpoint().rows:
            self._on_session(self._settle)
        shape, start = self._shape, self.checkpoint().start
        words = start
        if start.dtype == np.float32:
            words = np.empty((shape.sequences * shape.heads, shape.words), np.int32)
            delta.pack_state(start, shape, words)
        return delta.exact_state(words.reshape(-1, shape.words), shape)

    def _settle(self, session_memory: SessionMemory) -> None:
        if self._memory is None:
            self._memory = DeltaMemory(session_memory, self._shape)
        self._make_current(self._memory, self._version)

    def restore(self, exact: npt.NDArray[Any]) -> None:
        """See `DeltaState.restore`."""
        if exact.dtype == np.float32:
            self.write(exact)
        else:
            self._version = StateVersion(delta.words_of(exact, self._shape))

    def leave(self) -> None:
        """Drop the DSP's memory, because its session ends."""
        with contextlib.suppress(NpurtError):  # without a worker: `_version` has all rows
            self.checkpoint()
        self._memory = self._in_memory = None


def _after(version: StateVersion, rows: F32, memory: DeltaMemory) -> StateVersion:
    """Return *version* advanced by *rows*; *memory* already holds the result."""
    count = version.count + rows.shape[0] * rows.shape[1]
    if count > MAX_ROWS:
        return StateVersion(memory.copy())
    return StateVersion(version.start, (*version.rows, rows), count)
