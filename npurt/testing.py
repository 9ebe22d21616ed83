"""Tests that every device has to pass, including devices of other packages.

    class TestMine(npurt.testing.DeviceSuite):
        def open(self):
            return MyDevice()

pytest then collects the methods below.  Expected values come from float64 numpy.
"""

import abc
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.base import late
from npurt.device.device import Device, MatMul
from npurt.device.segment import Compiler, Limits, Segment, positional, split
from npurt.errors import LayoutError, NpurtError
from npurt.graph.builder import Builder
from npurt.graph.graph import Graph
from npurt.graph.interpreter import Interpreter
from npurt.graph.ops import Pairing
from npurt.graph.rows import Rows
from npurt.graph.state import States
from npurt.graph.tensor import POSITIONS, SELECTED, Dim, Kind, Tensor
from npurt.quant.tensor import QTensor

Array = npt.NDArray[Any]
EIGHT_BITS = 1e-3  # accepted nmse of products with 8-bit operands; 2e-4 is usual
WIDTH, HEADS, KV_HEADS, FF, VOCABULARY, LAYERS = 64, 4, 2, 96, 128, 2
LIMITS = Limits(rows=48, positions=64, sequences=2, kv_dtype="f32")


def nmse(y: Array, expected: Array) -> float:
    """Return the sum of squared errors of *y* divided by the sum of squares of *expected*."""
    return float(((y - expected) ** 2).sum() / (expected**2).sum())


