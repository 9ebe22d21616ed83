"""The number formats of the MAC array, as a table.

Sources: facts of mtx512/rk3588-npu (int8, fp16), gregordinary/rocket-userspace (int4, bf16, tf32)
and happyme531/rknpu2_matmul_open (all), whose programs ran on silicon.  Precision codes: Mesa
registers.xml.
"""

from dataclasses import dataclass
from types import MappingProxyType

from npurt.errors import UnsupportedOp

# [M] registers.xml, precision of CNA, CORE and DPU
INT8, INT16, FP16, BF16, INT32, FP32, INT4, TF32 = range(8)

MAX_K = 16384  # [M] DATAIN_CHANNEL_REAL has 14 bits; for most formats CBUF has a lower limit
ATOM = 16  # bytes; the unit in which the NPU reads features and writes results


@dataclass(frozen=True, slots=True, eq=False)
class NumberFormat:
    """The operands and the results of a task."""

    name: str
    code: int  # precision of CNA and CORE
    bits: int  # bits of an input element
    group: int  # output channels that the MAC array computes at once
    k_step: int  # K is padded with zeros to a multiple of this
    k_max: int  # largest K of one task; a larger K may overflow the result
    out: str  # numpy type of a result
    out_bytes: int
    out_code: int  # precision that the DPU writes
    dpu_code: int  # precision that the DPU reads from CORE

    @property
    def surfaces(self) -> int:
        """16-byte surfaces of the result of one group: SIZE_E + 1."""
        return self.group * self.out_bytes // ATOM

    @property
    def n_step(self) -> int:
        """N is padded to a multiple of this."""
        return max(self.group, 32)

    @property
    def out_atom(self) -> int:
        """Results in one atom."""
        return ATOM // self.out_bytes

    def in_bytes(self, elements: int) -> int:
        """Return the bytes of *elements* input elements, an even number."""
        return elements * self.bits // 8


# int4 sums saturate at int16: K = 480 is the largest multiple of 32 with 8 * 8 * K < 2^15
# [happyme531].
FORMATS = MappingProxyType({format.name: format for format in (
    #    name         code  bits group step  K max  result     bytes code   dpu
    NumberFormat("int8",      INT8,  8,  32,  32,  MAX_K, "int32",   4, INT32, INT8),
    NumberFormat("int8-fp32", INT8,  8,  32,  32,  MAX_K, "float32", 4, FP32,  INT8),
    NumberFormat("fp16",      FP16, 16,  16,  32,  MAX_K, "float32", 4, FP32,  FP16),
    NumberFormat("fp16-fp16", FP16, 16,  16,  32,  MAX_K, "float16", 2, FP16,  FP16),
    NumberFormat("int4",      INT4,  4,  64,  32,    480, "int16",   2, INT16, INT4),
    NumberFormat("tf32",      TF32, 32,  16,  16,   4096, "float32", 4, FP32,  FP32),
)})  # fmt: skip


def number_format(name: str) -> NumberFormat:
    """Return the format called *name*.

    Raises:
        UnsupportedOp: The NPU has no such format.
    """
    if name not in FORMATS:
        raise UnsupportedOp(
            f"the RK3588 NPU has no number format {name!r}",
            remedy=f"use one of {', '.join(FORMATS)}",
        )
    return FORMATS[name]


FORMS = FORMATS  # the old name
