"""Combine the host and a device for products into one device that runs graphs.

Products, and the delta nets that the device supports, run on the device; the host runs the other
ops in one program.  If the device has too little memory for all weights, `place` chooses the
weights that save the most time.
"""

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from npurt.cpu.device import CpuDevice
from npurt.cpu.lowering.segment import CpuSegment
from npurt.device.device import F32, Caps, Device
from npurt.device.segment import NO_FOREIGN, Limits, RunForeign, Segment, Weights
from npurt.device.verify import Sampler
from npurt.graph import ops
from npurt.graph.graph import Graph
from npurt.graph.ops import Op, Precision
from npurt.graph.weights import products
from npurt.runtime.execute.placement import Placed, Wanted, place
from npurt.runtime.execute.plan import Plan
from npurt.runtime.report.ledger import Ledger


class Offload:
    """Compiles graphs for the CPU and *device*, which may be the CPU.

    Args:
        used: The fraction of a layer's experts that a token uses.
        packed: Called with the name and the bytes of each weight after it was packed.

    Attributes:
        weights: The weights of products, by tensor name without ".weight".
        vectors: Other weights, such as biases, by name.
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
        """The name and description of the device."""
        return self._device.caps

    def why_not_op(self, op: Op, limits: Limits) -> str | None:
        """Return the reason why the CPU cannot run *op*, or None if it can."""
        return self._cpu.why_not_op(op, limits)

    def compile(
        self,
        part: Graph,
        weights: Weights,
        limits: Limits,
        foreign: Mapping[str, RunForeign] = NO_FOREIGN,
    ) -> Segment:
        """Place the weights of *part* and return a segment.

        Args:
            foreign: See `npurt.device.segment.Host`.

        Raises:
            NotOffloaded: In strict mode, the device refuses a weight or a net, or has too little
                memory.
        """
        place_all = functools.partial(self._place, limits.rows)
        return CpuSegment(place_all, self._steps, part, weights, limits, foreign)

    def pack_output(self, op: ops.MatMul, weights: Weights) -> None:
        """Pack only the output matrix and the norm before it, for heads."""
        name, norm = op.weight.name, "output_norm.weight"
        (placed,) = place([self._wanted(op, weights, 1)], self._device, self._cpu)
        self.weights[name] = placed
        self.vectors[norm] = np.ascontiguousarray(weights.values(norm), np.float32)
        if op.bias is not None:
            placed.add_bias(np.ascontiguousarray(weights.values(op.bias.name), np.float32))

    def head(
        self,
        sampler: Sampler,
        graph: Graph,
        weight: Placed,
        vectors: Mapping[str, F32],
        rows: int,
    ) -> Callable[[F32], F32]:
        """Return a function that runs an output matrix and its norm; see `CpuDevice.head`."""
        return self._cpu.head(self.plan(sampler), graph, weight, vectors, rows)

    def plan(self, sampler: Sampler) -> Plan:
        """Return an empty plan."""
        return Plan(self._cpu, self._ledger, sampler, self._device)

    def _steps(self, sampler: Sampler, events: list[str]) -> Plan:
        del events  # the ledger collects events
        return self.plan(sampler)

    def _place(
        self, rows: int, part: Graph, weights: Weights, vectors: Mapping[str, F32]
    ) -> dict[str, Placed]:
        found, placed = products(part), dict[str, Placed]()
        for exact in (True, False):  # exact products run on the CPU
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
        """Describe the weight of *op* for `place`; a layer or the output matrix is one unit."""
        name, tensor = op.weight.name.removesuffix(".weight"), weights.quantised(op.weight.name)
        share = self._used if tensor.ndim == 3 else 1.0
        head = op.role == "output"  # needed only for the last row of a prompt
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
