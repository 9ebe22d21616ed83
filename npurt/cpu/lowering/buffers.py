"""Assign buffers to the tensors of a graph.

All layers have the same ops, so tensors whose names differ only in the layer share one buffer.
Products of the same input write their results side by side to one buffer; each result is a range of
its columns.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from npurt.cpu.lowering.bound import Columns
from npurt.cpu.pool.checked import NamedWeight
from npurt.cpu.pool.engine import Input, empty
from npurt.device.device import F32
from npurt.errors import UnsupportedOp
from npurt.graph import ops
from npurt.graph.graph import Graph
from npurt.graph.ops import Fused, Op, Precision
from npurt.graph.tensor import Tensor


class Buffers:
    """The buffers of one graph's tensors.

    Args:
        graph: The graph after `npurt.graph.passes`.
        weights: Matrices of products by name.
        rows: The maximum number of rows in a run.
        inputs: Buffers ``[rows, columns]`` of tensors that have values before the first op, by
            name.

    Attributes:
        index: The index of the op that is being lowered.
        loose: Names of tensors that get a buffer only if an op with a kernel reads them.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Mapping[str, NamedWeight],
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
        self._held: dict[int, set[str]] = {}  # buffer's address -> names of tensors in the buffer

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.name in self._values

    def is_read_after(self, tensor: Tensor) -> bool:
        """Return whether an op after `index` reads *tensor* or a tensor in the same memory.

        A tensor and the results of a split of it have columns in common, for example.
        """
        own = self.columns(tensor)
        names = self._held.get(_address(own.buffer), set()) | {tensor.name}
        return any(
            own.overlaps(self._columns(name))
            for name in names & self._values.keys()
            if self._last_use.get(name, -1) > self.index
        )

    def leaves(self, tensor: Tensor) -> bool:
        """Return whether another part of the graph reads *tensor*."""
        return self._last_use.get(tensor.name) == self._end

    # --- Existing values ------------------------------------------------------------------------

    def view(self, name: str) -> F32 | None:
        """Return a view of the tensor called *name*; None if it has no buffer."""
        value = self._values.get(name)
        if isinstance(value, Input):
            return value.values
        return value.view if value else None

    def columns(self, tensor: Tensor) -> Columns:
        """Return the columns of *tensor*'s float values."""
        self._value(tensor)
        return self._columns(tensor.name)

    def input(self, op: Op, tensor: Tensor, quantise: Callable[[Input], None]) -> Input:
        """Return *tensor* as an input of products.

        If products need codes and *tensor* has none yet, call *quantise* with the input.
        """
        value = self._value(tensor)
        if isinstance(value, Columns):
            if not value.is_whole:
                raise unsupported(op, f"{tensor.name} shares its buffer with other tensors")
            value = self._values[tensor.name] = self.shared_input(tensor, value.buffer)
            if value.quantised:
                quantise(value)
        return value

    def beside(self, op: Op, tensors: Sequence[Tensor]) -> F32:
        """Return the buffer that *tensors* fill side by side.

        Raises:
            UnsupportedOp: *tensors* are not side by side, or share the buffer with others.
        """
        found = [self.columns(tensor) for tensor in tensors]
        buffer, end = found[0].buffer, 0
        for each in found:
            if each.buffer is not buffer or each.start != end:
                raise unsupported(op, "its inputs are not side by side in one buffer")
            end += each.count
        if end != buffer.shape[1]:
            raise unsupported(op, "its inputs share their buffer with other tensors")
        return buffer

    def codes(self, tensor: Tensor) -> tuple[bool, bool]:
        """Return whether products of *tensor* need int8 codes, and whether they need int16."""
        return self._precisions.get(local(tensor.name), (False, False))

    def _columns(self, name: str) -> Columns:
        value = self._values[name]
        return Columns(value.values, 0, value.k) if isinstance(value, Input) else value

    def _value(self, tensor: Tensor) -> Columns | Input:
        if tensor.name not in self._values and tensor.name in self.loose:
            self.place([tensor], row_multiplier_of(tensor))
        return self._values[tensor.name]

    # --- New values -----------------------------------------------------------------------------

    def put(self, tensor: Tensor, value: Columns | Input) -> None:
        """Record that the values of *tensor* are in *value*; other tensors may share its memory."""
        self._values[tensor.name] = value
        self._hold(value.values if isinstance(value, Input) else value.buffer, {tensor.name})

    def shared_input(self, tensor: Tensor, buffer: F32) -> Input:
        """Return an input with the values in *buffer* and the codes that products need."""
        quantised, int16 = self.codes(tensor)
        key = (f"codes of {buffer.ctypes.data}", f"{quantised}, {int16}", tensor.columns)
        if key not in self._made:
            self._made[key] = Input(*buffer.shape, quantised=quantised, int16=int16, values=buffer)
        made: Input = self._made[key]
        return made

    def make_input(self, tensor: Tensor, row_multiplier: int = 1) -> Input:
        """Return the input for new values of *tensor*, with codes if products need them."""
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
        """Return a buffer for new values of *tensors*, side by side."""
        whole = self._wide(tensors, row_multiplier)
        self._lay(tensors, whole, 0)
        return whole

    def place(self, tensors: Sequence[Tensor], row_multiplier: int = 1) -> tuple[F32, int]:
        """Return a buffer for new values of *tensors*, side by side, and their first column.

        If a later op needs *tensors* side by side with others, the buffer has columns for these,
        too.
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
        """Return a buffer for *tensors*, which *make* creates on first use.

        All layers share the buffer.  *tensors* get a separate one if a later op reads values of
        another layer in the shared buffer, or if another part of the graph reads or writes
        *tensors*.

        Args:
            kind: Distinguishes buffers of one tensor name.
            tensors: The tensors in the buffer.
            make: Returns a new buffer.
            memory: Returns the array that identifies the memory of a buffer.
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
    """Return *name* without the prefix that names the layer."""
    return name.rpartition(".")[2]


def row_multiplier_of(tensor: Tensor) -> int:
    """Return the number of rows that *tensor* has per row of the run: top_k for experts, else 1."""
    return tensor.shape[1].size or 1 if len(tensor.shape) == 3 else 1


def unsupported(op: Op, why: str) -> UnsupportedOp:
    """Return the error for an op without a kernel."""
    return UnsupportedOp(
        f"{type(op).__name__} {op.name} cannot run on the host: {why}",
        remedy="run it on the device numpy, which runs every op",
    )


def source(op: Fused, tensor: Tensor) -> Tensor:
    """Return the tensor from which norms and rotations in *op* compute *tensor*."""
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
    """Return q, k and v before norms and rotations; the attention needs them side by side."""
    attention = attention_of(op)
    split = next((part for part in op.parts if isinstance(part, ops.Split)), None)
    q = split.x if split else source(op, attention.q)
    return q, source(op, attention.k), attention.v


def _neighbours(graph: Graph) -> dict[str, tuple[Tensor, ...]]:
    """Return groups of tensors that an op needs side by side, in order, by name of each member.

    A sum overwrites its first operand, so the operand replaces the sum in the group.
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


def _precisions(graph: Graph, weights: Mapping[str, NamedWeight]) -> dict[str, tuple[bool, bool]]:
    """Return, by `local` name of each input of products, whether it needs int8 codes and int16.

    An input is quantised alike in all layers.
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
