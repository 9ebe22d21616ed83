"""Where the values of a graph's tensors lie while its programs run.

Layers have the same ops, so a buffer belongs to a tensor's name without its block and serves every
layer.  Products of one input write side by side to one buffer; the results are views of it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from npurt.cpu.lowering.bound import Columns
from npurt.cpu.pool.checked import Weight
from npurt.cpu.pool.engine import Input, empty
from npurt.device import F32
from npurt.errors import UnsupportedOp
from npurt.graph import ops
from npurt.graph.graph import Graph
from npurt.graph.ops import Fused, Op, Precision
from npurt.graph.tensor import Tensor


class Buffers:
    """The values of one graph.

    Args:
        graph: With its ops joined.
        weights: Matrices of products by name: of integers, or of floats.
        rows: The most rows of a run.
        inputs: Buffers ``[rows, columns]`` of values that exist before the first op, by name.

    Attributes:
        index: Of the op that is being added.
        loose: Names of values that have no buffer until an op needs one.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Mapping[str, Weight],
        rows: int,
        inputs: Mapping[str, F32],
    ) -> None:
        self.index = 0
        self.loose = set(graph.given) - inputs.keys()
        self._rows = rows
        self._end = len(graph.ops)
        self._last_use = {
            t.name: i for i, op in enumerate(graph.ops) for t in (*op.reads, *op.writes)
        } | dict.fromkeys(graph.wanted, self._end)
        self._values: dict[str, Columns | Input] = {
            name: Columns(buffer, 0, buffer.shape[1]) for name, buffer in inputs.items()
        }
        self._neighbours = _neighbours(graph)
        self._precisions = _precisions(graph, weights)
        self._made: dict[tuple[str, str, int], Any] = {}
        self._held: dict[int, set[str]] = {}  # names of what lies in a buffer, by its address

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.name in self._values

    def is_read_after(self, tensor: Tensor) -> bool:
        """Return whether a later op than the one being added needs *tensor*.

        This includes all tensors that share its columns: a whole and its parts have the same
        memory.
        """
        own = self.columns(tensor)
        names = self._held.get(_address(own.buffer), set()) | {tensor.name}
        return any(
            own.overlaps(self._columns(name))
            for name in names & self._values.keys()
            if self._last_use.get(name, -1) > self.index
        )

    def leaves(self, tensor: Tensor) -> bool:
        """Say whether another part wants *tensor*."""
        return self._last_use.get(tensor.name) == self._end

    # --- What is there --------------------------------------------------------------------------

    def view(self, name: str) -> F32 | None:
        """Return where a value is; None when no op needed it in a buffer."""
        value = self._values.get(name)
        if isinstance(value, Input):
            return value.values
        return value.view if value else None

    def columns(self, tensor: Tensor) -> Columns:
        """Return the place of *tensor*, of which no product needs codes."""
        self._value(tensor)
        return self._columns(tensor.name)

    def input(self, op: Op, tensor: Tensor, quantise: Callable[[Input], None]) -> Input:
        """Return *tensor* as an input of products; call *quantise* if it has no codes yet."""
        value = self._value(tensor)
        if isinstance(value, Columns):
            if not value.is_whole:
                raise unsupported(op, f"{tensor.name} lies beside others")
            value = self._values[tensor.name] = self.shared_input(tensor, value.buffer)
            if value.quantised:
                quantise(value)
        return value

    def beside(self, op: Op, tensors: Sequence[Tensor]) -> F32:
        """Return the buffer that *tensors* fill side by side."""
        found = [self.columns(tensor) for tensor in tensors]
        buffer, end = found[0].buffer, 0
        for each in found:
            if each.buffer is not buffer or each.start != end:
                raise unsupported(op, "its inputs do not lie side by side")
            end += each.count
        if end != buffer.shape[1]:
            raise unsupported(op, "its inputs lie beside others")
        return buffer

    def codes(self, tensor: Tensor) -> tuple[bool, bool]:
        """Say whether products of *tensor* need codes, and whether int16 ones."""
        return self._precisions.get(local(tensor.name), (False, False))

    def _columns(self, name: str) -> Columns:
        value = self._values[name]
        return Columns(value.values, 0, value.k) if isinstance(value, Input) else value

    def _value(self, tensor: Tensor) -> Columns | Input:
        if tensor.name not in self._values and tensor.name in self.loose:
            self.place([tensor], row_multiplier_of(tensor))
        return self._values[tensor.name]

    # --- What is made ---------------------------------------------------------------------------

    def put(self, tensor: Tensor, value: Columns | Input) -> None:
        """Record that *tensor* is *value*, whose memory another tensor may have had."""
        self._values[tensor.name] = value
        self._hold(value.values if isinstance(value, Input) else value.buffer, {tensor.name})

    def shared_input(self, tensor: Tensor, buffer: F32) -> Input:
        """Return an input whose values are *buffer*, with codes as products of *tensor* need."""
        quantised, int16 = self.codes(tensor)
        key = (f"codes of {buffer.ctypes.data}", f"{quantised}, {int16}", tensor.columns)
        if key not in self._made:
            self._made[key] = Input(*buffer.shape, quantised=quantised, int16=int16, values=buffer)
        made: Input = self._made[key]
        return made

    def make_input(self, tensor: Tensor, row_multiplier: int = 1) -> Input:
        """Return a new value of *tensor*, with codes when a product of integers reads it."""
        quantised, int16 = self.codes(tensor)
        rows = self._rows * row_multiplier
        made: Input = self.own(
            "input", [tensor],
            lambda: Input(rows, tensor.columns, quantised=quantised, int16=int16),
            lambda made: made.values,
        )  # fmt: skip
        self._values[tensor.name] = made
        return made

    def make(self, tensors: Sequence[Tensor], row_multiplier: int = 1) -> F32:
        """Return a buffer that has new values of *tensors* side by side."""
        whole = self._wide(tensors, row_multiplier)
        self._lay(tensors, whole, 0)
        return whole

    def place(self, tensors: Sequence[Tensor], row_multiplier: int = 1) -> tuple[F32, int]:
        """Return a buffer with new values of *tensors* side by side, and their first column.

        If an op wants other tensors beside them, the buffer has room for those.
        """
        wanted = self._neighbours.get(tensors[0].name, ())
        first = wanted.index(tensors[0]) if wanted else 0
        if wanted[first : first + len(tensors)] != tuple(tensors):
            return self.make(tensors, row_multiplier), 0
        key = (wanted[0].name, "side by side", 0)
        if key not in self._made:
            self._made[key] = self._wide(wanted, row_multiplier)
        start = sum(t.columns for t in wanted[:first])
        self._lay(tensors, self._made[key], start)
        return self._made[key], start

    def _wide(self, tensors: Sequence[Tensor], row_multiplier: int) -> F32:
        columns = sum(tensor.columns for tensor in tensors)
        made: F32 = self.own("values", tensors, lambda: empty(self._rows * row_multiplier, columns))
        return made

    def _lay(self, tensors: Sequence[Tensor], whole: F32, start: int) -> None:
        for tensor in tensors:
            self._values[tensor.name] = Columns(whole, start, tensor.columns)
            start += tensor.columns

    def own(
        self,
        kind: str,
        tensors: Sequence[Tensor],
        make: Callable[[], Any],
        memory: Callable[[Any], Any] = lambda made: made,
    ) -> Any:
        """Return the buffer that *tensors* have in every layer.

        Layers share one buffer.  *tensors* get their own while values of another layer in the
        shared one are still needed, or when another part of the graph writes or reads them.
        """
        names, columns = {t.name for t in tensors}, sum(t.columns for t in tensors)
        key = (local(tensors[0].name), kind, columns)
        if key in self._made:
            before = self._held.get(_address(memory(self._made[key])), set()) - names
            alive = any(self._last_use.get(name, -1) >= self.index for name in before)
        else:
            alive = False
        if alive or names & self.loose or any(self.leaves(t) for t in tensors):
            key = (tensors[0].name, f"{kind} alone", columns)
        if key not in self._made:
            self._made[key] = make()
        self._hold(memory(self._made[key]), names)
        return self._made[key]

    def _hold(self, memory: Any, names: set[str]) -> None:
        self._held.setdefault(_address(memory), set()).update(names)


