"""How a Hexagon image holds each weight format: the tables of dsp/formats.inc.

A stored code is ``(code - centre) * gain``.  The scale that goes with it is ``unit / gain`` times
the file's (dsp/kernels/product.h measures sums in units of `Kernel.unit`).
"""

import functools
from dataclasses import dataclass
from typing import Any

from npurt.hexagon.idl import shared

_TABLES = "dsp/formats.inc"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A row of NPURT_KERNEL: a kind of weights."""

    unit: int  # stored code that counts 1 in h: 2 ** bits that narrowing drops
    group: int  # columns that share a scale; 0: all
    bits: int  # of the magnitude of a scale, so that sums of products fit
    zero_point: int  # added to stored codes, to make them unsigned
    sums: int  # the share in h of a sum of codes of x: offsets are held divided by it


@dataclass(frozen=True, slots=True)
class ImageFormat:
    """A row of NPURT_FORMAT: a GGUF type, and how its codes are stored."""

    name: str
    number: int  # GGUF type
    kernel: str
    codes: int  # vectors of 128 bytes in a step of 64 columns of 32 rows
    scales: int
    offsets: int
    heads: int  # vectors before the first step
    arch: int  # least Hexagon version
    gain: int
    centre: int

    @property
    def kind(self) -> Kernel:
        """The kind of weights that its kernel takes."""
        return _kernels()[self.kernel]

    @property
    def vectors(self) -> int:
        """Vectors of a step."""
        return self.codes + self.scales + self.offsets


@functools.cache
def _kernels() -> dict[str, Kernel]:
    kernels = {}
    for name, _, dropped, *rest in shared.rows(_TABLES, "NPURT_KERNEL"):
        kernels[name] = Kernel(1 << int(dropped), *map(int, rest))
    return kernels


@functools.cache
def _formats() -> tuple[ImageFormat, ...]:
    rows = shared.rows(_TABLES, "NPURT_FORMAT")
    return tuple(
        ImageFormat(name, int(number), kernel, *map(int, rest))
        for name, number, kernel, *rest in rows
    )


FORMATS: tuple[ImageFormat, ...]
BY_NAME: dict[str, ImageFormat]


def __getattr__(name: str) -> Any:
    """Read the tables when they are first used: an import opens no file."""
    if name not in ("FORMATS", "BY_NAME"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals().update(FORMATS=_formats(), BY_NAME={f.name: f for f in _formats()})
    return globals()[name]
