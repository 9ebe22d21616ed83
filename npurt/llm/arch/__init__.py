"""Model architectures: one file each, conventions as data, one shared decoder."""

from npurt.errors import ModelFormatError
from npurt.llm.arch import (
    exaone4,
    gemma,
    glm4,
    gpt_oss,
    granite,
    lfm2,
    llama,
    mistral3,
    olmo2,
    phi3,
    qwen2,
    qwen2moe,
    qwen3,
    qwen3moe,
    qwen3next,
    qwen35,
    qwen35moe,
    smollm3,
)
from npurt.llm.arch.architecture import Architecture

RUNNING = (
    llama.ARCHITECTURE,
    qwen2.ARCHITECTURE,
    qwen2moe.ARCHITECTURE,
    qwen3.ARCHITECTURE,
    qwen3moe.ARCHITECTURE,
    qwen3next.ARCHITECTURE,
    qwen35.ARCHITECTURE,
    qwen35moe.ARCHITECTURE,
)

# Graphs of these are right, by the interpreter; the host has no kernels yet for all of their ops.
DESCRIBED = (
    exaone4.ARCHITECTURE,
    gemma.GEMMA2,
    gemma.GEMMA3,
    glm4.ARCHITECTURE,
    gpt_oss.ARCHITECTURE,
    granite.ARCHITECTURE,
    lfm2.ARCHITECTURE,
    mistral3.ARCHITECTURE,
    olmo2.ARCHITECTURE,
    phi3.ARCHITECTURE,
    smollm3.ARCHITECTURE,
)
ARCHITECTURES = {architecture.name: architecture for architecture in RUNNING}
GRAPHS = ARCHITECTURES | {architecture.name: architecture for architecture in DESCRIBED}


def find(name: str, *, to_run: bool = True) -> Architecture:
    """Return the architecture called *name*.

    Args:
        to_run: Refuse one whose graph is known and cannot be run yet.

    Raises:
        ModelFormatError: npurt does not know it, or does not run it.
    """
    known = ARCHITECTURES if to_run else GRAPHS
    if name not in known:
        raise ModelFormatError(
            f"npurt does not run models of architecture {name!r}",
            remedy=f"use a file of one of: {', '.join(known)}",
        )
    return known[name]
