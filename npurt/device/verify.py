"""Verify products by Freivalds' test: y = W x is right when r . y = (W^T r) . x.

The probe vector r is random.  r and s = W^T r are computed once per weight, in float64.  A check
costs N + K multiply-adds a row; the product costs N * K.

The bound.  Element n of y is a sum of G groups.  Each group rounds at most five times (scale
product, sum product, integer sum of remainders, two fused multiply-adds); a product with a float
weight rounds once a column.  The error of each rounding is at most u = 2^-24 times a partial sum.
By Cauchy-Schwarz no partial sum exceeds a_n |x|, where a_n is the norm of row n of W (scaled codes
plus offsets).  The bound assumes that rounding errors are independent and have mean zero.  By
Hoeffding's inequality the error of r . y then exceeds

    LAMBDA * u * sqrt(roundings) * sqrt(sum_n (r_n a_n)^2) * |x|

with probability below 2 exp(-LAMBDA^2 / 2) = 3e-14.  Adding a bias rounds once more, with an error
of u times the result and u times the bias.

Small numbers.  Numbers below h = 2^-126 have fewer bits in float32, and some threads are set to
treat such operands and results as 0.  So every operation may have an error of h times its factor,
and all these errors may have the same sign.  For a group with the scale w of weights, the scale x
of activations and an offset o, the errors are:

    the product of scales        h (1 + |w| + |x|), times the sum of code products, below 2^27
    the sum of activations       h (1 + |sum of codes of x|), times |o|
    two fused multiply-adds      2 h each, for the addend and the result

Over all groups, the sum of |w| times code products is at most 2^15 sqrt(K) a_n, and the sum of |o|
times sums of codes has the same limit.  The sum of |x| times code products is at most
2^7 sqrt(K) |x|.  A column of a float weight adds h (|w| + |x| + 2); all columns add at most
h (sqrt(K) (a_n + |x|) + 2 K).  `Packed.floor` and `Packed.error` return these bounds for a result.
The error of s adds h sqrt(K) |x| for each row of W.

Large numbers.  A result beyond the range of float32 is infinite, or NaN if partial sums of both
signs overflow.  Freivalds' test does not work for a row with infinite or NaN results, so each
element of the row is compared with a product in float64.  An element that is not finite is accepted
if an intermediate value (`Packed.peak` plus the bound) may have overflowed.  Rows of x with NaN or
infinity, which are valid operands of float weights, are not checked.

The check finds a wrong element whose error is more than twice the bound of r . y.
Sources: Freivalds 1977; Higham & Mary 2019 (probabilistic rounding analysis); IEEE 754-2019, 7.5.
"""

import math
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol, runtime_checkable

import numpy as np

from npurt.device.device import F32, F64, FLUSHED, LAMBDA, MAX_CODES, MAX_SUM, UNIT, Packed
from npurt.errors import DriverError, NumericsError, SettingError, brief
from npurt.settings import VERIFY, read

PROBE_ROUNDINGS = 2 * 64 + 2  # roundings in an element of s: check__vec.c sums in float32
OVERFLOW = 2.0**128 * (1 - 2.0**-7)  # a value that 2^17 roundings may increase to an overflow
SLICE = 1024  # rows of a weight that are converted to float64 at a time
ORACLE = "scalar"  # the CPU's instruction set whose kernels recompute wrong products
WRONG_TWICE = (  # a remedy
    "check the hash of the model file and the memory of this machine (memtest), then run again "
    "with NPURT_VERIFY=always and report the output"
)
SAMPLE = 0.01  # fraction of products checked in `sample` mode, after the first of each shape


class WrongResult(DriverError):
    """A result of a device failed verification."""

    def __init__(self, what: str) -> None:
        super().__init__(what, remedy=WRONG_TWICE, call="verify", code=0)


class Mode(Enum):
    """The choice of products to verify."""

    OFF = "off"
    SAMPLE = "sample"
    ALWAYS = "always"


