"""Tasks: products that fit CBUF and the register fields, and their address generators.

Pure integers.  The NPU computes the product as a 1x1 convolution: rows of A are the pixels of an
image, columns of A its channels, rows of B the kernels.  Sources of the two address generators:
happyme531/rknpu2_matmul_open (ROW, NATIVE_W, panels), mtx512/rk3588-npu (NATIVE_H), Mesa
rkt_task.c.
"""

from dataclasses import dataclass
from functools import cached_property

from npurt.errors import LayoutError
from npurt.rknpu.isa import cbuf
from npurt.rknpu.isa.formats import ATOM, MAX_K, NumberFormat
from npurt.rknpu.isa.layout import Layout
from npurt.rknpu.isa.regs import REG

MAX_N = 8192  # [M] DATA_CUBE_CHANNEL has 13 bits; 16384 gave wrong results in ork-driver
MAX_M = cbuf.MAX_WIDTH
MAX_NOTCH = (1 << REG["DPU_DATA_CUBE_NOTCH_ADDR"].fields["notch_addr_0"].width) - 1
ANY_LINE_STRIDE = 0x200  # happyme531's value for tasks of one line, which do not use it [?]


@dataclass(frozen=True, slots=True)
class Features:
    """The address generator of the CNA, which reads A; unit: atoms.

    ``atom(h, w, s)`` is at ``h * line_stride + w + s * (width + surf_stride)`` when *by_line*, else
    at ``h // 4 * line_stride + h % 4 * width + w + s * (4 * width + surf_stride)``.
    """

    width: int
    height: int
    by_line: bool
    line_stride: int
    surf_stride: int


@dataclass(frozen=True, slots=True)
class Results:
    """The address generator of the DPU, which writes C; unit: atoms.

    ``atom(h, w, s)`` is at ``h * (width + notch) + w + s % S * surf_stride + s // S * surf_add``.
    S is the number of surfaces in a group.
    """

    width: int
    height: int
    notch: int
    surf_stride: int
    surf_add: int


@dataclass(frozen=True)
class Task:
    """``C[m, n] = A[m, k] @ B[n, k].T`` where A and C may be parts of larger matrices.

    Raises:
        LayoutError: A size is too large, or not a multiple of the NPU's step.
    """

    format: NumberFormat
    layout: Layout
    m: int
    k: int
    n: int
    rows: int  # rows of the whole A and the whole C
    columns: int  # columns of the whole A; the whole C has n

    def __post_init__(self) -> None:
        format = self.format
        _check("M", self.m, 1, MAX_M)
        _check("K", self.k, format.k_step, MAX_K)
        _check("K of A", self.columns, format.k_step, 1 << 30)
        _check("N", self.n, format.group, max_columns(format, self.layout))
        if self.k > self.columns or self.m > self.rows:
            raise LayoutError(
                f"a task of {self.m} x {self.k} is larger than A, {self.rows} x {self.columns}",
                remedy="give the size of the whole A",
            )
        if self.layout is Layout.NATIVE_H and self.m != self.rows:
            raise LayoutError(
                f"native-h cannot take {self.m} of {self.rows} rows", remedy="use native-w"
            )
        self.layout.panel(self.m)

    @cached_property
    def features(self) -> Features:
        """The parameters with which the CNA reads A."""
        row_atoms = self.format.in_bytes(self.columns) // ATOM
        if self.layout is Layout.NATIVE_H:
            return Features(1, self.m, False, 4, self.m - 4)
        if self.layout is not Layout.NATIVE_W:
            panel = self.layout.panel(self.m)
            return Features(panel, self.m // panel, True, panel * row_atoms, 0)
        if self.m == self.rows:
            return Features(self.m, 1, False, ANY_LINE_STRIDE, -3 * self.m)
        return Features(self.m, 1, True, self.rows, self.rows - self.m)

    @cached_property
    def results(self) -> Results:
        """The parameters with which the DPU writes C."""
        surfaces = self.format.surfaces
        if self.layout is Layout.NATIVE_H:
            return Results(1, self.m, 0, self.rows, self.rows * surfaces)
        if self.layout is Layout.NATIVE_W:
            return Results(self.m, 1, 0, self.rows, self.rows * surfaces)
        panel = self.layout.panel(self.m)
        notch = (self.n // self.format.out_atom - 1) * panel
        return Results(panel, self.m // panel, notch, panel, panel * surfaces)

    def offset_in_a(self, m: int, k: int) -> int:
        """Return the offset in bytes of row *m* and column *k* in A."""
        if self.layout in (Layout.NATIVE_W, Layout.NATIVE_H):
            return m * ATOM + self.format.in_bytes(k) * self.rows
        panel = self.layout.panel_rows
        return m * self.format.in_bytes(self.columns) + self.format.in_bytes(k) * panel

    def offset_in_c(self, m: int) -> int:
        """Return the offset in bytes of row *m* in C."""
        if self.layout in (Layout.NATIVE_W, Layout.NATIVE_H):
            return m * ATOM
        return m * self.n * self.format.out_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of the image of B."""
        return self.n * self.format.in_bytes(self.k)


def max_columns(format: NumberFormat, layout: Layout) -> int:
    """Return the largest number of columns of C in one task; for panels the notch limits it."""
    if layout in (Layout.NATIVE_W, Layout.NATIVE_H):
        return MAX_N
    maximum = (MAX_NOTCH // layout.panel_rows + 1) * format.out_atom
    return min(MAX_N, maximum // format.n_step * format.n_step)


def _check(name: str, value: int, step: int, maximum: int) -> None:
    if value < 1:
        raise LayoutError(
            f"{name} = {value} leaves nothing to compute", remedy=f"use {step} to {maximum}"
        )
    if value > maximum:
        raise LayoutError(
            f"{name} = {value} is more than {maximum}, the limit of one task",
            remedy=f"split the product into tasks of at most {maximum}",
        )
    if value % step:
        raise LayoutError(
            f"{name} = {value} is no multiple of {step}",
            remedy=f"pad {name} to {-(-value // step) * step} with zeros",
        )
