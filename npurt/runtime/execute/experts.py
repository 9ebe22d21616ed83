"""Run the products of experts on an NPU: one call for each expert that has rows."""

from collections.abc import Sequence

from npurt.cpu.device import CpuDevice
from npurt.cpu.pool.engine import Input
from npurt.cpu.pool.operands import Routing
from npurt.cpu.pool.table import RowTable
from npurt.device.device import F32
from npurt.device.verify import Sampler
from npurt.runtime.execute.placement import Placed
from npurt.runtime.execute.remote import RemoteProducts
from npurt.runtime.report.ledger import Ledger


class RemoteExperts:
    """Multiplies the rows of each expert by its matrix, into the columns of *y* from *column* on.

    Args:
        each: The matrices of one stack, one for each expert.
    """

    def __init__(
        self,
        cpu: CpuDevice,
        ledger: Ledger,
        sampler: Sampler,
        *,
        label: str,
        x: Input,
        each: Sequence[Placed],
        y: F32,
        column: int,
        routing: Routing,
    ) -> None:
        self._label = label
        self._x, self._y, self._column, self._routing = x, y, column, routing
        self._each = [RemoteProducts(cpu, ledger, sampler, label, [weight]) for weight in each]

    def about(self) -> tuple[str, str]:
        """Return the label of the step and its device."""
        return self._label, ", ".join(dict.fromkeys([one.about()[1] for one in self._each]))

    def verify(self, sampler: Sampler) -> None:
        """Verify the products that *sampler* chooses."""
        for one in self._each:
            one.verify(sampler)

    def redirect_last(self, array: F32) -> None:
        """Write later results to *array*."""
        self._y = array

    def run(self, table: RowTable) -> None:
        """Multiply the rows of each expert.  The errors are those of `RemoteProducts.multiply`."""
        groups = self._routing.groups[: table.rows * self._routing.top_k]
        for matrix, count, first in groups.tolist():
            if count:
                part = slice(first, first + count)
                self._each[matrix].multiply(self._x.values[part], self._y[part, self._column :])
