"""How each weight format is held in a Hexagon image: dsp/formats.inc, and what it means.

A test compares `FORMATS` with the C table.  A stored code is ``(code - centre) * gain``, so that
codes use their bits whatever the format; the scale that goes with it is ``unit / gain`` times the
file's (`Kernel.unit` is what dsp/kernels/product.h measures sums in).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kind of weights; see dsp/kernels/product.h."""

    unit: int  # stored code that counts 1 in h: 2 ** bits that narrowing drops
    group: int  # columns that share a scale; 0: all
    bits: int  # of the magnitude of a scale, so that sums of products fit
    zero_point: int  # added to stored codes, to make them unsigned
    sums: int  # h's share of a sum of codes of x: offsets are held divided by it


KERNELS = {
    #               unit group bits zero_point sums
    "nib":   Kernel(   1,   32,  15,         8,    0),
    "nibm":  Kernel(   1,   32,  14,         8,    8),
    "lut":   Kernel(  16,   32,  15,       128,    0),
    "byte":  Kernel(  16,   32,  15,       128,    0),
    "bytem": Kernel(  16,   32,  14,       128,    8),
    "half":  Kernel(   8,   16,  14,       128,    0),
    "halfm": Kernel(   8,   16,  13,       128,  -16),
    "wide":  Kernel(4096,   32,  15,     32768,    0),
    "chan":  Kernel(   1,    0,  15,       128,    0),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ImageFormat:
    """One row of dsp/formats.inc, and how its codes are stored."""

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
        """What its kernel wants."""
        return KERNELS[self.kernel]

    @property
    def vectors(self) -> int:
        """Vectors of a step."""
        return self.codes + self.scales + self.offsets


FORMATS = (
    #           name     number kernel codes scales offsets heads arch gain centre
    ImageFormat("f32",        0, "wide",  32, 1, 0, 2, 68,  1,  0),
    ImageFormat("f16",        1, "wide",  32, 1, 0, 2, 68,  1,  0),
    ImageFormat("q4_0",       2, "nib",    8, 1, 0, 2, 68,  1,  8),
    ImageFormat("q4_1",       3, "nibm",   8, 1, 1, 2, 68,  1,  8),
    ImageFormat("q5_0",       6, "byte",  16, 1, 0, 2, 68,  8,  0),
    ImageFormat("q5_1",       7, "bytem", 16, 1, 1, 2, 68,  8, 16),
    ImageFormat("q8_0",       8, "byte",  16, 1, 0, 2, 68,  1,  0),
    ImageFormat("q2_k",      10, "halfm", 16, 2, 2, 2, 68, 32,  2),
    ImageFormat("q3_k",      11, "half",  16, 2, 0, 2, 68, 32,  0),
    ImageFormat("q4_k",      12, "nibm",   8, 1, 1, 2, 68,  1,  8),
    ImageFormat("q5_k",      13, "bytem", 16, 1, 1, 2, 68,  8, 16),
    ImageFormat("q6_k",      14, "half",  16, 2, 0, 2, 68,  4,  0),
    ImageFormat("iq4_nl",    20, "lut",    8, 1, 0, 3, 68,  1,  0),
    ImageFormat("iq4_xs",    23, "lut",    8, 1, 0, 3, 68,  1,  0),
    ImageFormat("i8",        24, "chan",  16, 0, 0, 3, 68,  1,  0),
    ImageFormat("bf16",      30, "wide",  32, 1, 0, 2, 68,  1,  0),
    ImageFormat("mxfp4",     39, "lut",    8, 1, 0, 3, 68,  8,  0),
)  # fmt: skip

BY_NAME = {f.name: f for f in FORMATS}
