"""As llama_cpp.llama_cache: states of texts, which later prompts that begin alike go on from."""

from collections.abc import Sequence
from typing import Any

from npurt.compat.llama_cpp.arguments import missing
from npurt.compat.llama_cpp.lists import LlamaState
from npurt.llm.spec.assistant import shared
from npurt.runtime.open.arguments import integer


class LlamaRAMCache:
    """States by their tokens; those that were used longest ago go first.

    Args:
        capacity_bytes: The most bytes of all states.
    """

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        self.capacity_bytes = integer("capacity_bytes", capacity_bytes, 0)
        self.cache_state: dict[tuple[int, ...], LlamaState] = {}

    @property
    def cache_size(self) -> int:
        """The bytes of all states."""
        return sum(state.llama_state_size for state in self.cache_state.values())

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._longest(key) is not None

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """Return the state that shares most first tokens with *key*.

        Raises:
            KeyError: None shares any.
        """
        found = self._longest(key)
        if found is None:
            raise KeyError("no state begins like this")
        self.cache_state[found] = self.cache_state.pop(found)  # now the last one used
        return self.cache_state[found]

    def __setitem__(self, key: Sequence[int], state: LlamaState) -> None:
        self.cache_state.pop(tuple(key), None)
        self.cache_state[tuple(key)] = state
        while self.cache_size > self.capacity_bytes:
            del self.cache_state[next(iter(self.cache_state))]

    def _longest(self, key: Sequence[int]) -> tuple[int, ...] | None:
        lengths = {kept: shared(kept, key) for kept in self.cache_state}
        best = max(lengths, key=lengths.__getitem__, default=())
        return best if lengths.get(best) else None


LlamaCache = LlamaRAMCache


class LlamaDiskCache:
    """Refused: npurt has `LlamaRAMCache`, and states that can be pickled."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise missing("LlamaDiskCache", "use LlamaRAMCache, or pickle what save_state() returns")
