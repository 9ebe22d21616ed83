"""Model architectures: one file each, conventions as data, one shared decoder."""

from npurt.errors import ModelFormatError
from npurt.llm.arch import (
    llama,
    qwen2,
    qwen2moe,
    qwen3,
    qwen3moe,
    qwen3next,
    qwen35,
    qwen35moe,
)
from npurt.llm.arch.architecture import Architecture

ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        llama.ARCHITECTURE,
        qwen2.ARCHITECTURE,
        qwen2moe.ARCHITECTURE,
        qwen3.ARCHITECTURE,
        qwen3moe.ARCHITECTURE,
        qwen3next.ARCHITECTURE,
        qwen35.ARCHITECTURE,
        qwen35moe.ARCHITECTURE,
    )
}


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
