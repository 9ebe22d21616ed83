"""Verification of products by Freivalds' test: y = W x is right when r . y = (W^T r) . x.

r is a secret random vector, made once per weight; s = W^T r is computed once, in double.  A check
costs N + K multiply-adds a row where the product took N * K.

The bound.  Element n of y is a sum of G groups, each of which rounds at most five times (scale
product, sum product, integer sum of fine codes, two fused multiply-adds); a float weight rounds
once a column.  Each rounding is at most u = 2^-24 of a partial sum, and no partial sum exceeds
a_n |x|, a_n being the norm of row n's scaled codes plus offsets (Cauchy-Schwarz).  Roundings are
taken as independent and of mean zero, so by Hoeffding's inequality the error of r . y exceeds

    LAMBDA * u * sqrt(roundings) * sqrt(sum_n (r_n a_n)^2) * |x|

with probability below 2 exp(-LAMBDA^2 / 2) = 3e-14.  A wrong element is found when it is off by
more than twice that over |r_n|, and |r_n| is at least 1.  Squares below 2^-149 are lost to float32:
so much for each weight is added to the sum.  Products below 2^-126 round worse than this says.
Sources: Freivalds 1977; Higham & Mary 2019 (probabilistic rounding analysis).
"""

import math
import random
from dataclasses import dataclass
from enum import Enum

import numpy as np

from npurt.device import F32, F64, UNIT, Packed
from npurt.errors import NumericsError, SettingError
from npurt.settings import VERIFY, read

LAMBDA = 8.0
SPREAD_ROUNDINGS = 2 * 64 + 2  # of each element of s, added up in float32 (check__vec.c)
LEAST_SQUARE = 2.0**-149  # that float32 holds
SAMPLE = 0.01  # share of products checked in `sample` mode, after the first of each shape


class Mode(Enum):
    """How much is verified."""

    OFF = "off"
    SAMPLE = "sample"
    ALWAYS = "always"


def mode(name: str | None = None) -> Mode:
    """Return the mode called *name*, by default the one of `NPURT_VERIFY`."""
    name = name or read(VERIFY, str)
    try:
        return Mode(name)
    except ValueError:
        raise SettingError(
            f"verification mode {name!r} does not exist", remedy="use off, sample or always"
        ) from None


@dataclass(frozen=True, slots=True)
class Secret:
    """What checking products with one weight ``[N, K]`` needs."""

    r: F64  # [N]
    s: F64  # [K]
    bound: float  # of |r . y - s . x| / |x|, or over another measure of x


def secret_vector(n: int) -> F64:
    """Return r: random signs times random sizes in [1, 2), which float32 holds exactly."""
    rng = np.random.default_rng()
    sizes = rng.choice((-1.0, 1.0), n) * rng.uniform(1, 2, n)
    return sizes.astype(np.float32).astype(np.float64)


def make_secret(name: str, r: F64, s: F64, squares: float, group: int) -> Secret:
    """Return the secret for r, s = W^T r and *squares* = sum_n (r_n a_n)^2; group 1 is a float.

    Raises:
        NumericsError: The weight called *name* holds NaN or infinity.
    """
    _require_finite(name, s)
    n, k = len(r), len(s)
    roundings = SPREAD_ROUNDINGS + 2 + (k if group == 1 else 5 * k / group)
    squares += n * k * LEAST_SQUARE
    return Secret(r, s, LAMBDA * UNIT * math.sqrt(roundings) * math.sqrt(squares))


def secret_of(name: str, packed: Packed) -> Secret:
    """Make a secret from what a device multiplies by, in slices of rows; raises `make_secret`'s."""
    r = secret_vector(packed.n)
    s: F64 | None = None
    squares = 0.0
    for start in range(0, packed.n, 1024):
        rows = slice(start, start + 1024)
        part = r[rows] @ packed.multiplied(rows)
        s = part if s is None else s + part
        squares += float(((r[rows] * packed.error(rows)) ** 2).sum())
    assert s is not None, "a packed weight has rows"
    _require_finite(name, s)
    squares += packed.n * len(s) * LEAST_SQUARE * UNIT**2
    return Secret(r, s, LAMBDA * math.sqrt(squares))


def _require_finite(name: str, s: F64) -> None:
    if not np.isfinite(s).all():
        raise NumericsError(
            f"{name} holds NaN or infinity",
            remedy="the file is damaged: download it again, or convert the model again",
        )


def is_right(secret: Secret, x: F64, y: F32, magnitudes: F64 | None = None) -> bool:
    """Check ``y[M, N] = x[M, K] @ W.T`` without bias; NaN is wrong.

    Args:
        magnitudes: What the bound is per unit of, ``[M]``; by default the norms of x.
    """
    if magnitudes is None:
        magnitudes = np.sqrt((x**2).sum(axis=1))
    with np.errstate(all="ignore"):  # y may be any bits
        error = abs(y.astype(np.float64) @ secret.r - x @ secret.s)
    return bool((error <= secret.bound * magnitudes).all())


class Sampler:
    """Decides which products to check: all, none, or the first of each kind and then 1 %."""

    def __init__(self, how: Mode, chance: random.Random | None = None) -> None:
        self.mode = how
        self._seen: set[object] = set()
        self._random = chance or random.Random()
        self._skip = self._draw()

    def _draw(self) -> int:
        """Products to pass over until the next check: geometric, so each has the same chance."""
        return int(math.log(1 - self._random.random()) / math.log(1 - SAMPLE))

    def is_first(self, kind: object) -> bool:
        """Say whether no product of this *kind* was checked before; it counts as checked now."""
        new = kind not in self._seen
        self._seen.add(kind)
        return new

    def choose(self, count: int) -> list[int]:
        """Return which of the next *count* products to check, by index."""
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
