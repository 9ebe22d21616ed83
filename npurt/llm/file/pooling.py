"""How the hidden states of a text become its embedding, as GGUF metadata says.

Source of the key and its numbers: llama.cpp include/llama.h (enum llama_pooling_type), MIT.
"""

from enum import Enum

from npurt.errors import ModelFormatError, SettingError, brief
from npurt.llm.file.metadata import CONVERT_AGAIN, Metadata, require


class Pooling(Enum):
    """How the hidden states ``[T, D]`` of a text become its embedding."""

    NONE = "none"  # all of them
    MEAN = "mean"  # their mean
    CLS = "cls"  # the first
    LAST = "last"  # the last
    RANK = "rank"  # scores that a classifier computes from one of them


NUMBERS = dict(enumerate(Pooling))  # values of <a>.pooling_type


def read_pooling(metadata: Metadata) -> Pooling | None:
    """Return the pooling that a file names, None if it names none.

    Raises:
        ModelFormatError: It names one that does not exist.
    """
    key = f"{require(metadata, 'general.architecture', str)}.pooling_type"
    if key not in metadata:
        return None
    number = require(metadata, key, int)
    if number not in NUMBERS:
        raise ModelFormatError(f"{key} = {number} is no kind of pooling", remedy=CONVERT_AGAIN)
    return NUMBERS[number]


def pooling_of(name: str | None, metadata: Metadata) -> Pooling:
    """Return the pooling called *name*; None: the one that the file names, or else the mean.

    Raises:
        ModelFormatError: See `read_pooling`.
        SettingError: There is none of this name.
    """
    if name is None:
        return read_pooling(metadata) or Pooling.MEAN
    names = [pooling.value for pooling in Pooling]
    if not isinstance(name, str) or name not in names:
        raise SettingError(
            f"pooling is {brief(name)}", remedy=f"use one of {', '.join(names)}, or None"
        )
    return Pooling(name)
