"""Decide when a model is loaded and unloaded, by its memory and its idle time."""

from dataclasses import dataclass

from npurt.llm.session.memory import free_memory, total_memory
from npurt.serve.router.folder import FolderModel

PROCESS = 200 << 20  # bytes: Python, its libraries and the vocabulary; docs/memory.md
IDLE_SECONDS = 300.0  # Ollama's default


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits that decide when a model is loaded and unloaded.

    Attributes:
        idle: Seconds after its last request at which a model is unloaded; 0: never.
        maximum: Upper bound on the number of loaded models; None: limited by memory only.
        nbytes: Memory budget of all loaded models in bytes; None: the machine's free memory.
    """

    idle: float = IDLE_SECONDS
    maximum: int | None = None
    nbytes: int | None = None

    def too_large(self, model: FolderModel) -> str | None:
        """Return the reason if *model* can never be loaded, else None."""
        all_of_it = self.nbytes or total_memory()
        if not all_of_it or need(model) <= all_of_it:
            return None
        whose = "--models-bytes allows" if self.nbytes else "this machine has"
        return f"{_shown(need(model))} of memory, and {whose} {_shown(all_of_it)}"

    def shortage(self, model: FolderModel, loaded: list[FolderModel]) -> str | None:
        """Return the reason if *model* cannot be loaded beside the *loaded* models, else None."""
        if self.maximum is not None and len(loaded) >= self.maximum:
            return f"a place beside {len(loaded)} others, the most that --models-max allows"
        if self.nbytes is not None:
            free = self.nbytes - sum(map(need, loaded))
        else:
            free = free_memory() or need(model)  # free_memory() is 0 if it is unknown
        if need(model) <= free:
            return None
        return f"{_shown(need(model))} of memory, of which {_shown(max(0, free))} is free"


def need(model: FolderModel) -> int:
    """Return the memory in bytes of a process that runs *model* with one context."""
    return model.memory + PROCESS


def _shown(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB"
