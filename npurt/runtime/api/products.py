"""Run the products of `npurt.matmul` on one device, verify them, and count them in a ledger."""

import sys
import threading
import time
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.device.device import F32, Device, ExactInt8, Packed
from npurt.device.verify import (
    ORACLE,
    WRONG_TWICE,
    Mode,
    Probe,
    Probing,
    Sampler,
    is_right,
    probe_of,
)
from npurt.errors import UnsupportedOp, VerificationFailed
from npurt.runtime.open.devices import open_oracle
from npurt.runtime.report.ledger import Ledger, Report, Row

I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]

WITHIN = ("npurt", "numpy")  # packages whose frames are skipped to find the user's line


@dataclass(slots=True, eq=False)
class Weight:
    """A packed weight, its device and its checks."""

    packed: Packed
    planned: str  # the device that the weight was packed for
    reason: str = ""  # why the weight moved to another device
    probe: Probe | None = None  # made at the first check
    # Whether a product of one row (False) and one of several rows (True) was verified.
    seen: set[bool] = field(default_factory=set)


class Products:
    """Runs products on *device*, verifies and counts them.

    In mode ``sample`` a weight's first product of one row, its first product of several rows and
    1 % of the later products are verified.  int8 products of two arrays are verified in the same
    way, by shape.  If a product is wrong, plain C kernels of the CPU compute it again, with a
    warning, and run all later products with its weight.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._lock = threading.RLock()  # guards the attributes below
        self._oracle: Device | None = None  # the CPU with the plainest kernels
        self._ledger = Ledger(f"{device.caps.name}: {device.caps.detail}")
        self._samplers = {mode: Sampler(mode) for mode in Mode}

    def report(self) -> Report:
        """Return the counts of products, and of verified products, by device."""
        with self._lock:
            return self._ledger.report()

    def matmul(self, x: F32, weight: Weight, mode: Mode, *, once: bool = False) -> F32:
        """Return ``x @ w.T``, float32.

        Args:
            once: The weight is packed for this product only.  The product then counts as a first
                product if no earlier product had this format and shape.

        Raises:
            VerificationFailed: The product is wrong on the device and on the CPU.
        """
        packed, several = weight.packed, len(x) > 1
        y = np.empty((len(x), packed.n), np.float32)
        row = self._multiply(packed, weight, x, y)
        kind = (packed.tensor.dtype, packed.n, packed.k, several)
        with self._lock:
            new = self._is_first(mode, kind) if once else several not in weight.seen
            if self._chosen(mode, new):
                weight.seen.add(several)
                row.verified += 1
                self._verify(packed, weight, x, y, row)
        return y

    def matmul_i8(self, a: I8, b: I8, mode: Mode) -> I32:
        """Return ``a @ b``, exact.

        Raises:
            UnsupportedOp: The device does not multiply int8 arrays exactly.
            VerificationFailed: The product is wrong on the device and on the CPU.
        """
        name, (k, n) = self.device.caps.name, b.shape
        if not isinstance(self.device, ExactInt8):
            raise UnsupportedOp(
                f"{name} has no exact product of int8 arrays", remedy="use device='cpu'"
            )
        start = time.perf_counter()
        y = self.device.matmul_i8(a, b)
        seconds = time.perf_counter() - start
        with self._lock:
            row = self._ledger.row(Row("matmul", "int8", (n, k), name, name))
            _count(row, len(a), b.nbytes, seconds)
            if self._chosen(mode, self._is_first(mode, ("int8", n, k, len(a) > 1))):
                row.verified += 1
                if not is_exact(a, b, y):
                    row.failed += 1
                    y = self._again_i8(a, b)
        return y

    def _again_i8(self, a: I8, b: I8) -> I32:
        """Compute a wrong product of the device again, on the CPU."""
        name, what = self.device.caps.name, f"int8 product of {a.shape} and {b.shape}"
        self._say(f"{name} computed a wrong {what}")
        plain = self._plain()
        assert isinstance(plain, ExactInt8)
        y = plain.matmul_i8(a, b)
        if not is_exact(a, b, y):
            raise _wrong_twice(f"an {what}", name)
        return y

    def close(self) -> None:
        """Close the device.  A second call does nothing."""
        self.device.close()
        if self._oracle:
            self._oracle.close()

    def _is_first(self, mode: Mode, kind: Any) -> bool:
        return mode is Mode.SAMPLE and self._samplers[mode].is_first(kind)

    def _chosen(self, mode: Mode, first: bool) -> bool:
        return (first and mode is Mode.SAMPLE) or bool(self._samplers[mode].choose(1))

    def _multiply(self, packed: Packed, weight: Weight, x: F32, y: F32) -> Row:
        """Write the product to y; return its row of the ledger."""
        start = time.perf_counter()
        packed.device.matmul(x, packed, y)
        seconds = time.perf_counter() - start
        kind, shape = packed.tensor.dtype, (packed.n, packed.k)
        actual = packed.device.caps.name
        with self._lock:
            about = Row("matmul", kind, shape, weight.planned, actual, weight.reason)
            row = self._ledger.row(about)
            _count(row, len(x), packed.nbytes, seconds)
            return row

    def _verify(self, packed: Packed, weight: Weight, x: F32, y: F32, row: Row) -> None:
        """Verify y, and compute it again with plain C kernels if it is wrong."""
        if weight.packed is packed:  # else another thread found an error and moved the weight
            if _is_right(weight, x, y):
                return
            wrong = packed.device.caps.name
            row.failed += 1
            self._say(f"{wrong} computed a wrong product with {packed.tensor!r}")
            weight.packed = self._plain().pack(packed.tensor)
            weight.probe = probe_of(repr(packed.tensor), weight.packed)  # from the file's values
            weight.reason = f"{wrong} computed a wrong product with it"
        again = self._multiply(weight.packed, weight, x, y)
        again.verified += 1
        if not _is_right(weight, x, y):
            again.failed += 1
            raise _wrong_twice(f"a product with {packed.tensor!r}", weight.planned)

    def _plain(self) -> Device:
        """Return the CPU with its plainest kernels."""
        if self._oracle is None:
            self._oracle = open_oracle()
        return self._oracle

    def _say(self, what: str) -> None:
        """Warn the caller of `npurt.matmul`, and add a note to the report."""
        note = f"quarantined: {what}; the CPU ({ORACLE} kernels) computed it again"
        if note not in self._ledger.notes:
            self._ledger.notes.append(note)
        warnings.warn(note, RuntimeWarning, stacklevel=_users_level())


def _users_level() -> int:
    """Return the stacklevel, for the caller's `warn`, of the user's line that called npurt."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in WITHIN:
        level, frame = level + 1, frame.f_back
    return level