def mode(name: str | None = None) -> Mode:
    """Return the mode called *name*, by default the mode that `NPURT_VERIFY` names."""
    stated = name is None or (isinstance(name, str) and not name)
    chosen = read(VERIFY, str) if stated else name
    try:
        return Mode(chosen)
    except ValueError:
        of = "" if not stated else f", which {VERIFY.name}={chosen!r} states,"
        raise SettingError(
            f"verification mode {brief(chosen)}{of} does not exist",
            remedy="use off, sample or always",
        ) from None


@dataclass(frozen=True, slots=True)
class Probe:
    """The probe vector and bounds that checks of products with one weight ``[N, K]`` use."""

    r: F64  # [N]
    s: F64  # [K]
    bound: float  # of |r . y - s . x|, per unit of |x| or of another magnitude of x
    floor: float  # added to the bound


def probe_vector(n: int) -> F64:
    """Return r: random signs times random sizes in [1, 2), exact in float32.

    Each element is a float32 with random sign and mantissa bits and the exponent of 1.  Importing
    numpy's random generators would take longer than loading the weights of a small model.
    """
    bits = np.frombuffer(os.urandom(4 * n), np.uint32)
    return (bits & 0x807FFFFF | 0x3F800000).view(np.float32).astype(np.float64)


def make_probe(
    name: str, r: F64, s: F64, squares: float, group: int, bias: F32 | None = None
) -> Probe:
    """Return the probe for r, s = W^T r and *squares* = sum_n (r_n a_n)^2.

    *group* is the number of columns that share a scale, and 1 for float weights.

    Raises:
        NumericsError: The weight called *name* contains NaN or infinity.
    """
    _require_finite(name, s)
    n, k = len(r), len(s)
    norm = math.sqrt(squares)
    roundings = PROBE_ROUNDINGS + 2 + (k if group == 1 else 5 * k / group)
    sums, codes = (2.0, 1.0) if group == 1 else (MAX_SUM, MAX_CODES)
    small = 2 * n * (sums * k / group) + codes * math.sqrt(n * k) * norm  # |r_n| < 2
    biases = 0.0
    if bias is not None:
        small += 2 * n * 3
        biases = float(np.linalg.norm(r * bias))
    return Probe(
        r,
        s,
        LAMBDA * UNIT * math.sqrt(roundings) * norm + FLUSHED * 2 * n * 256 * math.sqrt(k),
        LAMBDA * UNIT * biases + FLUSHED * small,
    )


def probe_of(name: str, packed: Packed) -> Probe:
    """Make a probe from the values that a device multiplies by.

    The errors are those of `make_probe`.
    """
    r = probe_vector(packed.n)
    s: F64 | None = None
    squares = floor = 0.0
    for rows in _slices(packed):
        part = r[rows] @ packed.multiplied(rows)
        s = part if s is None else s + part
        squares += float(((r[rows] * packed.error(rows)) ** 2).sum())
        floor += float((abs(r[rows]) * packed.floor(rows)).sum())
    assert s is not None, "a packed weight has rows"
    _require_finite(name, s)
    return Probe(r, s, LAMBDA * math.sqrt(squares), floor)


def _slices(packed: Packed) -> Iterator[slice]:
    return (slice(start, start + SLICE) for start in range(0, packed.n, SLICE))


def _require_finite(name: str, s: F64) -> None:
    if not np.isfinite(s).all():
        raise NumericsError(
            f"{name} holds NaN or infinity",
            remedy="the file is damaged: download it again, or convert the model again",
        )


def is_right(
    probe: Probe,
    packed: Packed,
    x: F64,
    y: F32,
    *,
    magnitudes: F64 | None = None,
    bias: F32 | None = None,
) -> bool:
    """Return whether ``y[M, N] = x[M, K] @ W.T + bias`` within the probe's bound.

    Args:
        x: The rounded activations that the device multiplied: `Device.multiplied`.
        magnitudes: The unit ``[M]`` of the bound of each row; by default the norms of x.
    """
    if magnitudes is None:
        magnitudes = np.sqrt((x**2).sum(axis=1))
    added = np.zeros(packed.n) if bias is None else bias.astype(np.float64)
    with np.errstate(all="ignore"):  # y may contain any bit pattern
        results = y.astype(np.float64) if bias is None else y - added
        error = abs(results @ probe.r - x @ probe.s)
        wrong = ~(error <= probe.bound * magnitudes + probe.floor)
    wrong &= np.isfinite(x).all(axis=1)
    return not wrong.any() or _is_overflow(packed, x[wrong], y[wrong], magnitudes[wrong], added)


