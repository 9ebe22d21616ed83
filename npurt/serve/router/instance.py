"""The state of a model in use: its front and engine, from its first request until unloading."""

import asyncio

from npurt.serve.front.front import Front
from npurt.serve.router.folder import FolderModel


class Instance:
    """The state of a model in use.

    Attributes:
        model: The model in the folder.
        users: Number of requests that use the front and may begin sequences.
        used: The event loop's time at which a request last began or ended.
        front: The model's front; None until the tokenizer is loaded.
        opening: The task that reads the tokenizer and returns the front.
        loading: The task that loads the weights and then watches the engine; None before the first
            sequence.
        unloading: The task that unloads the weights; None until unloading starts.
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
        """Whether a request uses the model."""
        return self.users > 0 or (self.front is not None and self.front.active > 0)

    @property
    def loaded(self) -> bool:
        """Whether the weights are loaded."""
        return self.front is not None and self.front.engine.ready is not None

    @property
    def status(self) -> str:
        """``"loaded"``, ``"loading"`` or ``"unloaded"``, as in llama.cpp's router."""
        if self.loaded:
            return "loaded"
        return "unloaded" if self.loading is None else "loading"
