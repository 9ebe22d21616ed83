"""Run products on an NPU, verify them, and record them in the ledger."""

import functools
import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from npurt.cpu.device import CpuDevice
from npurt.cpu.pool.engine import Input
from npurt.cpu.pool.table import RowTable
from npurt.device.device import F32, Device, Packed
from npurt.device.host_products import KeepsArithmetic, moved_to_host
from npurt.device.verify import WRONG_TWICE, Check, Sampler
from npurt.errors import DeviceFull, DriverError, VerificationFailed
from npurt.runtime.execute.placement import Placed
from npurt.runtime.execute.shortlist import Shortlist
from npurt.runtime.report.ledger import Ledger, Row


@dataclass(slots=True)
class _Product:
    """One weight of a step; *row* and *check* are renewed when the weight moves to the CPU."""

    placed: Placed
    columns: slice  # columns of y
    macs: int  # multiply-adds of one row
    row: Row  # row of the ledger
    check: Check  # check of the packed weight whose products *row* counts
    shortlist: Shortlist | None = None

    @property
    def packed(self) -> Packed:
        return self.placed.packed


class RemoteStep:
    """Multiplies the rows of a buffer by one or more weights, side by side into *y*.

    Args:
        selects: The product computes logits, only for the selected rows.
    """

    def __init__(self, products: "RemoteProducts", x: Input, y: F32, *, selects: bool) -> None:
        self._products = products
        self._x, self._y, self._selects = x, y, selects

    def about(self) -> tuple[str, str]:
        """Return the label of the step and its device."""
        return self._products.about()

    def verify(self, sampler: Sampler) -> None:
        """Verify the products that *sampler* chooses."""
        self._products.verify(sampler)

    def redirect_last(self, array: F32) -> None:
        """Write later results to *array*."""
        self._y = array

    def run(self, table: RowTable) -> None:
        """Multiply the rows of *table*.  The errors are those of `RemoteProducts.multiply`."""
        count = len(table.selected) if self._selects else table.rows
        if count:
            self._products.multiply(self._x.values[:count], self._y)


