"""Names of the module llama_cpp.llama_cache: caches of states for prompts with a common prefix."""

import abc
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from npurt.compat.llama_cpp.lists import LlamaState
from npurt.errors import LayoutError, brief
from npurt.llm.spec.assistant import shared
from npurt.llm.state import state_file
from npurt.llm.state.state import Snapshot
from npurt.llm.state.state_file import SavedState
from npurt.runtime.open.arguments import integer, require_path

SUFFIX = ".npurt-state"  # suffix of the files of states


class BaseLlamaCache(abc.ABC):
    """A cache of states: tokens -> state.

    Args:
        capacity_bytes: The maximum number of bytes of all states.
    """

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        self.capacity_bytes = integer("capacity_bytes", capacity_bytes, 0)

    @property
    @abc.abstractmethod
    def cache_size(self) -> int:
        """The number of bytes of all states."""

    @abc.abstractmethod
    def __contains__(self, key: Sequence[int]) -> bool:
        """Return whether a state has a common prefix with *key*."""

    @abc.abstractmethod
    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """Return the state with the longest common prefix with *key*, or raise KeyError."""

    @abc.abstractmethod
    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        """Store the state of the tokens *key*."""


class LlamaRAMCache(BaseLlamaCache):
    """A cache in memory that evicts the least recently used states.

    For the arguments, see `BaseLlamaCache`.
    """

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        super().__init__(capacity_bytes)
        self.cache_state: dict[tuple[int, ...], LlamaState] = {}

    @property
    def cache_size(self) -> int:
        """The number of bytes of all states."""
        return sum(state.llama_state_size for state in self.cache_state.values())

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._longest(key) is not None

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """Return the state with the longest common prefix with *key*.

        Raises:
            KeyError: No state has a common prefix with *key*.
        """
        found = self._longest(key)
        if found is None:
            raise KeyError("no cached state has a common prefix with these tokens")
        self.cache_state[found] = self.cache_state.pop(found)  # becomes the most recently used
        return self.cache_state[found]

    def __setitem__(self, key: Sequence[int], state: LlamaState) -> None:
        self.cache_state.pop(tuple(key), None)
        self.cache_state[tuple(key)] = state
        while self.cache_size > self.capacity_bytes:
            del self.cache_state[next(iter(self.cache_state))]

    def _longest(self, key: Sequence[int]) -> tuple[int, ...] | None:
        return _longest(self.cache_state, key)


LlamaCache = LlamaRAMCache


class LlamaDiskCache(BaseLlamaCache):
    """A cache that stores states in files and deletes the least recently used states.

    Several processes may use one folder.  `Llama` ignores states of other models.

    Args:
        cache_dir: The folder, which is created if it does not exist.
        capacity_bytes: The maximum number of bytes of all files.

    Raises:
        OSError: The folder cannot be created.
    """

    def __init__(
        self, cache_dir: str = ".cache/llama_cache", capacity_bytes: int = 2 << 30
    ) -> None:
        super().__init__(capacity_bytes)
        self._folder = Path(require_path(cache_dir))
        self._folder.mkdir(parents=True, exist_ok=True)

    @property
    def cache_size(self) -> int:
        """The number of bytes of all files."""
        return sum(state.nbytes for state in self._states())

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._longest(key) is not None

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """Return the state with the longest common prefix with *key*.

        `Llama.load_state` reads the file of the state.

        Raises:
            KeyError: No state has a common prefix with *key*.
        """
        found = self._longest(key)
        if found is None:
            raise KeyError("no cached state has a common prefix with these tokens")
        os.utime(found.path)  # becomes the most recently used
        ids = np.array(found.tokens, np.intc)
        scores = np.empty((0, 0), np.float32)
        return LlamaState(ids, scores, len(ids), found, found.nbytes, None)

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        """Write a state to a file; its *llama_state* must be in memory.

        Raises:
            LayoutError: *value* has no `Snapshot`.
            StateFormatError: The file cannot be written.
        """
        if not isinstance(value.llama_state, Snapshot):
            raise LayoutError(
                f"{brief(value)} is no state in memory", remedy="pass the result of save_state()"
            )
        name = hashlib.sha256(np.array(key, "<i8").tobytes() + value.llama_state.model).hexdigest()
        state_file.save(value.llama_state, self._folder / f"{name}{SUFFIX}")
        states = self._states()
        used = sum(state.nbytes for state in states)
        for state in states:
            if used <= self.capacity_bytes:
                break
            state.path.unlink(missing_ok=True)
            used -= state.nbytes

    def _states(self) -> list[SavedState]:
        """Return the states in the folder, least recently used first."""
        states = []
        for path in self._folder.glob(f"*{SUFFIX}"):
            try:
                states.append((path.stat().st_mtime_ns, state_file.head_of(path)))
            except FileNotFoundError:  # another process deleted the file
                continue
        return [state for _, state in sorted(states, key=lambda pair: pair[0])]

    def _longest(self, key: Sequence[int]) -> SavedState | None:
        states = {state.tokens: state for state in self._states()}
        return states.get(_longest(states, key) or ())


def _longest(keys: Iterable[tuple[int, ...]], key: Sequence[int]) -> tuple[int, ...] | None:
    """Return the element of *keys* with the longest common prefix with *key*, or None."""
    lengths = {tokens: shared(tokens, key) for tokens in keys}
    best = max(lengths, key=lengths.__getitem__, default=())
    return best if lengths.get(best) else None
