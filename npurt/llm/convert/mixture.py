"""Choose the type of each tensor of a file, including llama.cpp's mixed types.

A mixed type gives more bits to the tensors whose rounding affects results most: the value
projections and the down projections, in the first and the last eighth of the layers and in every
third layer between.
Source: llama.cpp src/llama-quant.cpp (`llama_tensor_get_type_impl`, September 2026), MIT.  Its
special case for Falcon is not implemented.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from npurt.errors import SettingError
from npurt.llm.convert.types import fitting, is_matrix, type_of
from npurt.llm.file.metadata import Metadata, optional, require
from npurt.quant.encode import ENCODABLE
from npurt.quant.types import BY_NAME, Format

# Mixed type -> the type of most of its tensors.
MIXED = {"q4_k_m": "q4_k", "q4_k_s": "q4_k", "q5_k_m": "q5_k", "q5_k_s": "q5_k",
         "mxfp4_moe": "q8_0"}  # fmt: skip
VALUES = ("attn_v", "attn_qkv", "attn_kv_b")
FEW_EXPERTS = 8  # Mixtral: its attention matrices are small compared with the experts
SHARED_HEADS = 80  # layers of the 70B models, in which 8 query heads share each value head
OUTPUT, EMBEDDING = "output.weight", "token_embd.weight"


@dataclass(frozen=True, slots=True)
class Override:
    """A type that the user chose for some tensors.

    Attributes:
        pattern: A regular expression, searched in the tensor's name.
        type: The name of the type.
    """

    pattern: re.Pattern[str]
    type: str

    @classmethod
    def parse(cls, text: str) -> "Override":
        """Read ``PATTERN=TYPE``.

        Raises:
            SettingError: *text* has another form, or npurt does not write the type.
        """
        pattern, _, name = text.rpartition("=")
        if not pattern or name.lower() not in ENCODABLE:
            raise SettingError(
                f"{text!r} is no PATTERN=TYPE"
                + (f": npurt writes no tensors of type {name!r}" if pattern else ""),
                remedy=f"pass for example attn_v=q8_0, with one of {', '.join(ENCODABLE)}",
            )
        try:
            return cls(re.compile(pattern), name.lower())
        except (re.error, OverflowError, RecursionError) as error:
            raise SettingError(
                f"{pattern!r} is no regular expression: {error}",
                remedy="pass a part of the tensors' names, or a regular expression",
            ) from error


class Types:
    """The type of each tensor of one file.

    Args:
        kind: A type of `npurt.llm.convert.types.FILE_TYPES`.
        names: The names of all tensors.
        metadata: The keys of the file; mixed types need the numbers of layers, experts and heads.
        overrides: The first override whose pattern matches a matrix's name sets its type.

    Raises:
        SettingError: An override matches no tensor.
        ModelFormatError: *kind* is mixed, and a key is missing.
    """

    def __init__(
        self,
        kind: str,
        names: Iterable[str],
        metadata: Metadata,
        overrides: Sequence[Override] = (),
    ) -> None:
        every = sorted(names, key=lambda name: (_layer(name), name))
        self._kind, self._overrides = kind, overrides
        self._tied = OUTPUT not in every
        for each in overrides:
            if not any(each.pattern.search(name) for name in every):
                raise SettingError(
                    f"no tensor has {each.pattern.pattern!r} in its name",
                    remedy="pass a part of the tensors' names, which look like blk.0.attn_v.weight",
                )
        values = [name for name in every if _part(name) in VALUES]
        self._values = {name: i for i, name in enumerate(values)}
        self._layers = self._experts = 0
        self._shared_heads = False
        if kind in MIXED:
            arch = require(metadata, "general.architecture", str)
            self._layers = require(metadata, f"{arch}.block_count", int)
            self._experts = optional(metadata, f"{arch}.expert_count", int, 0)
            heads = metadata.get(f"{arch}.attention.head_count")
            shared = np.any(metadata.get(f"{arch}.attention.head_count_kv", heads) != heads)
            self._shared_heads = self._layers == SHARED_HEADS and (
                arch == "qwen2" or (arch == "llama" and bool(shared))
            )

    def of(self, name: str, shape: Sequence[int]) -> Format:
        """Return the type of the tensor *name*."""
        if not is_matrix(name, shape):
            return BY_NAME["f32"]
        for override in self._overrides:
            if override.pattern.search(name):
                return fitting(override.type, shape)
        base = MIXED.get(self._kind)
        if base is None:
            return type_of(name, shape, self._kind, tied=self._tied)
        if self._kind == "mxfp4_moe":
            return fitting("mxfp4" if len(shape) == 3 else base, shape)
        if name == OUTPUT or (name == EMBEDDING and self._tied):
            return fitting("q6_k", shape)
        return fitting(self._mixed(name, base), shape)

    def _mixed(self, name: str, base: str) -> str:
        part, few = _part(name), self._experts == FEW_EXPERTS
        small = self._kind == "q4_k_s"
        if part in VALUES:
            i, count = self._values[name], len(self._values)
            if few:
                return "q8_0"
            if self._kind.endswith("_m") and _gets_more(i, count):
                return "q6_k"
            if (small and i < 4) or (self._shared_heads and base == "q4_k"):
                return "q5_k"
        elif part.startswith("ffn_down"):
            i, count = _layer(name), self._layers
            if self._kind.endswith("_m") and _gets_more(i, count):
                return "q6_k"
            if small and i < count // 8:
                return "q5_k"
        elif few and part == "attn_k":
            return "q8_0"
        elif few and part == "attn_output" and base == "q4_k":
            return "q5_k"
        return base


def _gets_more(i: int, count: int) -> bool:
    """Return whether *i* is in the first or last eighth of *count*, or every third between them."""
    eighth = count // 8
    return i < eighth or i >= 7 * count // 8 or (i - eighth) % 3 == 2


def _layer(name: str) -> int:
    match = re.match(r"blk\.(\d{1,9})\.", name, re.ASCII)
    return int(match[1]) if match else -1


def _part(name: str) -> str:
    """Return the part of a tensor's name between the layer and ``.weight``, such as ``attn_v``."""
    return name.removesuffix(".weight").rpartition(".")[2]