class RemoteProducts:
    """Products of the same rows with one or more weights, side by side.

    The CPU takes over a product if the device fails or computes a wrong result.

    Args:
        label: The name of the op, for reports.
        shortlists: The products are logits; the host computes the largest again (`Shortlist`).
    """

    def __init__(
        self,
        cpu: CpuDevice,
        ledger: Ledger,
        sampler: Sampler,
        label: str,
        weights: Sequence[Placed],
        *,
        shortlists: bool = False,
    ) -> None:
        self._cpu, self._ledger, self._sampler = cpu, ledger, sampler
        self._label = label
        self._products: list[_Product] = []
        end = 0
        for w in weights:
            n, k = w.packed.n, w.packed.k
            product = _Product(w, slice(end, end + n), n * k, self._row(w), _check(w))
            end += n
            if shortlists:
                product.shortlist = Shortlist(w.packed.tensor, w.bias)
                ledger.add_status_note(functools.partial(product.shortlist.note, w.device))
            self._products.append(product)
            ledger.add_status_note(w.packed.device.status_note)

    def about(self) -> tuple[str, str]:
        """Return the label of the op and the names of its devices."""
        devices = dict.fromkeys([product.placed.device for product in self._products])
        return self._label, ", ".join(devices)

    def verify(self, sampler: Sampler) -> None:
        """Verify the products that *sampler* chooses; the first check of a weight makes a probe."""
        self._sampler = sampler

    def multiply(self, x: F32, y: F32) -> None:
        """Write the products of the rows *x*, plus biases, side by side to the first rows of *y*.

        The products that the sampler chooses are verified.

        Raises:
            VerificationFailed: A product is wrong on the device and on the CPU.
            NotOffloaded: In strict mode, the device failed or computed a wrong product.
        """
        views = [y[: len(x), product.columns] for product in self._products]
        outs = [v if v.flags.c_contiguous else np.empty(v.shape, v.dtype) for v in views]
        self._multiply(x, outs)
        for product, view, out in zip(self._products, views, outs, strict=True):
            self._account(product, x, out)
            if out is not view:
                view[:] = out
            if product.placed.bias is not None:
                np.add(view, product.placed.bias, out=view)
            if product.shortlist and product.packed.device is not self._cpu:
                product.shortlist.rescore(x, view)

    def _multiply(self, x: F32, outs: Sequence[F32]) -> None:
        """Call each device once for all its products; the CPU takes over failed products."""
        left: Sequence[int] = range(len(outs))
        while left:
            for product in self._products:
                if product.check.packed is not product.packed:
                    self._renew(product)
            device = self._products[left[0]].packed.device
            indices = [i for i in left if self._products[i].packed.device is device]
            products, results = [self._products[i] for i in indices], [outs[i] for i in indices]
            start, packets, calls = time.perf_counter(), device.packets(), device.call_count()
            if not self._call(device, x, products, results):
                continue  # some weights may have moved to the CPU
            left = [i for i in left if i not in indices]
            seconds = time.perf_counter() - start
            if self._ledger.trace:
                self._ledger.trace.add("matmuls", device.caps.name, start, rows=len(x))
            self._ledger.notes += device.events()
            self._charge(products, seconds, device.packets() - packets)
            products[0].row.device_calls += device.call_count() - calls

    def _call(
        self, device: Device, x: F32, products: Sequence[_Product], outs: Sequence[F32]
    ) -> bool:
        """Multiply the rows *x* by *products*, into *outs*.

        Return False if weights moved to the CPU for lack of memory; the caller then retries.
        """
        try:
            device.matmuls(x, [product.packed for product in products], outs)
        except DriverError as error:
            if device is self._cpu:
                raise
            failure = copy(error)  # drops the traceback, whose frames keep weights alive
        else:
            return True
        if isinstance(failure, DeviceFull) and self._evict(products[0].placed, failure):
            return False
        self._take_over(products, failure)
        for product, out in zip(products, outs, strict=True):
            product.packed.device.matmul(x, product.packed, out)
        return True

    def _evict(self, placed: Placed, error: DeviceFull) -> bool:
        """Move the unit that saves the least time to the CPU; return False if no unit is left."""
        if placed.residents is None:
            return False
        self._ledger.fallback(
            f"{placed.device} ran out of memory while it worked; the weights that save the least "
            f"time move to the CPU. To keep more on {placed.device}: {error.remedy}"
        )
        self._note_arithmetic(placed.packed.device)
        return placed.residents.evict()

    def _note_arithmetic(self, npu: Device) -> None:
        note = (
            f"the CPU computes its new products in the arithmetic of {npu.caps.name}, so no token "
            "changes; for more speed, open the model again with device cpu"
        )
        if isinstance(npu, KeepsArithmetic) and note not in self._ledger.notes:
            self._ledger.notes.append(note)

    def _charge(self, products: Sequence[_Product], seconds: float, packets: int) -> None:
        """Divide the time and packets of one call among its products, by multiply-adds."""
        macs = sum([product.macs for product in products])
        for product in products:
            product.row.seconds += seconds * product.macs / macs
            product.row.packets += packets * product.macs // macs

    def _take_over(self, products: Sequence[_Product], error: DriverError) -> None:
        """Move *products* to the CPU permanently after a failure of their device."""
        failed = products[0].packed.device
        self._ledger.fallback(f"the CPU takes over from {failed.caps.name}: {error.what}")
        for product in products:
            self._move(product, f"{failed.caps.name} failed: {error.what}")

    def _move(self, product: _Product, reason: str) -> None:
        """Move a product to the CPU permanently; it keeps its arithmetic if possible."""
        placed = product.placed
        self._note_arithmetic(placed.packed.device)
        placed.packed = moved_to_host(placed.packed, self._cpu, self._cpu.engine.threads)
        placed.reason = reason
        self._renew(product)

    def _renew(self, product: _Product) -> None:
        """Update the data of a product that has moved."""
        product.row = self._row(product.placed)
        product.check = _check(product.placed)

    def _row(self, w: Placed) -> Row:
        return self._ledger.row(
            Row(self._label, w.name, (w.packed.n, w.packed.k), w.planned, w.device, w.reason)
        )

    def _account(self, product: _Product, x: F32, out: F32) -> None:
        row = product.row
        row.calls += 1
        row.rows += len(x)
        row.macs += len(x) * product.macs
        row.nbytes += product.packed.nbytes
        if not product.check.is_due(self._sampler, len(x)):
            return
        row.verified += 1
        if not product.check.accepts(x, out):
            row.failed += 1
            self._replace(product, x, out)

    def _replace(self, product: _Product, x: F32, out: F32) -> None:
        """Move a weight to the CPU permanently after a wrong result, and multiply again."""
        name, wrong = product.placed.name, product.placed.device
        self._ledger.fallback(
            f"quarantined: {wrong} computed a wrong product with {name}; the CPU takes it over"
        )
        self._move(product, f"{wrong} computed a wrong product with it")
        product.packed.device.matmul(x, product.packed, out)
        if not product.check.accepts(x, out):
            raise VerificationFailed(
                f"the product with {name} is wrong on {wrong} and on the CPU",
                remedy=WRONG_TWICE,
            )


def _check(w: Placed) -> Check:
    return Check(w.name, w.packed)
