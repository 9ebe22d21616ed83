"""`python -m npurt.serve.engine SOCKET`: the process of an engine."""

import socket
import sys
from collections.abc import Mapping
from typing import Any

from npurt.serve.engine.worker import Emit, EngineBackend, work


def open_backend(path: str, options: Mapping[str, Any], emit: Emit) -> EngineBackend:
    """Open the model of the file *path*; with the option *embeddings*, for embeddings only."""
    others = dict(options)
    # Messages of the front have lists where `Llama` expects tuples.
    lora = [(file, float(scale)) for file, scale in others.pop("lora", None) or ()]
    if others.pop("embeddings", False):
        from npurt.serve.engine.embeddings import Embeddings

        return Embeddings(path, others | {"lora": lora or None}, emit)
    from npurt.serve.engine.batched import Batched

    if not lora:
        return Batched(path, others, emit)
    from npurt.serve.engine.adapters import Adapted, Scales

    def opener(scales: Scales, emit: Emit) -> EngineBackend:
        files = (file for file, _ in lora)
        return Batched(path, others | {"lora": list(zip(files, scales, strict=True))}, emit)

    return Adapted(opener, tuple(scale for _, scale in lora), emit)


if __name__ == "__main__":
    work(socket.socket(fileno=int(sys.argv[1])), open_backend)
