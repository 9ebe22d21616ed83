"""A fake device that multiplies on the CPU: it can refuse ops, change results and count."""

import numpy as np

from npurt.cpu.device import CpuDevice
from npurt.cpu.pool.engine import Input
from npurt.cpu.pool.program import Program
from npurt.cpu.pool.table import RowTable
from npurt.device.device import Caps, Device, Packed
from npurt.device.verify import Mode, Sampler
from npurt.runtime.execute.placement import Wanted, place
from npurt.runtime.execute.plan import Plan
from npurt.runtime.report.ledger import Ledger


class FakePacked(Packed):
    def __init__(self, device, inner):
        self.device, self.inner, self.tensor = device, inner, inner.tensor

    @property
    def nbytes(self):
        return self.inner.nbytes


class FakeDevice(Device):
    """A device that multiplies as the CPU does.

    Args:
        refuses: Returns the reason why the device refuses a `MatMul`, or None.
        meddle: Called with the index of each product and its result, which the function may change.
    """

    def __init__(self, cpu=None, *, refuses=lambda op: None, meddle=lambda index, y: None):
        self.caps = Caps("fake", "the CPU in disguise", simulated=True)
        self.cpu = cpu or CpuDevice(2)
        self._refuses, self._meddle = refuses, meddle
        self.products = 0

    def why_not(self, op):
        return self._refuses(op)

    def pack(self, tensor, *, int16=False):
        return FakePacked(self, self.cpu.pack(tensor))

    def matmul(self, x, w, out):
        self.cpu.matmul(x, w.inner, out)
        self._meddle(self.products, out)
        self.products += 1

    def multiplied(self, x, w):
        return self.cpu.multiplied(x, w.inner)

    def close(self):
        self.cpu.close()


class Products:
    """A plan of one product, ready to run: ``y = x @ tensor.T``."""

    def __init__(
        self, cpu, tensor, x, *, device=None, sampler=None, bias=None, int16=False, head=False
    ):
        self.ledger = Ledger("test")
        self.plan = Plan(cpu, self.ledger, sampler or Sampler(Mode.ALWAYS))
        self.placed = place([Wanted("the weight", tensor)], device or cpu, cpu)
        self.placed[0].bias = bias
        self.x = Input(len(x), x.shape[1], quantised=tensor.format.block > 1, int16=int16)
        quantise(cpu, self.x, x)
        self.y = np.full((len(x), tensor.shape[0]), 7, np.float32)
        self.plan.matmul("product", self.x, self.placed, self.y, selects=head)
        self.plan.verify(self.plan.sampler)

    def run(self, rows=None):
        """Multiply the first *rows* rows; return a copy of the result."""
        rows = len(self.y) if rows is None else rows
        self.plan.redirect(self.y)
        self.plan.run(RowTable.of(rows))
        return self.y[:rows].copy()

    def counts(self):
        """Return (calls, verified, failed), each summed over all rows of the ledger."""
        rows = self.ledger.report().rows
        return tuple(
            sum(getattr(row, name) for row in rows) for name in ("calls", "verified", "failed")
        )


def quantise(cpu, target, x):
    """Write *x* to the `Input` *target*, and quantise it if the target is quantised."""
    target.values[:] = x
    if target.quantised:
        program = Program(cpu.engine)
        program.quant(target)
        program.run(RowTable.of(len(x)))
