"""A server of several models: the router runs in this process, each engine in its own."""

import contextlib
import shutil
import sys

from npurt.serve.app import application
from npurt.serve.front.front import ServerSettings
from npurt.serve.router.folder import scan
from npurt.serve.router.policy import Policy
from npurt.serve.router.router import Launch, Router
from tests.llm import tiny
from tests.serve.client import Client

FILES = {"a": tiny.path("llama3", "q8_0"), "b": tiny.path("qwen3", "q8_0")}


def fill(folder, files=FILES):
    """Copy *files* into *folder* under the given names."""
    for name, path in files.items():
        shutil.copy(path, folder / f"{name}.gguf")
    return folder


class Several(Client):
    """A `Router` for the models of *folder*, and requests to it; *options* are for the engine."""

    def __init__(self, folder, *, policy=None, settings=None, engine=None, guard=None, **options):
        self.stuck = False
        command = [sys.executable, "-m", engine or "tests.serve.fake_engine"]
        models, _ = scan(folder, options.get("n_ctx"))
        launch = Launch(command, options)
        self.router = Router(models, launch, settings or ServerSettings(), policy or Policy())
        self.app = application(self.router, **(guard or {}))

    def status(self):
        """Return the status of each model by its name."""
        return {offer.model.name: offer.status for offer in self.router.offers()}

    def engine(self, name):
        """Return the engine of a loaded model."""
        return next(o.front.engine for o in self.router.offers() if o.model.name == name)

    async def text(self, model, prompt="once", tokens=8, **fields):
        """Return the completion of *model* for *prompt*."""
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "seed": 1} | fields
        reply = await self("/v1/completions", body)
        assert reply.status == 200, reply.body
        assert reply.json["model"] == model.removesuffix(".gguf")
        return reply.json["choices"][0]["text"]


@contextlib.asynccontextmanager
async def several(folder, **options):
    """Yield a `Several`, and stop its engines at the end."""
    client = Several(folder, **options)
    try:
        yield client
    finally:
        await client.router.close()