def local(name: str) -> str:
    """Return *name* without its layer: the part that all layers share."""
    return name.rpartition(".")[2]


def row_multiplier_of(tensor: Tensor) -> int:
    """Return the rows that *tensor* has for each of a run: more than one of experts."""
    return tensor.shape[1].size or 1 if len(tensor.shape) == 3 else 1


def unsupported(op: Op, why: str) -> UnsupportedOp:
    """Return the error of an op that no kernel runs."""
    return UnsupportedOp(
        f"{type(op).__name__} {op.name} cannot run on the host: {why}",
        remedy="run it on the device numpy, which runs every op",
    )


def source(op: Fused, tensor: Tensor) -> Tensor:
    """Return the tensor of which the norms and rotations in *op* make *tensor*."""
    made = {part.writes[0].name: part for part in op.parts if not isinstance(part, ops.Split)}
    while tensor.name in made:
        tensor = made[tensor.name].reads[0]
    return tensor


def _address(memory: Any) -> int:
    return int(memory.ctypes.data) if hasattr(memory, "ctypes") else id(memory)


def attention_of(op: Fused) -> ops.Attention | ops.EncoderAttention:
    """Return the attention among the parts of *op*."""
    kinds = ops.Attention | ops.EncoderAttention
    return next(part for part in op.parts if isinstance(part, kinds))


