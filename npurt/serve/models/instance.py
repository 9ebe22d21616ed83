"""A model in use: its front and its engine, from the first request until it is unloaded."""

import asyncio

from npurt.serve.model.front import Front
from npurt.serve.models.folder import FolderModel


class Instance:
    """A model in use.

    Attributes:
        model: Which one.
        users: Requests that have its front and may begin texts.
        used: When a request last came or ended, by the clock of the loop.
        front: None until the tokenizer is there.
        opening: Reads the tokenizer, and returns the front.
        loading: Loads the weights, and then watches the engine; None before the first text.
        unloading: Unloads them.
    """

    def __init__(self, model: FolderModel) -> None:
        self.model = model
        self.users = 0
        self.used = asyncio.get_running_loop().time()
        self.front: Front | None = None
        self.opening: asyncio.Task[Front]
        self.loading: asyncio.Task[None] | None = None
        self.unloading: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a request needs it."""
        return self.users > 0 or (self.front is not None and self.front.active > 0)

    @property
    def loaded(self) -> bool:
        """Whether the weights are loaded."""
        return self.front is not None and self.front.engine.ready is not None

    @property
    def status(self) -> str:
        """``"loaded"``, ``"loading"`` or ``"unloaded"``: the words of llama.cpp's router."""
        if self.loaded:
            return "loaded"
        return "unloaded" if self.loading is None else "loading"
