"""Read a LoRA adapter in the GGUF format.

For a weight W ``[N, K]`` the adapter has A ``[R, K]``, the tensor ``NAME.lora_a``, and B
``[N, R]``, the tensor ``NAME.lora_b``.  With the adapter, the product with W becomes
``W x + s B (A x)``.  R is the rank.  The factor s is the user's scale times alpha / R, or the
user's scale if the file has no alpha.
Source: llama.cpp src/llama-adapter.cpp and llama-adapter.h (keys, shapes, scale), MIT.
"""

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from npurt.errors import ModelFormatError, SettingError, brief
from npurt.llm.file.gguf import GGUF
from npurt.llm.file.metadata import optional, require
from npurt.quant.tensor import QTensor
from npurt.runtime.open.arguments import listed

A, B = ".lora_a", ".lora_b"
MAX_INPUT = 2.0**20  # upper bound of the inputs of products, which are normalised in usable models
AGAIN = "convert the adapter again with llama.cpp's convert_lora_to_gguf.py"

Source = str | os.PathLike[str]
Lora = Source | tuple[Source, float] | Sequence[Source | tuple[Source, float]]


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """The term that an adapter adds to one product: ``factor * (x @ a.T) @ b.T``."""

    a: QTensor  # [R, K], float32
    b: QTensor  # [N, R], float32
    factor: float  # 0 adds nothing


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """A LoRA adapter.

    Attributes:
        name: The name of the file.
        architecture: The architecture of the adapter's base model.
        parts: Name of a weight of the model -> the term added to its products.
        digest: A hash of the scale, alpha and tensors.
    """

    name: str
    architecture: str
    parts: dict[str, LowRank]
    digest: bytes

    @classmethod
    def read(cls, path: Source, scale: float = 1.0) -> "Adapter":
        """Read the adapter in the file *path*.

        Raises:
            ModelFormatError: The file is damaged, or no LoRA adapter that npurt supports.
            SettingError: *scale* is not a finite number, or too large for float32.
        """
        scale = _number(path, scale)
        with GGUF(path) as file:
            name = file.path.name
            if optional(file.metadata, "general.type", str, "model") != "adapter":
                raise ModelFormatError(
                    f"{name} is no adapter", remedy="pass a model with -m, an adapter with --lora"
                )
            kind = optional(file.metadata, "adapter.type", str, "")
            if kind != "lora" or "adapter.alora.invocation_tokens" in file.metadata:
                raise ModelFormatError(
                    f"{name} is an adapter of another kind ({kind or 'unknown'})",
                    remedy="use a plain LoRA adapter",
                )
            alpha = optional(file.metadata, "adapter.lora.alpha", float, 0.0)
            if not math.isfinite(alpha):
                raise ModelFormatError(f"{name}: adapter.lora.alpha is {alpha}", remedy=AGAIN)
            parts = _parts(file, scale, alpha)
            digest = hashlib.sha256(repr((scale, alpha)).encode())
            for tensor in sorted(file):
                digest.update(tensor.encode("utf-8", "surrogateescape"))
                digest.update(file[tensor].blocks.tobytes())
            return cls(name, require(file.metadata, "general.architecture", str), parts,
                       digest.digest())  # fmt: skip


def _parts(file: GGUF, scale: float, alpha: float) -> dict[str, LowRank]:
    """Return a dict of the A and B in *file* by the name of their weight."""
    name, found = file.path.name, {}
    stems = dict.fromkeys(tensor.removesuffix(A).removesuffix(B) for tensor in file)
    for stem in stems:
        missing = [stem + end for end in (A, B) if stem + end not in file]
        if stem in file:
            raise ModelFormatError(
                f"{name} has {stem}, which is no part of a LoRA",
                remedy="use an adapter that has only LoRA pairs; npurt would ignore other tensors, "
                "and the output would be wrong",
            )
        if missing:
            raise ModelFormatError(f"{name} lacks {', '.join(missing)}", remedy=AGAIN)
        a, b = _values(file, stem + A), _values(file, stem + B)
        if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
            raise ModelFormatError(
                f"{name}: {stem} has A {list(a.shape)} and B {list(b.shape)}; npurt applies "
                "[R, K] and [N, R]",
                remedy="use an adapter without experts" if a.ndim == 3 else AGAIN,
            )
        found[stem] = LowRank(a, b, _factor(name, scale, alpha, a.shape[0]))
        _require_small(name, stem, found[stem])
    if not found:
        raise ModelFormatError(f"{name} has no tensors", remedy=AGAIN)
    return found


def _number(path: Source, scale: Any) -> float:
    """Return *scale*, a Python or numpy number, as a float."""
    try:
        value = float(scale) if isinstance(scale, Real) else math.nan
    except OverflowError:  # an integer too large for a float
        value = math.inf
    if not math.isfinite(value):
        raise SettingError(
            f"the scale of {path} is {brief(scale, 40)}", remedy="pass a finite number, such as 1.0"
        )
    return value


def _factor(name: str, scale: float, alpha: float, rank: int) -> float:
    """Return the factor of the products, or 0 if it rounds to 0 in float32."""
    factor = scale * alpha / rank if alpha else scale
    if abs(factor) > float(np.finfo(np.float32).max):
        raise SettingError(
            f"the scale of {name} is {scale}; its factor, {factor}, exceeds the range of float32 "
            f"(alpha {alpha}, rank {rank})",
            remedy="pass a smaller scale",
        )
    return factor if np.float32(factor) else 0.0


def _require_small(name: str, stem: str, part: LowRank) -> None:
    """Raise an error if products with the finite values of *part* may overflow float32.

    Raises:
        ModelFormatError: Products may overflow.
    """
    rank, k = part.a.shape
    a, b = (float(abs(each.blocks).max()) for each in (part.a, part.b))
    low = MAX_INPUT * k * a
    high = low * rank * b
    if part.factor and max(low, high, high * abs(part.factor)) > float(np.finfo(np.float32).max):
        raise ModelFormatError(
            f"{name}: values of {stem} reach {a:.3g} in A and {b:.3g} in B, and the factor is "
            f"{part.factor:.3g}: products of these values overflow float32",
            remedy="pass a smaller scale, or use another adapter: its training diverged",
        )


def _values(file: GGUF, name: str) -> QTensor:
    values = file[name].dequantize()
    if not np.isfinite(values).all():
        raise ModelFormatError(f"{file.path.name}: {name} holds NaN or infinity", remedy=AGAIN)
    return QTensor(values, "f32")


def adapters(lora: Lora | None) -> list[Adapter]:
    """Read the adapters in *lora*: a path, a tuple (path, scale), or a list of these.

    Errors as `Adapter.read`; also SettingError if *lora* has another form.
    """
    if lora is None:
        return []
    one = isinstance(lora, str | os.PathLike) or (
        isinstance(lora, tuple) and len(lora) == 2 and isinstance(lora[1], Real)
    )
    given = [lora] if one else listed("lora", lora, "a path, (path, scale), or a list of these")
    found = []
    for each in given:
        pair: Any = each if isinstance(each, tuple) and len(each) == 2 else (each, 1.0)
        path, scale = pair
        if not isinstance(path, str | os.PathLike):
            raise SettingError(
                f"lora = {brief(lora, 80)} is no list of adapters",
                remedy="pass a path, (path, scale), or a list of these",
            )
        found.append(Adapter.read(Path(path), scale))
    return found
