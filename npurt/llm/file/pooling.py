"""Read from GGUF metadata how an embedding is computed from hidden states.

Source of the key and its numbers: llama.cpp include/llama.h (enum llama_pooling_type), MIT.
"""

from collections.abc import Collection
from enum import Enum

from npurt.errors import ModelFormatError, SettingError, brief
from npurt.llm.file.metadata import CONVERT_AGAIN, Metadata, require


class Pooling(Enum):
    """The function from the hidden states ``[T, D]`` of a text to its embedding."""

    NONE = "none"  # all hidden states
    MEAN = "mean"  # the mean of the hidden states
    CLS = "cls"  # the first hidden state
    LAST = "last"  # the last hidden state
    RANK = "rank"  # scores that a classifier computes from one hidden state


# The classifier of a reranker: hidden state -> tanh(dense) -> output; a file may lack one of them.
# Source of the names and of the order: llama.cpp src/llama-graph.cpp (build_pooling), MIT.
DENSE, OUTPUT = "cls", "cls.output"

NUMBERS = dict(enumerate(Pooling))  # values of <a>.pooling_type


def has_classifier(tensors: Collection[str]) -> bool:
    """Return whether *tensors*, the names in a file, include a reranker's classifier."""
    return f"{DENSE}.weight" in tensors or f"{OUTPUT}.weight" in tensors


def read_pooling(metadata: Metadata) -> Pooling | None:
    """Return the pooling that the metadata specify, or None if they specify none.

    Raises:
        ModelFormatError: The metadata have an unknown number.
    """
    key = f"{require(metadata, 'general.architecture', str)}.pooling_type"
    if key not in metadata:
        return None
    number = require(metadata, key, int)
    if number not in NUMBERS:
        raise ModelFormatError(f"{key} = {number} is an unknown pooling", remedy=CONVERT_AGAIN)
    return NUMBERS[number]


def pooling_of(name: str | None, metadata: Metadata) -> Pooling:
    """Return the pooling called *name*; None returns the metadata's pooling, or else the mean.

    Raises:
        ModelFormatError: As `read_pooling`.
        SettingError: *name* is no pooling.
    """
    if name is None:
        return read_pooling(metadata) or Pooling.MEAN
    names = [pooling.value for pooling in Pooling]
    if not isinstance(name, str) or name not in names:
        raise SettingError(
            f"pooling is {brief(name)}", remedy=f"use one of {', '.join(names)}, or None"
        )
    return Pooling(name)
