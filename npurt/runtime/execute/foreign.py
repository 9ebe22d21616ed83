"""The parts of a graph that run on another device than the host, and their recovery.

The host's program calls them between its ops.  If the device has too little memory for all of them,
it gets whole layers; each layer that does not fit is a part on the host.  A lost device is opened
again, at most `RESTARTS` times; then the host takes over.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from types import MappingProxyType

from npurt.device.restart import RESTARTS
from npurt.device.segment import (
    Array,
    Compiler,
    ComputesOnHost,
    Fits,
    Limits,
    Reopens,
    Segment,
    Weights,
    positional,
    split,
)
from npurt.device.verify import Sampler, WrongResult
from npurt.errors import DeviceFull, DeviceNotFound, DriverError, VerificationFailed
from npurt.graph.graph import Graph
from npurt.graph.ops import Op
from npurt.graph.rows import Rows
from npurt.runtime.execute.checks import Checks
from npurt.runtime.execute.part import Part
from npurt.runtime.report.ledger import Ledger

NO_ARRAYS: Mapping[str, Array] = MappingProxyType({})


class StatesLost(Exception):
    """A device lost the states of all sequences; the caller has to evaluate their tokens again."""


class Budget:
    """Divides the bytes of keys and values of a model among the parts of its graph."""

    def __init__(self, graph: Graph, limits: Limits) -> None:
        self._limits, self._whole = limits, _position_size(graph)

    def of(self, part: Graph) -> Limits:
        """Return the limits of *part*, with its share of ``kv_bytes``."""
        total, own = self._limits.kv_bytes, _position_size(part)
        if total is None or own in (0, self._whole):
            return self._limits
        return replace(self._limits, kv_bytes=max(1, total * own // self._whole))


def _position_size(part: Graph) -> int:
    """Return the number of elements that *part* stores for each position of a sequence."""
    return sum(tensor.row_elements for tensor in positional(part))


class ForeignParts:
    """Compiles, runs and recovers the parts of *device*.

    Args:
        device: Runs the parts.
        host: Compiles the parts that *device* loses or has no memory for.
        names: Names of *device* and *host*.
        checks: Chooses the products to verify in segments that can verify.

    Attributes:
        losses: Number of failures after which states were lost.
    """

    def __init__(
        self,
        device: Compiler,
        host: Compiler,
        names: tuple[str, str],
        weights: Weights,
        budget: Budget,
        ledger: Ledger,
        checks: Sampler | None,
    ) -> None:
        self.losses = 0
        self._device, self._host = device, host
        self._name, self._host_name = names
        self._weights, self._budget, self._ledger = weights, budget, ledger
        self._checks = checks
        self._restarts = 0
        self._calls: dict[str, list[Part]] = {}

    @property
    def parts(self) -> list[Part]:
        """All parts, in the order of execution."""
        return [part for call in self._calls.values() for part in call]

    def add(self, graph: Graph, planned: str, reason: str) -> None:
        """Compile *graph* for the device, or those of its layers that fit.

        Raises:
            NotOffloaded: In strict mode, the device has too little memory.
        """
        self._calls[graph.name] = self._place(graph, planned, reason)

    # --- Running --------------------------------------------------------------------------------

    def run(
        self,
        name: str,
        values: Mapping[str, Array],
        rows: Rows,
        out: Mapping[str, Array] = NO_ARRAYS,
    ) -> dict[str, Array]:
        """Run the graph *name*; return the tensors that other parts read.

        Raises:
            StatesLost: The device failed, and states are lost.
            NotOffloaded: In strict mode, the device failed.
        """
        parts, made, i = self._calls[name], dict(values), 0
        while i < len(parts):
            try:
                made |= parts[i].run(self._ledger, made, rows, out)
            except DriverError as error:
                if self.recover(parts[i], error):
                    raise StatesLost from None
                continue
            self._ledger.notes += parts[i].segment.events()
            i += 1
        return made

    def run_all(
        self, values: Mapping[str, Array], rows: Rows, out: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Run the only graph, which has all ops; the errors are those of `run`."""
        (name,) = self._calls
        return self.run(name, values, rows, out)

    # --- Placing --------------------------------------------------------------------------------

    def _place(self, graph: Graph, planned: str, reason: str) -> list[Part]:
        try:
            return [self._on_device(graph, planned, reason)]
        except DeviceFull as error:
            full = copy(error)  # drops the traceback, whose frames keep weights alive
        layers = layers_of(graph)
        self._ledger.fallback(self._shortage(layers, full))
        placed: dict[str, Part] = {}
        for layer in self._by_worth(layers) if len(layers) > 1 else ():
            try:
                placed[layer.name] = self._on_device(layer, planned, reason)
            except DeviceFull:
                continue
        return [placed.get(each.name) or self._on_host(each, planned, full.what) for each in layers]

    def _shortage(self, layers: Sequence[Graph], full: DeviceFull) -> str:
        return (
            f"{self._name} has no space for {layers[0].name} to {layers[-1].name}: {full.what}"
            if len(layers) > 1
            else f"{self._name} has no space for {layers[0].name}: {full.what}"
        )

    def _by_worth(self, layers: Sequence[Graph]) -> Sequence[Graph]:
        """Return *layers* in descending order of the time that they save for each byte."""
        device = self._device
        if not isinstance(device, Fits):
            return layers
        fits = {each.name: device.fit(each, self._weights, self._budget.of(each))
                for each in layers}  # fmt: skip
        return sorted(layers, key=lambda each: -fits[each.name].worth)

    def _on_device(self, graph: Graph, planned: str, reason: str) -> Part:
        return self._part(self._device, self._name, graph, planned, reason)

    def _on_host(self, graph: Graph, planned: str, reason: str) -> Part:
        return self._part(self._host, self._host_name, graph, planned, reason)

    def _moved(self, graph: Graph, planned: str, reason: str) -> Part:
        """Return a part on the host that continues in the arithmetic of the device, if it can."""
        if not isinstance(self._device, ComputesOnHost):
            return self._on_host(graph, planned, reason)
        limits = self._budget.of(graph)
        segment = self._device.compile_on_host(graph, self._weights, limits)
        return self._verified(segment, self._host_name, graph, planned, reason)

    def _part(self, who: Compiler, name: str, graph: Graph, planned: str, reason: str) -> Part:
        segment = who.compile(graph, self._weights, self._budget.of(graph))
        return self._verified(segment, name, graph, planned, reason)

    def _verified(
        self, segment: Segment, name: str, graph: Graph, planned: str, reason: str
    ) -> Part:
        """Return a part with *segment*, which itself verifies its ops, or whose ops are checked."""
        part = Part(graph, planned, name, reason, segment)
        if self._checks:
            segment.verify(self._checks)
            if not all(map(segment.verifies, graph.ops)):
                part.checks = Checks(graph, segment, self._weights, self._checks)
        return part

    # --- Recovering -----------------------------------------------------------------------------

    def recover(self, part: Part, error: DriverError) -> bool:
        """Replace the segments that a failure of *part* has cost; return whether states are lost.

        If a result is wrong, *part* moves to the host.  If the device ran out of memory, the last
        layer of *part* moves to the host.  If the device was lost, it is opened again, and gets all
        its parts again.  After too many losses, the host takes over all parts.

        Raises:
            DriverError: The host failed.
            VerificationFailed: A result is wrong on the host, too.
            NotOffloaded: In strict mode, a part moves to the host.
        """
        if part.actual != self._name or self._name == self._host_name:
            if isinstance(error, WrongResult):
                raise VerificationFailed(
                    f"{error.what}, after another device had", remedy=error.remedy
                )
            raise error
        error = copy(error)  # drops the traceback, whose frames keep objects alive
        if isinstance(error, WrongResult):
            lost = self._quarantine(part, error)
        elif isinstance(error, DeviceFull):
            lost = self._evict(part, error)
        else:
            lost = self._reopen(error) or self._take_over(error)
        self.losses += any(each.has_states for each in lost)
        return any(each.has_states for each in lost)

    def _quarantine(self, part: Part, error: WrongResult) -> list[Part]:
        """Move *part* to the host permanently; return it."""
        self._ledger.fallback(f"{self._host_name} takes over from {self._name}: {error.what}")
        self._close(part)
        self._replace(part, [self._moved(part.graph, part.planned, error.what)])
        return [part]

    def _evict(self, part: Part, error: DeviceFull) -> list[Part]:
        """Move the last layer of *part* to the host; return the parts whose states are lost."""
        *layers, last = layers_of(part.graph)
        self._ledger.fallback(
            f"{self._name} ran out of memory while it worked; {last.name} moves to the host. To "
            f"keep more on {self._name}: {error.remedy}"
        )
        self._close(part)
        reason = f"{self._name} ran out of memory"

        def kept(layer: Graph) -> Part:
            try:
                return self._on_device(layer, part.planned, part.reason)
            except DeviceFull:  # as a segment of its own, it needs more memory than before
                return self._moved(layer, part.planned, reason)

        self._replace(part, [*map(kept, layers), self._moved(last, part.planned, reason)])
        return [part]

    def _reopen(self, error: DriverError) -> list[Part]:
        """Open the device again, and compile its parts again; return them, or [] on failure."""
        mine = [part for part in self.parts if part.actual == self._name]
        if self._restarts == RESTARTS:
            return []
        self._restarts += 1
        for part in mine:
            self._close(part)
        try:
            if isinstance(self._device, Reopens):
                self._device.reopen()
            made = [self._on_device(part.graph, part.planned, part.reason) for part in mine]
        except (DeviceNotFound, DriverError) as again:
            self._restarts = RESTARTS
            self._ledger.notes.append(f"{self._name} cannot be opened again: {again.what}")
            return []
        for part, new in zip(mine, made, strict=True):
            self._replace(part, [new])
        self._ledger.notes.append(
            f"{self._name} was opened again and its weights uploaded: {error.what}"
        )
        return mine

    def _take_over(self, error: DriverError) -> list[Part]:
        """Move all parts to the host permanently; return them."""
        self._ledger.fallback(f"{self._host_name} takes over from {self._name}: {error.what}")
        mine = [part for part in self.parts if part.actual == self._name]
        for part in mine:
            self._close(part)
            reason = f"{self._name} failed: {error.what}"
            self._replace(part, [self._moved(part.graph, part.planned, reason)])
        return mine

    def _close(self, part: Part) -> None:
        """Close the segment of *part*, which keeps its counts, and drop the states."""
        part.segment.close()
        part.checkpoints.clear()

    def _replace(self, part: Part, made: list[Part]) -> None:
        """Replace *part* by *made*; the first of them reports the counts of *part*, too."""
        made[0].before = [*part.before, *part.counted()]
        for call in self._calls.values():
            if part in call:
                at = call.index(part)
                call[at : at + 1] = made

    def close(self) -> None:
        """Release all segments."""
        for part in self.parts:
            part.segment.close()


def layers_of(graph: Graph) -> list[Graph]:
    """Return the layers of *graph*, by the names of its ops, and what is before and after them."""
    names: dict[str, str] = {}  # one string for each layer, as `split` compares identities

    def layer(op: Op) -> str:
        name = op.name.rpartition(".")[0]
        return names.setdefault(name, name)

    return [part for _, part in split(graph, layer, graph.wanted)]
