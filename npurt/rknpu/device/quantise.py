"""Quantise weights for the RK3588 NPU, whose exact int8 products have no block scales.

A result is ``sum_k x[k] w[n, k]`` of int8 codes, with a scale for each row of x and each row of w.
With such scales, one outlier reduces the precision of its whole row.  So K is rotated first, with
random signs S and a Walsh-Hadamard matrix H in blocks of 64 columns.  The rotation spreads an
outlier over its block, and cancels in the product: ``(x S H) (w S H).T = 64 x w.T``.

If 8 bits are not enough for activations, they are rounded in two passes, and the second pass rounds
the remainder of the first.  Both passes are rows of the same task, so the weights are read once.  K
may be split into groups with their own scales.  Weights for which int8 is too inexact are stored as
float16.

Errors are relative mean squares.  The error of ``w`` is computed from its scales: the mean square
error of rounding is a twelfth of the squared step.  The error of x was measured on three language
models: docs/rk3588.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.device.device import F32, F64
from npurt.errors import LayoutError, NumericsError
from npurt.quant.activations import not_finite
from npurt.quant.tensor import QTensor
from npurt.rknpu.driver.native.host import I8, round_rows
from npurt.rknpu.isa.formats import number_format
from npurt.rknpu.plan.tiling import padded

BLOCK = 64  # columns of a rotation; larger blocks improve little
SLICE = 1024  # rows of w that are converted to float32 at a time

REMAINDER_STEPS = 254  # steps of the second int8 pass in a step of the first: npurt_rk.h

# Accepted relative errors, the sum of the errors of weights and activations.
BUDGET = 3e-4
INT16_BUDGET = 1.2e-4


@dataclass(frozen=True, slots=True)
class Scheme:
    """A method to quantise the operands of a product."""

    name: str
    task: str  # number format of the NPU's tasks
    passes: int  # int8 passes over the activations
    group: int  # columns of K that share scales; 0 for all
    rotated: bool
    x_error: float  # relative mean square error of results from rounding x


# The errors of x are means over 350 tokens of text, for the product with the largest error in
# SmolLM2-135M, Qwen2.5-0.5B and 1.5B.  A step of the second pass is a 254th of a step of the first.
SCHEMES = (
    Scheme("int8", "int8", 1, 0, True, 1.2e-4),
    Scheme("int8x2", "int8", 2, 0, True, 1.2e-4 / REMAINDER_STEPS**2),
    Scheme("int8x2-g512", "int8", 2, 512, True, 1.2e-4 / REMAINDER_STEPS**2),
    Scheme("fp16", "fp16", 1, 0, False, 2.0**-24),
)
PLAIN = Scheme("int8-plain", "int8", 1, 0, False, 6.2e-3)  # only for int8 codes from the caller
BY_NAME = {scheme.name: scheme for scheme in (*SCHEMES, PLAIN)}


def default_scheme(*, int16: bool) -> Scheme:
    """Return the usual scheme, which estimates assume for weights that are not quantised yet."""
    return BY_NAME["int8x2" if int16 else "int8"]


@dataclass(frozen=True, slots=True)
class RoundedColumns:
    """Some columns of a weight, rounded.

    Attributes:
        columns: The columns.
        block: Columns of a rotation, 1 for none.
        signs: Signs of the rotation, int8 ``[Kp]``, or None.
        codes: int8 or float16 ``[N, Kp]``; Kp is a multiple of the number format's `k_step`.
        scales: float32 ``[N]``; ``x @ w.T`` is the product of the codes, times the scales of both.
    """

    columns: slice
    block: int
    signs: I8 | None
    codes: npt.NDArray[Any]
    scales: F32

    def values(self, rows: slice) -> F32:
        """Return the rounded values ``[rows, Kp]`` in the rotated basis."""
        scaled: F32 = self.codes[rows].astype(np.float32) * self.scales[rows, None]
        return scaled


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """A weight ``[N, K]`` rounded by a scheme."""

    scheme: Scheme
    parts: tuple[RoundedColumns, ...]
    w_error: float  # relative mean square error of the weights

    @property
    def error(self) -> float:
        """Expected relative mean square error of results."""
        return self.w_error + self.scheme.x_error


def signs_of(kp: int) -> I8:
    """Return the signs for *kp* columns; all weights share them, so x is rotated once."""
    return np.random.default_rng(kp).choice(np.array([-1, 1], np.int8), kp)


def block_of(kp: int) -> int:
    """Return the largest block that divides *kp*, at most `BLOCK`."""
    return min(BLOCK, kp & -kp)


def column_groups(k: int, group: int) -> list[slice]:
    """Return the parts of K: *group* columns each, or one part when *group* is 0."""
    step = group or k
    return [slice(start, min(start + step, k)) for start in range(0, k, step)]


def quantise_weight(tensor: QTensor, scheme: Scheme) -> QuantisedWeight:
    """Round a weight ``[N, K]`` by *scheme*.

    Raises:
        NumericsError: The weight holds NaN or infinity, or exceeds float16.
    """
    n, k = tensor.shape
    parts = [_empty(n, columns, scheme) for columns in column_groups(k, scheme.group)]
    energy = lost = 0.0
    for start in range(0, n, SLICE):
        rows = slice(start, start + SLICE)
        values = tensor[rows].dequantize()
        energy += float((values.astype(np.float64) ** 2).sum())
        for part in parts:
            lost += _round_slice(part, rows, np.ascontiguousarray(values[:, part.columns]))
    return QuantisedWeight(scheme, tuple(parts), lost / energy if energy else 0.0)


def from_codes(codes: I8, scales: F32) -> QuantisedWeight:
    """Wrap int8 codes ``[N, K]`` and a scale for each row as a quantised weight.

    Raises:
        LayoutError: Shapes or types do not fit.
        NumericsError: A scale is not finite.
    """
    n, k = codes.shape if codes.ndim == 2 else (0, 0)
    if codes.dtype != np.int8 or not n or not k or scales.shape != (n,):
        raise LayoutError(
            f"i8 weights are int8 [N, K] and N scales, not {codes.dtype} {codes.shape} and "
            f"{scales.shape}",
            remedy="pass codes of int8 and one float32 for each row of them",
        )
    if not np.isfinite(scales).all():
        raise NumericsError(
            "a scale of an i8 weight is NaN or infinity",
            remedy="compute the scales again from finite weights",
        )
    part = _empty(n, slice(0, k), PLAIN)
    part.codes[:, :k] = codes
    part.scales[:] = scales
    return QuantisedWeight(PLAIN, (part,), 0.0)


def _empty(n: int, columns: slice, scheme: Scheme) -> RoundedColumns:
    kp = padded(columns.stop - columns.start, number_format(scheme.task).k_step)
    rotated = scheme.rotated
    return RoundedColumns(
        columns=columns,
        block=block_of(kp) if rotated else 1,
        signs=signs_of(kp) if rotated else None,
        codes=np.zeros((n, kp), np.int8 if scheme.task == "int8" else np.float16),
        scales=np.ones(n, np.float32),
    )


def _round_slice(part: RoundedColumns, rows: slice, values: F32) -> float:
    """Quantise some rows into *part*; return the sum of squared rounding errors."""
    codes, scales = part.codes[rows], part.scales[rows]
    if codes.dtype == np.int8:
        try:
            round_rows(values, codes, scales, signs=part.signs, block=part.block, passes=1)
        except NumericsError as error:
            raise NumericsError(
                "a weight holds NaN or infinity, or values too large to add up",
                remedy="download or convert the file again: this weight is damaged",
            ) from error
        scales /= part.block
        # Steps of scale * block in a basis whose vectors have length sqrt(block).
        steps = float((scales.astype(np.float64) ** 2).sum())
        return steps * part.block * int(codes.shape[1]) / 12
    with np.errstate(over="ignore"):
        codes[:, : values.shape[1]] = values
    if not np.isfinite(codes).all():
        worst = values[~np.isfinite(codes[:, : values.shape[1]])][0]
        raise NumericsError(
            f"a weight is {worst:g}, and the NPU takes at most 65504, the largest float16",
            remedy="use the CPU for this file, or check it: no known model has such weights",
        )
    return float(((codes[:, : values.shape[1]] - values.astype(np.float64)) ** 2).sum())


def candidates(tensor: QTensor, *, int16: bool) -> Iterator[QuantisedWeight]:
    """Yield roundings of *tensor*, cheapest first; `choose` takes the first within the budget.

    Args:
        int16: Omit schemes that round x to 8 bits.
    """
    for scheme in SCHEMES:
        if not (int16 and scheme.x_error > INT16_BUDGET / 2):
            yield quantise_weight(tensor, scheme)


def choose(tensor: QTensor, *, int16: bool) -> QuantisedWeight:
    """Return the cheapest rounding of *tensor* within the budget, or else the most exact one.

    Raises:
        NumericsError: As `quantise_weight`.
    """
    budget = INT16_BUDGET if int16 else BUDGET
    tried = []
    for quantised in candidates(tensor, int16=int16):
        if quantised.error <= budget:
            return quantised
        tried.append(quantised)
    return min(tried, key=lambda quantised: quantised.error)


def outlier_rows(
    x: F32, x_error: float, *, kp: int, signs: I8 | None, block: int
) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows of x ``[M, K]`` whose error with one int8 pass exceeds *x_error*.

    The step of a row is a 127th of its largest magnitude after rotation, and the mean square error
    is a twelfth of the squared step.  The error is relative to the median of the mean squares of
    groups of eight columns.  The median represents most columns, even if a few are far larger.

    Raises:
        NumericsError: x holds NaN or infinity.
    """
    codes, scales = np.empty((len(x), kp), np.int8), np.empty(len(x), np.float32)
    round_rows(x, codes, scales, signs=signs, block=block, passes=1)
    padded = np.zeros((len(x), kp))
    padded[:, : x.shape[1]] = x
    squares = (padded.reshape(len(x), -1, 8) ** 2).mean(axis=2)  # rotation multiplies by block
    lost = scales.astype(np.float64) ** 2 / 12
    result: npt.NDArray[np.bool_] = lost > x_error * block * np.median(squares, axis=1)
    return result


HALF_TOP = 14  # rows are scaled so that their largest float16 value is just below 2^14
MIN_EXPONENT = -126  # smallest exponent of a scale, which has to be a normal float32


def float16_scales(x: F32, first: int = 0) -> F32:
    """Return the powers of two ``[M]`` that divide the rows of x before rounding to float16.

    In errors, *first* is the number of the first row.

    Raises:
        NumericsError: A row holds NaN or infinity.
    """
    maximum = abs(x).max(axis=1)
    if not np.isfinite(maximum).all():
        row = first + int(np.flatnonzero(~np.isfinite(maximum))[0])
        raise not_finite(f"row {row} holds NaN or infinity")
    exponents = np.maximum(np.frexp(maximum)[1] - HALF_TOP, MIN_EXPONENT)
    return np.asarray(np.ldexp(np.float32(1), exponents), np.float32)


def to_float16(x: F32) -> F64:
    """Return the values of x after scaling by `float16_scales` and rounding to float16."""
    scales = float16_scales(x)[:, None]
    exact: F64 = (x / scales).astype(np.float16).astype(np.float64) * scales
    return exact
