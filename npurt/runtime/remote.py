"""Products on another device than the host, verified and accounted for."""

import functools
import time
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from npurt.cpu.device import CpuDevice
from npurt.cpu.engine import Input
from npurt.device import F32
from npurt.errors import DriverError, VerificationFailed
from npurt.runtime.host import WRONG_TWICE
from npurt.runtime.ledger import Ledger, Row
from npurt.runtime.placement import Placed
from npurt.runtime.shortlist import Shortlist
from npurt.runtime.verify import Mode, Sampler, Secret, is_right, secret_of


class RemoteStep:
    """One input times one or more weights on a device, side by side in *y*."""

    def __init__(self, cpu: CpuDevice, ledger: Ledger, sampler: Sampler) -> None:
        self._cpu = cpu
        self._ledger = ledger
        self._sampler = sampler
        self._secrets: dict[str, Secret] = {}
        self._shortlists: dict[str, Shortlist] = {}

    def matmul(self, label: str, x: Input, weights: Sequence[Placed], y: F32, head: bool) -> None:
        """Say what to multiply; *head* leaves the first rows of a run out, and makes logits."""
        self._label, self._x, self._weights, self._y, self._head = label, x, weights, y, head
        self._shortlists = {}
        for w in weights if head else ():
            self._shortlists[w.name] = Shortlist(w.packed.tensor, w.bias)
            self._ledger.remark(functools.partial(self._shortlists[w.name].note, w.device))

    def prepare(self) -> None:
        """Secrets are made when a product is first checked."""

    def redirect_last(self, array: F32) -> None:
        """Write to *array* from now on."""
        self._y = array

    def run(self, rows: int, position: int, head: int) -> None:
        """Multiply, verify what is chosen, add biases; raises `multiply`'s errors."""
        del position
        self.multiply(self._x.values[: rows - head if self._head else rows], self._y)

    def multiply(self, x: F32, y: F32) -> None:
        """Do so with the rows *x*, to the first columns of the first rows of *y*.

        Raises:
            VerificationFailed: A product is wrong on the device and on the CPU.
        """
        ends = list(accumulate(w.packed.n for w in self._weights))
        views = [
            y[: len(x), end - w.packed.n : end] for w, end in zip(self._weights, ends, strict=True)
        ]
        outs = [v if v.flags.c_contiguous else np.empty(v.shape, v.dtype) for v in views]
        self._multiply(x, outs)
        for w, view, out in zip(self._weights, views, outs, strict=True):
            self._account(w, x, out)
            if out is not view:
                view[:] = out
            if w.bias is not None:
                np.add(view, w.bias, out=view)
            if w.name in self._shortlists and w.packed.device is not self._cpu:
                self._shortlists[w.name].rescore(x, view)

    def _multiply(self, x: F32, outs: Sequence[F32]) -> None:
        """Have each device do what is its, in one call; what it cannot, the CPU does."""
        for device in dict.fromkeys(w.packed.device for w in self._weights):
            mine = [i for i, w in enumerate(self._weights) if w.packed.device is device]
            weights, results = [self._weights[i] for i in mine], [outs[i] for i in mine]
            start, packets = time.perf_counter(), device.packets()
            try:
                device.matmuls(x, [w.packed for w in weights], results)
            except DriverError as error:
                self._take_over(weights, error)
                self._cpu.matmuls(x, [w.packed for w in weights], results)
            seconds = time.perf_counter() - start
            self._ledger.notes += device.news()
            self._charge(weights, seconds, device.packets() - packets)

    def _charge(self, weights: Sequence[Placed], seconds: float, packets: int) -> None:
        """Share out what one call took, by multiply-adds."""
        macs = sum(w.packed.n * w.packed.k for w in weights)
        for w in weights:
            share = w.packed.n * w.packed.k
            row = self._row(w)
            row.seconds += seconds * share / macs
            row.packets += packets * share // macs

    def _take_over(self, weights: Sequence[Placed], error: DriverError) -> None:
        """Let the CPU do these products from now on: their device failed for good."""
        failed = weights[0].packed.device
        if failed is self._cpu:
            raise error
        for w in weights:
            w.packed = self._cpu.pack(w.packed.tensor)
            w.reason = f"{failed.caps.name} failed: {error.what}"
            self._secrets.pop(w.name, None)  # that of what the device multiplied by
        note = f"the CPU goes on for {failed.caps.name}: {error.what}"
        if note not in self._ledger.notes:
            self._ledger.notes.append(note)

    def _row(self, w: Placed) -> Row:
        return self._ledger.row(
            Row(self._label, w.name, (w.packed.n, w.packed.k), w.planned, w.device, w.reason)
        )

    def _account(self, w: Placed, x: F32, out: F32) -> None:
        row = self._row(w)
        row.calls += 1
        row.rows += len(x)
        row.macs += out.size * w.packed.k
        row.nbytes += w.packed.nbytes
        if not self._chosen(w, len(x)):
            return
        row.verified += 1
        if not self._is_right(w, x, out):
            row.failed += 1
            self._replace(w, x, out)

    def _chosen(self, w: Placed, rows: int) -> bool:
        if self._sampler.mode is Mode.SAMPLE:
            kind = (w.device, w.packed.tensor.dtype, w.packed.n, w.packed.k, rows > 1)
            if self._sampler.is_first(kind):
                return True
        return bool(self._sampler.choose(1))

    def _is_right(self, w: Placed, x: F32, out: F32) -> bool:
        if w.name not in self._secrets:
            self._secrets[w.name] = secret_of(w.name, w.packed)
        device = w.packed.device
        multiplied, magnitudes = device.multiplied(x, w.packed), device.magnitudes(x, w.packed)
        return is_right(self._secrets[w.name], multiplied, out, magnitudes)

    def _replace(self, w: Placed, x: F32, out: F32) -> None:
        """Quarantine the device for this weight: the CPU takes over for good."""
        wrong = w.device
        w.packed = self._cpu.pack(w.packed.tensor)
        del self._secrets[w.name]  # that of what the device multiplied by
        w.reason = f"{wrong} computed a wrong product with it"
        self._cpu.matmul(x, w.packed, out)
        if not self._is_right(w, x, out):
            raise VerificationFailed(
                f"the product with {w.name} is wrong on {wrong} and on the CPU",
                remedy=WRONG_TWICE,
            )
        self._ledger.notes.append(
            f"quarantined: {wrong} computed a wrong product with {w.name}; the CPU does it now"
        )
