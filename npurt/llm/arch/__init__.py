"""Model architectures: a file each, with conventions as data, and what they share.

`forward` builds the graph of a model, `weights` loads its matrices, `decoder` runs it on the host.
May import the rooms `file` and `state`.  Begin with `architecture`.
"""

from npurt.errors import ModelFormatError
from npurt.llm.arch import (
    bert,
    exaone4,
    gemma,
    glm4,
    gpt_oss,
    granite,
    lfm2,
    llama,
    mistral3,
    nomic_bert,
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

ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        bert.ARCHITECTURE,
        exaone4.ARCHITECTURE,
        gemma.GEMMA2,
        gemma.GEMMA3,
        glm4.ARCHITECTURE,
        gpt_oss.ARCHITECTURE,
        granite.ARCHITECTURE,
        lfm2.ARCHITECTURE,
        llama.ARCHITECTURE,
        mistral3.ARCHITECTURE,
        nomic_bert.ARCHITECTURE,
        olmo2.ARCHITECTURE,
        phi3.ARCHITECTURE,
        qwen2.ARCHITECTURE,
        qwen2moe.ARCHITECTURE,
        qwen3.ARCHITECTURE,
        qwen3moe.ARCHITECTURE,
        qwen3next.ARCHITECTURE,
        qwen35.ARCHITECTURE,
        qwen35moe.ARCHITECTURE,
        smollm3.ARCHITECTURE,
    )
}


def find(name: str) -> Architecture:
    """Return the architecture called *name*.

    Raises:
        ModelFormatError: npurt does not know it.
    """
    if name not in ARCHITECTURES:
        raise ModelFormatError(
            f"npurt does not run models of architecture {name!r}",
            remedy=f"use a file of one of: {', '.join(ARCHITECTURES)}",
        )
    return ARCHITECTURES[name]