def _is_overflow(packed: Packed, x: F64, y: F32, magnitudes: F64, bias: F64) -> bool:
    """Return whether every row of y has an overflow, and all other elements are correct."""
    finite = np.isfinite(y)
    if finite.all(axis=1).any():
        return False
    for rows in _slices(packed):
        exact = x @ packed.multiplied(rows).T + bias[rows]
        bound = LAMBDA * magnitudes[:, None] * packed.error(rows) + packed.floor(rows)
        bound += LAMBDA * UNIT * abs(bias[rows]) + 3 * FLUSHED
        with np.errstate(invalid="ignore"):
            near = abs(y[:, rows] - exact) <= bound
        beyond = packed.peak(rows, x) + abs(bias[rows]) + bound >= OVERFLOW
        if not np.where(finite[:, rows], near, beyond).all():
            return False
    return True


class Sampler:
    """Chooses the products to check: all, none, or the first of each kind and 1 % of the others."""

    def __init__(self, how: Mode, chance: random.Random | None = None) -> None:
        self.mode = how
        self._seen: set[object] = set()
        self._random = chance or random.Random()
        self._skip = self._draw()

    def _draw(self) -> int:
        """Return how many products to skip, drawn so that each product has the same chance."""
        return int(math.log(1 - self._random.random()) / math.log(1 - SAMPLE))

    def is_first(self, kind: object) -> bool:
        """Return whether no product of this *kind* was checked before, and record this one."""
        new = kind not in self._seen
        self._seen.add(kind)
        return new

    def choose(self, count: int) -> list[int]:
        """Return the indices of the products to check among the next *count* products."""
        if self.mode is Mode.OFF:
            return []
        if self.mode is Mode.ALWAYS:
            return list(range(count))
        chosen = []
        while self._skip < count:
            chosen.append(self._skip)
            self._skip += 1 + self._draw()
        self._skip -= count
        return chosen


@dataclass(slots=True)
class Check:
    """Checks the products of a device with one weight.

    Attributes:
        name: The name of the weight.
        packed: The weight on its device.
        bias: The bias ``[N]`` that is added to the products.
    """

    name: str
    packed: Packed
    bias: F32 | None = None
    _probe: Probe | None = None  # made at the first check
    # Whether a product of one row (False) and one of several rows (True) was seen.
    _seen: set[bool] = field(default_factory=set)

    def is_due(self, sampler: Sampler, rows: int) -> bool:
        """Return whether *sampler* chooses a product of *rows* rows for a check."""
        several = rows > 1
        if sampler.mode is Mode.SAMPLE and several not in self._seen:
            self._seen.add(several)
            packed = self.packed
            kind = packed.device.caps.name, packed.tensor.dtype, packed.n, packed.k, several
            if sampler.is_first(kind):
                return True
        return bool(sampler.choose(1))

    def accepts(self, x: F32, y: F32) -> bool:
        """Return whether y is the product of x and the weight, plus the bias.

        The errors are those of `make_probe`.
        """
        packed = self.packed
        if self._probe is None:
            probe = self._probe = probe_of(self.name, packed)
            if self.bias is not None:
                rounding = LAMBDA * UNIT * float(np.linalg.norm(probe.r * self.bias))
                self._probe = replace(probe, floor=probe.floor + rounding)
        multiplied = packed.device.multiplied(x, packed)
        magnitudes = packed.device.magnitudes(x, packed)
        return is_right(self._probe, packed, multiplied, y, magnitudes=magnitudes, bias=self.bias)


@runtime_checkable
class Probing(Protocol):
    """A device that makes probes of its weights faster than `probe_of`."""

    def probe(self, name: str, packed: Packed) -> Probe:
        """Return the probe of a weight of this device; *name* is for errors."""
