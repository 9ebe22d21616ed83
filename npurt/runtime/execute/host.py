"""Run consecutive ops on the CPU as one program for its thread pool; verify and count them."""

from collections.abc import Iterator

from npurt.cpu.device import CpuDevice
from npurt.cpu.pool.checked import CheckedProgram
from npurt.device.verify import Sampler
from npurt.runtime.execute.placement import Placed
from npurt.runtime.report.ledger import Ledger, Row, row_of


class HostStep(CheckedProgram):
    """A program that reports its ops as rows of the ledger."""

    def __init__(self, cpu: CpuDevice, ledger: Ledger, sampler: Sampler) -> None:
        # The ledger refers to this step.  So the step refers only to the notes, to avoid a cycle.
        super().__init__(cpu.engine, sampler, ledger.notes)
        self.planned: dict[int, tuple[str, str]] = {}  # op -> planned device and reason
        ledger.follow(self._rows)

    def _rows(self) -> Iterator[Row]:
        """Yield the ledger's rows from the program's counters."""
        for index, counter in enumerate(self.counters()):
            planned, reason = self.planned.get(index, ("cpu", ""))
            product = self.products.get(index)
            if product and isinstance(product.weights[0], Placed):
                planned, reason = product.weights[0].planned, product.weights[0].reason
            yield row_of(counter, planned, "cpu", reason)
