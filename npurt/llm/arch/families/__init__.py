"""Model families: one module for each family, with its conventions as data.

May import `npurt.llm.arch.architecture` and the subpackage `npurt.llm.file`.  Begin with `llama`.
"""

from importlib import import_module

from npurt.base import late
from npurt.errors import ModelFormatError
from npurt.llm.arch.architecture import Architecture

# Architecture -> MODULE or MODULE:NAME; the name of the object in the module is ARCHITECTURE by
# default.  `find` imports only the module of the requested architecture.
ARCHITECTURES = {
    "bert": "bert",
    "exaone4": "exaone4",
    "gemma": "gemma:GEMMA",
    "gemma2": "gemma:GEMMA2",
    "gemma3": "gemma:GEMMA3",
    "glm4": "glm4",
    "gpt-oss": "gpt_oss",
    "granite": "granite",
    "lfm2": "lfm2",
    "llama": "llama",
    "mistral3": "mistral3",
    "nomic-bert": "nomic_bert",
    "olmo2": "olmo2",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3moe",
    "qwen3next": "qwen3next",
    "qwen35": "qwen35",
    "qwen35moe": "qwen35moe",
    "smollm3": "smollm3",
}


def find(name: str) -> Architecture:
    """Return the architecture called *name*.

    Raises:
        ModelFormatError: npurt does not support this architecture.
    """
    if name not in ARCHITECTURES:
        raise ModelFormatError(
            f"npurt does not run models of architecture {name!r}",
            remedy=f"use a file of one of: {', '.join(ARCHITECTURES)}",
        )
    module, _, attribute = ARCHITECTURES[name].partition(":")
    with late.imports():
        found = getattr(import_module(f"{__name__}.{module}"), attribute or "ARCHITECTURE")
    assert isinstance(found, Architecture)
    return found