def decoder() -> Graph:
    """Return the graph of a Llama with two small layers; input ``tokens``, output ``logits``."""
    b = Builder("small")
    d, heads = Dim("D", WIDTH), WIDTH // HEADS

    def product(name: str, x: Any, columns: int) -> Any:
        weight = b.constant(f"{name}.weight", Dim("N", columns), x.shape[-1], dtype="q8_0")
        return b.matmul(name, x, weight, role=name.rpartition(".")[2])

    def norm(name: str, x: Any) -> Any:
        return b.rms_norm(name, x, b.constant(f"{name}.weight", d), 1e-6)

    table = b.constant("embedding.weight", Dim("V", VOCABULARY), d, dtype="q8_0")
    x = b.embedding("embedding", b.tokens(), table)
    rates = b.table("rates", heads // 2)
    for i in range(LAYERS):
        h = norm(f"{i}.attn_norm", x)
        q, k = (
            b.rope(
                f"{i}.{name}_rope", product(f"{i}.{name}", h, n * heads), rates, n, Pairing.HALVES
            )
            for name, n in (("q", HEADS), ("k", KV_HEADS))
        )
        v = product(f"{i}.v", h, KV_HEADS * heads)
        mixed = b.attention(f"{i}.attention", q, k, v, HEADS, KV_HEADS, heads**-0.5)
        x = b.add(f"{i}.mixed", x, product(f"{i}.out", mixed, WIDTH))
        h = norm(f"{i}.ffn_norm", x)
        unit = b.gated_unit(f"{i}.unit", product(f"{i}.gate", h, FF), product(f"{i}.up", h, FF))
        x = b.add(f"{i}", x, product(f"{i}.down", unit, WIDTH))
    h = norm("norm", b.select_rows("selected", x))
    b.output(product("output", h, VOCABULARY), "logits")
    return b.build()


class RandomWeights:
    """Random weights of a graph, reproducible by a seed, as `npurt.device.segment.Weights`."""

    def __init__(self, graph: Graph, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        self._tensors: dict[str, QTensor] = {}
        for tensor in graph.tensors(Kind.WEIGHT):
            shape = [dim.size or 1 for dim in tensor.shape]
            values = rng.standard_normal(shape).astype(np.float32) / shape[-1] ** 0.5
            if len(shape) == 1:
                values = 1 + values
            self._tensors[tensor.name] = QTensor.quantize(values, tensor.dtype)
        self._tables = {
            tensor.name: 10.0 ** -np.arange(tensor.columns, dtype=np.float64)
            for tensor in graph.tensors(Kind.TABLE)
        }

    def quantised(self, name: str) -> QTensor:
        """Return a weight."""
        return self._tensors[name]

    def values(self, name: str) -> Array:
        """Return a weight or table as floats."""
        return self._tables[name] if name in self._tables else self._tensors[name].dequantize()


class DeviceSuite(abc.ABC):
    """The tests.  A subclass defines `open`, and may override the class attributes."""

    tolerance = EIGHT_BITS  # largest accepted nmse of a product, and of logits of `decoder`
    formats = ("q8_0", "f32")  # weight formats to test

    @abc.abstractmethod
    def open(self) -> Device:
        """Return the device, opened."""

    # --- Products -------------------------------------------------------------------------------

    def test_products_are_right(self) -> None:
        """Multiply one row and several rows by weights of each format that the device supports."""
        rng = np.random.default_rng(2)
        with self.open() as device:
            for form in self.formats:
                w = QTensor.quantize(rng.standard_normal((48, 64)).astype(np.float32), form)
                if device.why_not(MatMul(1, 64, 48, form)):
                    continue
                packed = device.pack(w)
                for rows in (1, 3, 17):
                    x = rng.standard_normal((rows, 64)).astype(np.float32)
                    y = np.full((rows, 48), np.nan, np.float32)
                    device.matmul(x, packed, y)
                    expected = x.astype(np.float64) @ w.dequantize().astype(np.float64).T
                    assert nmse(y, expected) < self.tolerance, (form, rows)

    def test_what_it_says_it_multiplies_is_what_it_multiplies(self) -> None:
        """Results are products of the `multiplied` values, within the error of `Packed.error`."""
        rng = np.random.default_rng(3)
        with self.open() as device:
            w = QTensor.quantize(rng.standard_normal((32, 64)).astype(np.float32), "q8_0")
            packed = device.pack(w)
            x = rng.standard_normal((5, 64)).astype(np.float32)
            y = np.empty((5, 32), np.float32)
            device.matmul(x, packed, y)
            rows = slice(0, 32)
            multiplied = device.multiplied(x, packed)
            sizes = device.magnitudes(x, packed)
            if sizes is None:
                sizes = np.sqrt((multiplied**2).sum(axis=1))
            bound = 8 * sizes[:, None] * packed.error(rows) + packed.floor(rows)
            assert (abs(y - multiplied @ packed.multiplied(rows).T) <= bound).all()

    def test_shapes_that_do_not_fit_are_refused(self) -> None:
        """The device raises LayoutError, and writes nothing."""
        with self.open() as device:
            packed = device.pack(QTensor.quantize(np.ones((32, 64), np.float32), "q8_0"))
            out = np.zeros((2, 32), np.float32)
            for x in (np.ones((2, 32), np.float32), np.ones((3, 64), np.float32)):
                with refusal(f"x {x.shape}"):
                    device.matmul(x, packed, out)
            assert not out.any()

    def test_it_can_be_closed_twice(self) -> None:
        """A second call of close() does nothing."""
        device = self.open()
        device.close()
        device.close()

    def test_a_closed_device_refuses_to_work(self) -> None:
        """The device raises NpurtError, and writes nothing."""
        tensor = QTensor.quantize(np.ones((32, 64), np.float32), "q8_0")
        graph = decoder()
        with self.open() as device:
            packed = device.pack(tensor)
        out = np.zeros((2, 32), np.float32)
        with refusal("a product after close()", NpurtError):
            device.matmul(np.ones((2, 64), np.float32), packed, out)
        assert not out.any()
        with refusal("a weight after close()", NpurtError):
            device.pack(tensor)
        if isinstance(device, Compiler):
            ops = [op for op in graph.ops if device.why_not_op(op, LIMITS) is None]
            _, part = next(each for each in split(graph, lambda op: op in ops) if each[0])
            with refusal("a segment after close()", NpurtError):
                device.compile(part, RandomWeights(graph), LIMITS)

    # --- Graphs ---------------------------------------------------------------------------------

    def test_logits_of_a_small_model(self) -> None:
        """A prompt gives the interpreter's logits, in one run and token by token."""
        ids = np.arange(7, 27) % VOCABULARY
        with self.segments() as (segments, graph, weights):
            expected = reference(graph, weights, ids)
            whole = evaluate(segments, ids)
            forget(segments)
            cut = np.concatenate(
                [evaluate(segments, ids[:5])]
                + [evaluate(segments, ids[i : i + 1], i) for i in range(5, len(ids))]
            )
            assert nmse(whole, expected) < self.tolerance
            assert nmse(cut, expected) < self.tolerance

    def test_states_are_those_of_the_graph(self) -> None:
        """After states are read, dropped and written back, runs give the same logits as before."""
        ids = np.arange(3, 19) % VOCABULARY
        with self.segments() as (segments, graph, _):
            first = evaluate(segments, ids[:8])
            kept = {
                (i, t.name): segment.read(t, 0)
                for i, segment in enumerate(segments)
                for t in segment.part.tensors(Kind.STATE)
            }
            assert {name for _, name in kept} == {t.name for t in graph.tensors(Kind.STATE)}
            then = evaluate(segments, ids[8:], 8)
            forget(segments)
            for i, segment in enumerate(segments):
                for tensor in segment.part.tensors(Kind.STATE):
                    segment.write(tensor, 0, kept[i, tensor.name])
            assert np.array_equal(evaluate(segments, ids[8:], 8), then)
            forget(segments)
            assert np.array_equal(evaluate(segments, ids[:8]), first)

    def test_sequences_do_not_see_each_other(self) -> None:
        """Rows of two sequences in one run give the same results as separate runs."""
        one, two = np.arange(6), np.arange(40, 46)
        with self.segments() as (segments, _, _):
            alone = evaluate(segments, one), evaluate(segments, two, sequence=1)
            forget(segments)
            rows = Rows(np.repeat([0, 1], 6), np.tile(np.arange(6), 2), np.ones(12, np.bool_))
            both = run(segments, {"tokens": np.concatenate([one, two])}, rows)
            assert nmse(both, np.concatenate(alone)) < self.tolerance

    def test_a_fork_goes_on_as_the_sequence_that_it_was_taken_from(self) -> None:
        """A fork starts with the source's first positions; runs of one do not change the other."""
        ids = np.arange(11, 27) % VOCABULARY
        with self.segments() as (segments, _, _):
            evaluate(segments, ids[:8])
            evaluate(segments, ids[8:12], 8)
            for segment in segments:
                segment.fork(0, 1, 8)
            other = evaluate(segments, ids[:4], 8, sequence=1)
            then = evaluate(segments, ids[12:], 12)
            for segment in segments:
                segment.fork(0, 1, 12)  # replaces the states of sequence 1
            assert np.array_equal(evaluate(segments, ids[12:], 12, sequence=1), then)

            forget(segments)
            evaluate(segments, ids[:8])
            assert np.array_equal(evaluate(segments, ids[:4], 8), other)

    def test_a_fork_outlives_the_sequence_that_it_was_taken_from(self) -> None:
        """The fork keeps its states when the source is forgotten and run again."""
        ids = np.arange(30, 46) % VOCABULARY
        with self.segments() as (segments, _, _):
            evaluate(segments, ids[:8])
            then = evaluate(segments, ids[8:12], 8)
            for segment in segments:
                segment.fork(0, 1, 8)
                segment.forget(0)
            evaluate(segments, ids[4:12])
            assert np.array_equal(evaluate(segments, ids[8:12], 8, sequence=1), then)

    def test_forks_that_cannot_be_are_refused(self) -> None:
        """The segment raises LayoutError, and changes no state."""
        with self.segments() as (segments, _, _):
            evaluate(segments, np.arange(3))
            evaluate(segments, np.arange(5), sequence=1)
            for segment in segments:
                kept = {(t, i): segment.read(t, i) for t in _states(segment) for i in (0, 1)}
                with refusal("a fork to itself"):
                    segment.fork(0, 0, 2)
                if positional(segment.part):
                    with refusal("a fork of more than there is"):
                        segment.fork(0, 1, 4)
                    with refusal("a third sequence"):
                        segment.fork(0, 7, 2)
                for (tensor, i), values in kept.items():
                    assert np.array_equal(segment.read(tensor, i), values)

    def test_pages_are_taken_when_they_are_needed_and_given_back(self) -> None:
        """`capacity` counts free pages; it returns None if each sequence has fixed memory."""
        with self.segments() as (segments, _, _):
            for capacity in (segment.capacity() for segment in segments):
                assert capacity is None or (capacity.page > 0 and capacity.free == capacity.total)
            evaluate(segments, np.arange(20))
            evaluate(segments, np.arange(3), sequence=1)
            for segment in segments:
                if capacity := segment.capacity():
                    assert capacity.total - capacity.free == capacity.pages(20) + capacity.pages(3)
                    assert (left := segment.capacity(without=[1])) is not None
                    assert left.free == capacity.free + capacity.pages(3)
                segment.rewind(0, segment.reach(0, 1))
                segment.forget(1)
                assert not (left := segment.capacity()) or left.total - left.free <= left.pages(1)
                segment.forget(0)
                assert (capacity := segment.capacity()) is None or capacity.free == capacity.total

    def test_counters_count(self) -> None:
        """The counters add up to the multiply-adds of all products that ran."""
        with self.segments() as (segments, graph, _):
            evaluate(segments, np.arange(4))
            evaluate(segments, np.arange(4, 5), 4)
            macs = sum(c.macs for segment in segments for c in segment.counters())
            per_row = LAYERS * WIDTH * (2 * WIDTH + 2 * WIDTH * KV_HEADS // HEADS + 3 * FF)
            assert macs == 5 * (per_row + WIDTH * VOCABULARY), graph.name

    # --- Wrong calls ----------------------------------------------------------------------------

    def test_runs_that_do_not_fit_are_refused(self) -> None:
        """The segment raises LayoutError, and changes no state."""
        tokens = np.arange(8)
        with self.segments() as (segments, _, _):
            values: dict[str, Array] = {"tokens": tokens}
            for segment in segments:
                for what, given, rows in _wrong_runs(segment.part):
                    with refusal(f"{segment.part.name}: {what}"):
                        segment.run(given, rows)
                    assert not any(segment.read(t, 0).any() for t in _states(segment)), what
                values |= segment.run(values, Rows.of(8))
            after_refusals = values["logits"]
            forget(segments)
            assert np.array_equal(evaluate(segments, tokens), after_refusals)

    def test_a_gap_in_the_positions_is_refused(self) -> None:
        """The first row of a run has to follow the last position of its sequence."""
        with self.segments() as (segments, _, _):
            evaluate(segments, np.arange(3))
            for segment in segments:
                if any(POSITIONS in tensor.shape for tensor in _states(segment)):
                    with refusal("position 4 after 3"):
                        segment.run(_inputs(segment.part, Rows.of(1, 4)), Rows.of(1, 4))

    def test_a_sequence_too_many_is_refused(self) -> None:
        """A sequence beyond the limit is refused until another sequence is forgotten."""
        with self.segments() as (segments, _, _):
            evaluate(segments, np.arange(3))
            evaluate(segments, np.arange(3), sequence=7)
            for segment in segments:
                rows = Rows(np.full(1, 1), np.zeros(1, np.intp), np.ones(1, np.bool_))
                with refusal("a third sequence"):
                    segment.run(_inputs(segment.part, rows), rows)
                for tensor in _states(segment):
                    with refusal("a state of a third sequence"):
                        segment.read(tensor, 1)
                    with refusal("a state for a third sequence"):
                        segment.write(tensor, 1, segment.read(tensor, 0))
                segment.forget(7)
                segment.run(_inputs(segment.part, rows), rows)

    def test_states_that_do_not_fit_are_refused(self) -> None:
        """The segment raises LayoutError, and changes no state."""
        with self.segments() as (segments, _, _):
            evaluate(segments, np.arange(3))
            for segment in segments:
                other = Tensor("another", (Dim("N", 4),), kind=Kind.STATE)
                with refusal("reading a state of no op"):
                    segment.read(other, 0)
                with refusal("writing a state of no op"):
                    segment.write(other, 0, np.zeros(4, np.float32))
                for tensor in _states(segment):
                    kept = segment.read(tensor, 0)
                    long = np.zeros((LIMITS.positions + 1, *kept.shape[1:]), np.float32)
                    for wrong in (long, kept[..., :-1], kept[None], kept.astype(str)):
                        with refusal(f"{tensor} {wrong.dtype} {wrong.shape}"):
                            segment.write(tensor, 0, wrong)
                    assert np.array_equal(segment.read(tensor, 0), kept)

    def test_what_is_refused_takes_no_room(self) -> None:
        """A sequence whose calls were all refused does not count towards the limit."""
        with self.segments() as (segments, _, _):
            evaluate(segments, np.arange(3))
            for segment in segments:
                other = Tensor("another", (Dim("N", 4),), kind=Kind.STATE)
                for sequence in range(7, 10):
                    with refusal("reading a state of no op"):
                        segment.read(other, sequence)
                    for tensor in _states(segment):
                        with refusal("writing a state of another shape"):
                            segment.write(tensor, sequence, np.zeros((1, 1, 1, 1), np.float32))
                    assert segment.reach(sequence, 2) in (0, 2)
                rows = Rows(np.full(1, 1), np.zeros(1, np.intp), np.ones(1, np.bool_))
                segment.run(_inputs(segment.part, rows), rows)

    def test_a_closed_segment_refuses_to_work(self) -> None:
        """After close(), counters are kept, and close(), forget() and rewind() do nothing."""
        with self.segments() as (segments, _, _):
            evaluate(segments, np.arange(3))
            for segment in segments:
                counted = list(segment.counters())
                for _ in range(2):
                    segment.close()
                    segment.forget(0)
                assert list(segment.counters()) == counted
                with refusal("a run after close()"):
                    segment.run(_inputs(segment.part, Rows.of(1)), Rows.of(1))
                segment.rewind(0, segment.reach(0, 2))
                for tensor in _states(segment):
                    with refusal("reading after close()"):
                        segment.read(tensor, 0)
                    with refusal("writing after close()"):
                        segment.write(tensor, 0, np.zeros([d.size or 0 for d in tensor.shape]))

    @contextlib.contextmanager
    def segments(self) -> Iterator[tuple[list[Segment], Graph, RandomWeights]]:
        """Yield the segments of `decoder`; numpy runs the ops that this device refuses."""
        with late.imports():
            from npurt.reference.device import ReferenceDevice

        graph = decoder()
        weights = RandomWeights(graph)
        with self.open() as device:
            assert isinstance(device, Compiler), f"{device} runs no graphs"
            compiler, other = device, ReferenceDevice()
            parts = split(graph, lambda op: other if compiler.why_not_op(op, LIMITS) else compiler)
            made: list[Segment] = []
            try:
                for owner, part in parts:
                    made.append(owner.compile(part, weights, LIMITS))
                yield made, graph, weights
            finally:
                for segment in made:
                    segment.close()


def run(segments: list[Segment], inputs: Mapping[str, Array], rows: Rows) -> Array:
    """Run all segments in order; return the logits."""
    values = dict(inputs)
    for segment in segments:
        values |= segment.run(values, rows)
    return values["logits"]


def evaluate(segments: list[Segment], ids: Array, position: int = 0, sequence: int = 0) -> Array:
    """Return the logits of *ids*, tokens of a sequence from *position* on."""
    return run(segments, {"tokens": ids}, Rows.of(len(ids), position, sequence=sequence))


def forget(segments: list[Segment]) -> None:
    """Drop the states of both sequences."""
    for segment in segments:
        segment.forget(0)
        segment.forget(1)


def reference(graph: Graph, weights: RandomWeights, ids: Array) -> Array:
    """Return the logits of *ids* computed in float64."""
    interpreter = Interpreter(graph, weights.values)
    inputs = {"tokens": ids}
    return interpreter.run(inputs, Rows.of(len(ids)), States(graph, np.float64))["logits"]


@contextlib.contextmanager
def refusal(what: str, error: type[NpurtError] = LayoutError) -> Iterator[None]:
    """Fail unless the statements of this context raise *error*."""
    with contextlib.suppress(error):
        yield
        raise AssertionError(f"{what} was not refused")


def _states(segment: Segment) -> tuple[Tensor, ...]:
    return segment.part.tensors(Kind.STATE)


def _read(part: Graph) -> list[Tensor]:
    """Return the tensors that a run of *part* needs as arguments."""
    inputs = {tensor.name for tensor in part.tensors(Kind.INPUT)} | part.given
    tensors = {t.name: t for op in part.ops for t in op.reads}
    return [tensors[name] for name in sorted(inputs)]


def _inputs(part: Graph, rows: Rows) -> dict[str, Array]:
    """Return arrays of zeros for all arguments of a run of *rows*."""
    values = {}
    for tensor in _read(part):
        count = int(rows.wanted.sum()) if tensor.shape[0] == SELECTED else len(rows)
        dtype = np.int32 if tensor.dtype == "i32" else np.float32
        values[tensor.name] = np.zeros((count, *(d.size or 1 for d in tensor.shape[1:])), dtype)
    return values


def _wrong_runs(part: Graph) -> Iterator[tuple[str, dict[str, Array], Rows]]:
    """Yield wrong runs of *part*: the name of the only mistake, the values and the rows."""
    zeros, three = np.zeros(3, np.intp), np.arange(3)
    wrong_rows = {
        "no rows": Rows.of(0),
        "too many rows": Rows.of(LIMITS.rows + 1),
        "a position beyond the limit": Rows.of(2, LIMITS.positions - 1),
        "a position before 0": Rows.of(2, -1),
        "too many sequences": Rows(three, zeros, zeros == 0),
        "positions out of order": Rows(zeros, three[::-1], zeros == 0),
        "a gap between positions": Rows(zeros, 2 * three, zeros == 0),
    }
    for what, rows in wrong_rows.items():
        yield what, _inputs(part, rows), rows
    rows = Rows.of(2)
    right = _inputs(part, rows)
    for tensor in _read(part):
        x = right[tensor.name]
        wrong = [x[:1], np.repeat(x, 2, axis=0), x[..., None, None].repeat(2, axis=-1)]
        wrong += [x.astype(str), x.astype(np.complex64), x.tolist()]
        wrong.append(x.astype(np.float32) if tensor.dtype == "i32" else x.astype(np.int32))
        wrong += [x - 1, x + VOCABULARY] if tensor.dtype == "i32" else [x[..., :-1]]
        for array in wrong:
            yield f"{tensor} as {array!r:.60}", {**right, tensor.name: array}, rows
        yield f"no {tensor.name}", {n: v for n, v in right.items() if n != tensor.name}, rows
