"""The host with a device that multiplies for it, as a device that runs graphs.

The host runs the ops in one program; products, and the delta nets that the device accepts, run on
the device.  Which weights the device has is decided by its memory and by what they save (`place`).
"""

import functools
from collections.abc import Callable, Mapping, Sequence

from npurt.cpu.device import CpuDevice
from npurt.cpu.lowering.constants import products
from npurt.cpu.lowering.segment import CpuSegment
from npurt.device import F32, Caps, Device
from npurt.graph import ops
from npurt.graph.graph import Graph
from npurt.graph.ops import Op, Precision
from npurt.runtime.execute.placement import Placed, Wanted, place
from npurt.runtime.execute.plan import Plan
from npurt.runtime.report.ledger import Ledger
from npurt.segment import Limits, Segment, Weights
from npurt.verify import Sampler


class Offload:
    """Compiles graphs for the CPU and *device*, which may be the CPU.

    Args:
        used: The share of its experts that a token uses.
        packed: Called with the name and the bytes of each weight once it is packed.

    Attributes:
        weights: The weights of products by name of the tensor.
        vectors: Other weights by name.
    """

    def __init__(
        self,
        device: Device,
        cpu: CpuDevice,
        ledger: Ledger,
        *,
        used: float = 1.0,
        packed: Callable[[str, int], None] = lambda name, nbytes: None,
    ) -> None:
        self._device, self._cpu, self._ledger = device, cpu, ledger
        self._used, self._packed = used, packed
        self.weights: dict[str, Placed] = {}
        self.vectors: dict[str, F32] = {}

    @property
    def caps(self) -> Caps:
        """What the device is."""
        return self._device.caps

    def why_not_op(self, op: Op, limits: Limits) -> str | None:
        """Return None when the CPU can run *op*, else a sentence saying what rules it out."""
        return self._cpu.why_not_op(op, limits)

    def compile(self, part: Graph, weights: Weights, limits: Limits) -> Segment:
        """Place the weights of *part* and make a segment.

        Raises:
            NotOffloaded: In strict mode: the device refuses a weight or a net, or has no room.
        """
        place_all = functools.partial(self._place, limits.rows)
        return CpuSegment(place_all, self._steps, part, weights, limits)

    def plan(self, sampler: Sampler) -> Plan:
        """Return an empty plan."""
        return Plan(self._cpu, self._ledger, sampler, self._device)

    def _steps(self, sampler: Sampler, events: list[str]) -> Plan:
        del events  # they go to the ledger
        return self.plan(sampler)

    def _place(
        self, rows: int, part: Graph, weights: Weights, vectors: Mapping[str, F32]
    ) -> dict[str, Placed]:
        found, placed = products(part), dict[str, Placed]()
        for exact in (True, False):  # exact products are the CPU's
            names = [n for n, op in found.items() if (op.precision is Precision.EXACT) is exact]
            wanted = [self._wanted(found[n], weights, rows) for n in names]
            device = self._cpu if exact else self._device
            here = place(
                wanted, device, self._cpu, strict=self._ledger.strict,
                done=functools.partial(self._done, names, wanted), note=self._ledger.notes.append,
            )  # fmt: skip
            placed |= zip(names, here, strict=True)
        for name, op in found.items():
            if op.bias is not None:
                placed[name].add_bias(vectors[op.bias.name])
        self.weights |= placed
        self.vectors |= vectors
        return placed

    def _done(self, names: Sequence[str], wanted: Sequence[Wanted], i: int) -> None:
        self._packed(names[i], wanted[i].tensor.nbytes)

    def _wanted(self, op: ops.MatMul | ops.ExpertMatMul, weights: Weights, rows: int) -> Wanted:
        """Say what the weight of *op* is for: a layer is one unit, and so is the output matrix."""
        name, tensor = op.weight.name.removesuffix(".weight"), weights.quantised(op.weight.name)
        share = self._used if tensor.ndim == 3 else 1.0
        head = op.role == "output"  # which no row of a prompt but the last needs
        return Wanted(
            name,
            tensor,
            int16=op.precision in {Precision.INT16, Precision.BLOCK8},
            unit=name.rpartition(".")[0] or name,
            call=f"{op.x.name}.{op.role}",
            rows=1 if head else rows,
            prompt=0.0 if head else share,
            reply=share,
        )
