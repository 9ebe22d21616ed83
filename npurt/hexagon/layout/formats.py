"""How a Hexagon image holds each weight format: the tables of dsp/formats.inc.

A stored code is ``(code - centre) * gain``.  The scale that goes with it is ``unit / gain`` times
the file's (dsp/kernels/product.h measures sums in units of `Kernel.unit`).
"""

from dataclasses import dataclass

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
        return KERNELS[self.kernel]

    @property
    def vectors(self) -> int:
        """Vectors of a step."""
        return self.codes + self.scales + self.offsets


def _kernels() -> dict[str, Kernel]:
    kernels = {}
    for name, _, dropped, *rest in shared.rows(_TABLES, "NPURT_KERNEL"):
        kernels[name] = Kernel(1 << int(dropped), *map(int, rest))
    return kernels


def _formats() -> tuple[ImageFormat, ...]:
    rows = shared.rows(_TABLES, "NPURT_FORMAT")
    return tuple(
        ImageFormat(name, int(number), kernel, *map(int, rest))
        for name, number, kernel, *rest in rows
    )


KERNELS = _kernels()
FORMATS = _formats()
BY_NAME = {f.name: f for f in FORMATS}
