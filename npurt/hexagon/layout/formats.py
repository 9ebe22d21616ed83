"""The formats of weights in Hexagon images, read from the tables of dsp/formats.inc.

A stored code is ``(code - centre) * gain``.  Its scale is ``unit / gain`` times the scale in the
model file, because dsp/kernels/product.h measures sums in units of `Kernel.unit`.
"""

import functools
from dataclasses import dataclass
from typing import Any

from npurt.hexagon.idl import shared

_TABLES = "dsp/formats.inc"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A row of the table NPURT_KERNEL: one kind of weights."""

    unit: int  # a stored code of this value adds 1 to h; 2 ** (bits dropped by narrowing)
    group: int  # columns that share a scale; 0: the whole row
    bits: int  # maximum bits of a scale's magnitude; sums of products fit
    zero_point: int  # added to stored codes, to make them unsigned
    sums: int  # factor of a sum of x's codes in h; stored offsets are divided by it; 0: no offsets


@dataclass(frozen=True, slots=True)
class ImageFormat:
    """A row of the table NPURT_FORMAT: the image layout of a GGUF type."""

    name: str
    number: int  # GGUF type
    kernel: str  # name of a row of NPURT_KERNEL
    codes: int  # vectors of 128 bytes of codes in a step: 64 columns of 32 rows
    scales: int  # vectors of scales in a step
    offsets: int  # vectors of offsets in a step
    heads: int  # vectors before the first step
    arch: int  # lowest Hexagon version with a kernel
    gain: int  # factor of stored codes
    centre: int  # subtracted from the file's codes

    @property
    def kind(self) -> Kernel:
        """The `Kernel` that multiplies this format."""
        return _kernels()[self.kernel]

    @property
    def vectors(self) -> int:
        """Vectors of 128 bytes in a step."""
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
    """Read the tables at their first use, so that an import opens no file."""
    if name not in ("FORMATS", "BY_NAME"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals().update(FORMATS=_formats(), BY_NAME={f.name: f for f in _formats()})
    return globals()[name]