def _count(row: Row, rows: int, nbytes: int, seconds: float) -> None:
    row.calls += 1
    row.rows += rows
    row.macs += rows * row.shape[0] * row.shape[1]
    row.nbytes += nbytes
    row.seconds += seconds


def _is_right(weight: Weight, x: F32, y: F32) -> bool:
    packed = weight.packed
    if weight.probe is None:
        name = repr(packed.tensor)
        if isinstance(packed.device, Probing):
            weight.probe = packed.device.probe(name, packed)
        else:
            weight.probe = probe_of(name, packed)
    multiplied = packed.device.multiplied(x, packed)
    magnitudes = packed.device.magnitudes(x, packed)
    return is_right(weight.probe, packed, multiplied, y, magnitudes=magnitudes)


def is_exact(a: I8, b: I8, y: I32) -> bool:
    """Test whether y is ``a @ b``: return whether ``y r`` equals ``a (b r)`` for a random probe r.

    The integer sums are below 2^63: |y| is at most 2^31, |r| below 2^11 and N at most 2^19.  b r is
    below 2^37, so it is exact in float64; K is at most 2^17.  The test always finds a single wrong
    element of a row.  The errors of two wrong elements cancel with a probability of 2^-11.
    """
    if y.shape != (len(a), b.shape[1]):
        return False
    rng = np.random.default_rng()
    signs = rng.choice(np.array([-1, 1]), b.shape[1])
    r = rng.integers(1 << 10, 1 << 11, b.shape[1]) * signs
    s = (b.astype(np.float64) @ r).astype(np.int64)
    return bool((y.astype(np.int64) @ r == a.astype(np.int64) @ s).all())


def _wrong_twice(what: str, device: str) -> VerificationFailed:
    return VerificationFailed(f"{what} is wrong on {device} and on the CPU", remedy=WRONG_TWICE)
