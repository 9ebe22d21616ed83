"""Check the arguments of segments, for all devices."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from npurt.device.segment import Array, Limits, require_fork
from npurt.errors import LayoutError
from npurt.graph import ops
from npurt.graph.graph import Graph
from npurt.graph.rows import Rows, Span
from npurt.graph.tensor import POSITIONS, SELECTED, Kind, Tensor


class Guard:
    """Checks every call of a segment against its graph and limits, before any state changes.

    Attributes:
        closed: The segment was closed.
    """

    def __init__(self, part: Graph, limits: Limits) -> None:
        self.closed = False
        self._part, self._limits = part, limits
        self._lengths: dict[int, int] = {}  # positions of each sequence that has states
        self._states = set(part.tensors(Kind.STATE))
        self._has_positions = any(POSITIONS in tensor.shape for tensor in self._states)
        inputs = part.given | {tensor.name for tensor in part.tensors(Kind.INPUT)}
        self._inputs = {t.name: t for op in part.ops for t in op.reads if t.name in inputs}
        self._row_elements = {t.name: t.row_elements for t in self._inputs.values()}
        self._indexed: dict[str, list[Tensor]] = {}  # index tensor -> weights that it indexes
        for op in part.ops:
            if isinstance(op, ops.Embedding):
                self._indexed.setdefault(op.tokens.name, []).append(op.weight)
            elif isinstance(op, ops.ExpertMatMul):
                self._indexed.setdefault(op.experts.name, []).append(op.weight)

    def begin_run(self, values: Mapping[str, Array], rows: Rows) -> Sequence[Span]:
        """Check the arguments of `Segment.run`; return the rows of each sequence.

        Raises:
            LayoutError: *values* or *rows* do not fit the segment.
        """
        spans, sequences = rows.by_sequence(), set[int]()
        first, end, count = 0, 0, len(rows.positions)
        for span in spans:
            sequences.add(span.sequence)
            first, end = min(first, span.first), max(end, span.end)
        self._require_slots(sequences)
        limits = self._limits
        if not 0 < count <= limits.rows or first < 0 or end > limits.positions:
            raise LayoutError(
                f"{count} rows at positions from {first} to {end - 1} do not fit a segment for "
                f"{limits.rows} rows and {limits.positions} positions",
                remedy="pass fewer rows, or compile with larger limits",
            )
        for span in spans:
            length = self._lengths.get(span.sequence, 0)
            counts = self._has_positions or (self._states and span.sequence not in self._lengths)
            if counts and span.first > length:
                raise LayoutError(
                    f"sequence {span.sequence} has {length} positions, not {span.first}",
                    remedy="run the rows of a sequence in order, without a gap",
                )
        if not self._inputs.keys() <= values.keys():
            missing = sorted(self._inputs.keys() - values.keys())
            raise LayoutError(
                f"the part {self._part.name} needs the inputs {', '.join(missing)}",
                remedy="pass an array for each name in part.given",
            )
        for name, tensor in self._inputs.items():
            selected = tensor.shape[0] == SELECTED
            self._require_input(tensor, values[name], int(rows.wanted.sum()) if selected else count)
        return spans

    def end_run(self, rows: Rows) -> None:
        """Record that a run succeeded."""
        for span in rows.by_sequence():
            self._lengths[span.sequence] = span.end

    def begin_read(self, state: Tensor, sequence: int) -> None:
        """Check the arguments of `Segment.read`, and record that the sequence has states.

        Raises:
            LayoutError: The part has no such state, or the segment has no space for *sequence*.
        """
        self._require_state(state, sequence)
        self._lengths.setdefault(sequence, 0)

    def begin_write(self, state: Tensor, sequence: int, values: Array) -> None:
        """Check the arguments of `Segment.write`, and record the sequence's new length.

        Raises:
            LayoutError: As in `begin_read`, or *values* have a wrong shape or dtype.
        """
        self._require_state(state, sequence)
        maximum, given = self._limits.positions, values.shape
        integers = values.dtype == np.int32 and len(given) == 3 and POSITIONS not in state.shape
        if integers:  # see `npurt.device.delta.STATE_INTEGERS`
            given = (*given[:-1], given[-1] - 2)
        shape = [
            min(size, maximum) if dim == POSITIONS else dim.size
            for dim, size in zip(state.shape, given, strict=False)
        ]
        wrong_shape = len(state.shape) != values.ndim or tuple(shape) != given
        if wrong_shape or (values.dtype.kind != "f" and not integers):
            raise LayoutError(
                f"{values.dtype} {values.shape} is not {state} with {maximum} positions at most",
                remedy="write an array that read() returned, or compile with more positions",
            )
        length = self._lengths.get(sequence, 0)
        self._lengths[sequence] = len(values) if POSITIONS in state.shape else length

    def begin_fork(self, source: int, target: int, length: int) -> None:
        """Check the arguments of `Segment.fork`.

        Raises:
            LayoutError: *source* has too few positions, or the segment has no space for *target*.
        """
        have = self._lengths.get(source, 0) if self._has_positions else length
        require_fork(source, target, length, have)
        self._require_slots([target])

    def end_fork(self, target: int, length: int) -> None:
        """Record that a sequence was forked."""
        self._lengths[target] = length

    def has(self, sequence: int) -> bool:
        """Return whether a sequence has states."""
        return sequence in self._lengths

    def rewind(self, sequence: int, length: int) -> None:
        """Record that a sequence now has only its first *length* positions."""
        self._lengths[sequence] = min(length, self._lengths.get(sequence, 0))

    def forget(self, sequence: int) -> None:
        """Record that the states of a sequence are dropped."""
        self._lengths.pop(sequence, None)

    def _require_slots(self, sequences: Iterable[int]) -> None:
        if self.closed:
            raise LayoutError(f"{self._part.name} was closed", remedy="compile the part again")
        count, maximum = len(self._lengths.keys() | set(sequences)), self._limits.sequences
        if count > maximum:
            raise LayoutError(
                f"{count} sequences do not fit a segment for {maximum}",
                remedy="call forget() for a sequence first, or compile with larger limits",
            )

    def _require_state(self, state: Tensor, sequence: int) -> None:
        self._require_slots([sequence])
        if state not in self._states:
            raise LayoutError(
                f"{state.name} is no state of {self._part.name}",
                remedy="use the segment whose part has this state",
            )

    def _require_input(self, tensor: Tensor, array: Array, count: int) -> None:
        kinds = "iu" if tensor.dtype == "i32" else "f"
        if not isinstance(array, np.ndarray) or array.dtype.kind not in kinds:
            raise LayoutError(
                f"{tensor.name} is {getattr(array, 'dtype', type(array))}, not {tensor.dtype}",
                remedy="pass a numpy array; astype() converts one",
            )
        if array.shape[:1] != (count,) or array.size != count * self._row_elements[tensor.name]:
            raise LayoutError(
                f"{tensor.name} is {array.shape}, not {tensor} of {count} rows",
                remedy="pass one row for each row of the run; for a tensor of selected rows, one "
                "for each wanted row",
            )
        for weight in self._indexed.get(tensor.name, ()):
            size = weight.shape[0].size or 0
            numbers = array.ravel().tolist()
            if numbers and not 0 <= min(numbers) <= max(numbers) < size:
                wrong = next(number for number in numbers if not 0 <= number < size)
                raise LayoutError(
                    f"there is no {tensor.name} {wrong} in {weight.name}, which has {size}",
                    remedy=f"pass numbers from 0 to {size - 1}",
                )
