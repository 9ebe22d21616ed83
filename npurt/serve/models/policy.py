"""When a model is loaded and unloaded: what fits into the memory, and for how long."""

from dataclasses import dataclass

from npurt.llm.batch.memory import free_memory, total_memory
from npurt.serve.models.folder import FolderModel

PROCESS = 200 << 20  # bytes: Python, its libraries and the vocabulary; docs/memory.md
IDLE_SECONDS = 300.0  # as Ollama's default


@dataclass(frozen=True, slots=True)
class Policy:
    """When a model is loaded and unloaded.

    Attributes:
        idle: Seconds after its last request at which a model is unloaded; 0: never.
        most: How many are loaded at a time, at most; None: as many as there is memory for.
        nbytes: What they may take together; None: what the machine has free.
    """

    idle: float = IDLE_SECONDS
    most: int | None = None
    nbytes: int | None = None

    def too_large(self, model: FolderModel) -> str | None:
        """Return why *model* can never be loaded; None if it can."""
        all_of_it = self.nbytes or total_memory()
        if not all_of_it or need(model) <= all_of_it:
            return None
        whose = "--models-bytes allows" if self.nbytes else "this machine has"
        return f"{_shown(need(model))} of memory, and {whose} {_shown(all_of_it)}"

    def shortage(self, model: FolderModel, loaded: list[FolderModel]) -> str | None:
        """Return what *model* lacks while others are *loaded*; None: it can be loaded."""
        if self.most is not None and len(loaded) >= self.most:
            return f"room beside {len(loaded)} others, the most that --models-max allows"
        if self.nbytes is not None:
            free = self.nbytes - sum(map(need, loaded))
        else:
            free = free_memory() or need(model)  # 0: the system does not say
        if need(model) <= free:
            return None
        return f"{_shown(need(model))} of memory, of which {_shown(max(0, free))} is free"


def need(model: FolderModel) -> int:
    """Return the bytes that *model* takes in a process of its own, with one context."""
    return model.memory + PROCESS


def _shown(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB"
