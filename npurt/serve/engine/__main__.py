"""`python -m npurt.serve.engine SOCKET`: the process of an engine."""

import socket
import sys
from collections.abc import Mapping
from typing import Any

from npurt.serve.engine.worker import Backend, Emit, work


def open_backend(path: str, options: Mapping[str, Any], emit: Emit) -> Backend:
    """Open the model of the file *path*; with the option *embeddings*, for embeddings only."""
    others = dict(options)
    if others.pop("embeddings", False):
        from npurt.serve.engine.embeddings import Embeddings

        return Embeddings(path, others, emit)
    from npurt.serve.engine.batched import Batched

    return Batched(path, others, emit)


if __name__ == "__main__":
    work(socket.socket(fileno=int(sys.argv[1])), open_backend)
