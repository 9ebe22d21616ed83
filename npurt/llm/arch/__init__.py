"""Model architectures: one file each, conventions as data, one shared decoder."""

from npurt.errors import ModelFormatError
from npurt.llm.arch import llama, qwen2
from npurt.llm.arch.decoder import Architecture

ARCHITECTURES = {a.name: a for a in (llama.ARCHITECTURE, qwen2.ARCHITECTURE)}


def find(name: str) -> Architecture:
    """Return the architecture called *name*.

    Raises:
        ModelFormatError: npurt does not run it.
    """
    if name not in ARCHITECTURES:
        raise ModelFormatError(
            f"npurt does not run models of architecture {name!r}",
            remedy=f"use a file of one of: {', '.join(ARCHITECTURES)}",
        )
    return ARCHITECTURES[name]