def attention_inputs(op: Fused) -> tuple[Tensor, Tensor, Tensor]:
    """Return the q, k and v that lie side by side for an attention, before norms and rotations."""
    attention = attention_of(op)
    split = next((part for part in op.parts if isinstance(part, ops.Split)), None)
    q = split.x if split else source(op, attention.q)
    return q, source(op, attention.k), attention.v


def _neighbours(graph: Graph) -> dict[str, tuple[Tensor, ...]]:
    """Return, for each tensor that an op wants side by side with others, the whole group in order.

    A sum is written over its first operand, so the operand takes the place.
    """
    found: dict[str, tuple[Tensor, ...]] = {}
    sums = {op.out.name: op.a for op in graph.ops if isinstance(op, ops.Add)}

    def written_first(tensor: Tensor) -> Tensor:
        while tensor.name in sums:
            tensor = sums[tensor.name]
        return tensor

    for op in graph.ops:
        together: tuple[Tensor, ...] = ()
        if isinstance(op, ops.GatedUnit) and op.up is not None:
            together = op.gate, op.up
        elif isinstance(op, Fused) and op.pattern == "attention":
            together = attention_inputs(op)
        elif isinstance(op, Fused) and op.pattern == "delta_inputs":
            gates = next(part for part in op.parts if isinstance(part, ops.DeltaGates))
            together = gates.beta, gates.alpha
        together = tuple(map(written_first, together))
        if len(set(together)) == len(together):
            found |= {t.name: together for t in together if t.name not in found}
    return found


def _precisions(graph: Graph, weights: Mapping[str, Weight]) -> dict[str, tuple[bool, bool]]:
    """Return for each input of products whether it needs codes, and whether int16 ones.

    Keys are names without blocks: an input is the same in all layers.
    """
    found: dict[str, tuple[bool, bool]] = {}
    for op in graph.ops:
        for part in op.parts if isinstance(op, Fused) else ():
            if isinstance(part, ops.MatMul | ops.ExpertMatMul):
                quantised, int16 = found.get(local(part.x.name), (False, False))
                form = weights[part.weight.name].packed.tensor.format
                found[local(part.x.name)] = (
                    quantised or form.block > 1,
                    int16 or part.precision is Precision.INT16,
                )
    return found
