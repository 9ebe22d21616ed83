"""Tests of segments on the CPU: the suite for devices, and partitions of models."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npurt
from npurt.cpu.device import CpuDevice
from npurt.cpu.kernels import abi
from npurt.device.segment import Limits, split
from npurt.device.verify import Mode, Sampler
from npurt.errors import LayoutError
from npurt.graph.builder import Builder
from npurt.graph.rows import Rows
from npurt.graph.tensor import Dim, Kind
from npurt.llm.arch.reading import describe
from npurt.llm.arch.weights import FileWeights
from npurt.llm.file.gguf import GGUF
from npurt.reference.device import ReferenceDevice
from npurt.runtime.execute.executor import Executor
from npurt.runtime.report.ledger import Ledger
from npurt.testing import DeviceSuite, RandomWeights, reference
from tests.graph.models import logits
from tests.llm import tiny
from tests.llm.reference import nmse
from tests.runtime.test_execute import FLOAT32

MODELS = ["gemma3", "gpt-oss", "granite", "lfm2", "llama3", "olmo2", "qwen3", "qwen35", "qwen3moe"]
LIMITS = Limits(rows=16, positions=64, sequences=2, kv_dtype="f32")


class TestCpu(DeviceSuite):
    formats = ("q8_0", "f32", "q4_0", "bf16")

    def open(self):
        return CpuDevice(2)


def path(model, kinds=("f32", "bf16")):
    return next(p for kind in kinds if (p := tiny.path(model, kind)).exists())


class Refusing(CpuDevice):
    """A CPU device that refuses ops of some kinds."""

    def __init__(self, refuses):
        super().__init__(2)
        self.refuses = refuses

    def why_not_op(self, op, limits):
        return "refused" if isinstance(op, self.refuses) else super().why_not_op(op, limits)


def run(segment, ids, start=0, wanted=None):
    made = segment.run({"tokens": np.array(ids)}, Rows.of(len(ids), start, wanted=wanted))
    return made["logits"]


@pytest.fixture(params=MODELS)
def model(request):
    """Return the path of a model, its graph and its weights."""
    file = path(request.param, ("q8_0", "f32", "bf16"))
    with GGUF(file) as opened:
        graph = describe(opened).graph(64)
        yield file, graph.graph, FileWeights(opened, graph)


def test_a_model_is_one_program_and_gives_the_bits_of_the_plan(model):
    file, graph, weights = model
    ids = tiny.ids(file.parent.name, 20)
    with npurt.Llama(file, "cpu", n_ctx=64, n_threads=2, kv_type="f32", progress=False) as llm:
        expected = np.concatenate([llm.eval(ids[:12]), llm.eval(ids[12:13]), llm.eval(ids[13:])])

    with CpuDevice(2) as cpu:
        assert not any(cpu.why_not_op(op, LIMITS) for op in graph.ops)
        segment = cpu.compile(graph, weights, LIMITS)
        y = [run(segment, ids[:12]), run(segment, ids[12:13], 12), run(segment, ids[13:], 13)]

        assert len(segment._program.steps._steps) == 1
    assert np.array_equal(np.concatenate(y), expected)


def partitions():
    """Yield each model with each of its kinds of ops."""
    for name in ("qwen35", "qwen3moe", "lfm2", "gemma3", "granite"):
        file = path(name)
        with GGUF(file) as opened:
            listed = describe(opened).graph(64).graph.ops
        for kind in dict.fromkeys(map(type, listed)):
            yield pytest.param(file, kind, id=f"{name}-{kind.__name__}")


@pytest.mark.parametrize(("file", "kind"), list(partitions()))
def test_what_a_device_refuses_another_does_between_programs(file, kind):
    """The result is right if the CPU refuses one kind of op, and if it refuses all other kinds."""
    ids = tiny.ids(file.parent.name, 20)
    expected = logits(file, ids)
    with GGUF(file) as opened:
        graph = describe(opened).graph(64)
        others = tuple({type(op) for op in graph.graph.ops} - {kind})
        for refuses in (kind, others):
            with Refusing(refuses) as cpu:
                weights = FileWeights(opened, graph)
                made = Executor(
                    graph.graph, cpu, ReferenceDevice(), weights, LIMITS, Ledger("test")
                )
                y = [made.run({"tokens": np.array(ids[:7])}, Rows.of(7))["logits"]]
                for i in range(7, 20):
                    inputs = {"tokens": np.array(ids[i : i + 1])}
                    y.append(made.run(inputs, Rows.of(1, i))["logits"])
                made.close()

            assert {part.actual for part in made.parts} == {"cpu", "numpy"}
            assert nmse(np.concatenate(y), expected) < FLOAT32


@given(st.data())
@settings(max_examples=12, deadline=None)
def test_any_ops_can_be_refused(data):
    """With any set of ops on another device and the rest on the CPU, the result is right."""
    name = data.draw(st.sampled_from(["qwen35", "qwen3moe", "lfm2", "gemma2", "gpt-oss"]))
    share = data.draw(st.sampled_from([0.05, 0.3, 0.8]))
    chance = data.draw(st.randoms(use_true_random=False))
    file, ids = path(name), tiny.ids(name, 12)
    cut = data.draw(st.integers(1, 11))
    with GGUF(file) as opened, Refusing(()) as cpu:
        graph = describe(opened).graph(64)
        refused = {op.name for op in graph.graph.ops if chance.random() < share}
        other, weights = ReferenceDevice(), FileWeights(opened, graph)
        parts = split(graph.graph, lambda op: other if op.name in refused else cpu)
        segments = [owner.compile(part, weights, LIMITS) for owner, part in parts]
        y = []
        for start, end in ((0, cut), (cut, 12)):
            values = {"tokens": np.array(ids[start:end])}
            for segment in segments:
                values |= segment.run(values, Rows.of(end - start, start))
            y.append(values["logits"])

    assert nmse(np.concatenate(y), logits(file, ids)) < FLOAT32


# --- Rows -----------------------------------------------------------------------------------------


def test_logits_of_any_rows_can_be_wanted(model):
    file, graph, weights = model
    ids = tiny.ids(file.parent.name, 9)
    rows = Rows.of(9)
    with CpuDevice(2) as cpu:
        segment = cpu.compile(graph, weights, LIMITS)
        y = run(segment, ids)
        segment.forget(0)
        rows = replace(rows, wanted=~np.isin(np.arange(9), [0, 1, 4, 8]))
        some = segment.run({"tokens": np.array(ids)}, rows)["logits"]
        segment.forget(0)
        none = run(segment, ids, wanted=0)

    assert np.array_equal(some, y[[2, 3, 5, 6, 7]])
    assert none.shape == (0, y.shape[1])


def test_sequences_of_any_model_do_not_see_each_other(model):
    """Two sequences with interleaved rows, some of them wanted, give the bits of each alone."""
    file, graph, weights = model
    ids = np.array(tiny.ids(file.parent.name, 10))
    turns = np.arange(10) % 2
    with CpuDevice(2) as cpu:
        segment = cpu.compile(graph, weights, LIMITS)
        alone = []
        for sequence in (0, 1):
            alone.append(run(segment, ids[turns == sequence]))
            segment.forget(0)
        wanted = np.arange(10) % 3 != 1
        rows = Rows(turns, np.arange(10) // 2, wanted)
        both = segment.run({"tokens": ids}, rows)["logits"]

    expected = np.empty((10, both.shape[1]), np.float32)
    expected[0::2], expected[1::2] = alone
    assert np.array_equal(both, expected[wanted])


def test_rows_that_do_not_fit_are_refused(model):
    _, graph, weights = model
    with CpuDevice(2) as cpu:
        segment = cpu.compile(graph, weights, LIMITS)
        for rows in (Rows.of(17), Rows.of(2, 63), Rows.of(0)):
            with pytest.raises(LayoutError, match="do not fit a segment"):
                segment.run({"tokens": np.zeros(len(rows), int)}, rows)
        with pytest.raises(LayoutError, match="needs the inputs tokens"):
            segment.run({}, Rows.of(1))


def test_a_gap_in_the_positions_is_refused():
    file = path("llama3")
    with GGUF(file) as opened, CpuDevice(2) as cpu:
        graph = describe(opened).graph(64)
        segment = cpu.compile(graph.graph, FileWeights(opened, graph), LIMITS)
        run(segment, [1, 2, 3])
        with pytest.raises(LayoutError, match="has 3 positions, not 4"):
            run(segment, [1], 4)


@pytest.fixture
def small():
    """Return an embedding and a product, compiled on the CPU, with its graph and weights."""
    graph = embedding_and_product()
    weights = RandomWeights(graph)
    with CpuDevice(2) as cpu:
        yield cpu.compile(graph, weights, LIMITS), graph, weights


def embedding_and_product():
    b, d = Builder("small"), Dim("D", 64)
    x = b.embedding("embedding", b.tokens(), b.constant("table", Dim("V", 50), d))
    h = b.rms_norm("norm", x, b.constant("norm.weight", d), 1e-6)
    b.output(b.matmul("up", h, b.constant("weight", Dim("N", 32), d), role="up"), "y")
    return b.build()


@pytest.mark.parametrize("count", [1, 3])
def test_values_of_other_lengths_than_the_rows_are_refused(small, count):
    segment, _, _ = small
    with pytest.raises(LayoutError, match=rf"tokens is \({count},\).* 2 rows"):
        segment.run({"tokens": np.zeros(count, int)}, Rows.of(2))
    apart = Rows(np.array([0, 1]), np.zeros(2, int), np.ones(2, bool))
    with pytest.raises(LayoutError, match="tokens"):
        segment.run({"tokens": np.zeros(count, int)}, apart)


def test_values_of_other_widths_than_the_graph_says_are_refused(small):
    _, graph, weights = small
    part = split(graph, lambda op: type(op).__name__)[1][1]
    (name,) = part.given
    with CpuDevice(2) as cpu:
        segment = cpu.compile(part, weights, LIMITS)
        with pytest.raises(LayoutError, match=r"is \(2, 32\)"):
            segment.run({name: np.zeros((2, 32), np.float32)}, Rows.of(2))


@pytest.mark.parametrize("token", [-1, 50])
def test_tokens_that_a_table_does_not_have_are_refused(small, token):
    with pytest.raises(LayoutError, match=f"no tokens {token} in table, which has 50"):
        small[0].run({"tokens": np.array([3, token])}, Rows.of(2))


def test_positions_before_0_are_refused(small):
    with pytest.raises(LayoutError, match="do not fit a segment"):
        small[0].run({"tokens": np.zeros(2, int)}, Rows.of(2, -1))


def test_more_rows_than_kernels_take_are_refused_when_it_is_compiled(small):
    _, graph, weights = small
    maximum = abi.limits().rows
    with CpuDevice(2) as cpu:
        for rows in (maximum, maximum + 1):
            limits = replace(LIMITS, rows=rows)
            reasons = {cpu.why_not_op(op, limits) for op in graph.ops}
            assert all(reasons) == (rows > maximum), reasons
        with pytest.raises(npurt.UnsupportedOp, match=f"{maximum + 1} rows"):
            cpu.compile(graph, weights, limits)
        fits = cpu.compile(graph, weights, replace(limits, rows=maximum, positions=maximum))
        assert len(fits.run({"tokens": np.zeros(maximum, int)}, Rows.of(maximum))["y"]) == maximum


def test_a_sequence_too_many_is_refused_and_one_that_was_forgotten_makes_room():
    opened = GGUF(path("llama3"))
    made = describe(opened).graph(64)
    graph, ids = made.graph, np.array([1, 2, 3])
    with opened, CpuDevice(2) as cpu:
        segment = cpu.compile(graph, FileWeights(opened, made), LIMITS)
        three = Rows(np.arange(3), np.zeros(3, int), np.ones(3, bool))
        with pytest.raises(LayoutError, match="3 sequences"):
            segment.run({"tokens": ids}, three)
        alone = run(segment, ids)
        two = Rows(np.full(3, 7), np.arange(3), np.ones(3, bool))
        segment.run({"tokens": ids[::-1]}, two)
        state = graph.tensors(Kind.STATE)[0]
        for use in (lambda: segment.read(state, 1),
                    lambda: segment.write(state, 1, np.zeros((0, state.columns)))):  # fmt: skip
            with pytest.raises(LayoutError, match="3 sequences"):
                use()
        segment.forget(7)
        two.sequences[:] = 1
        assert np.array_equal(segment.run({"tokens": ids}, two)["logits"], alone)


def test_what_was_closed_does_not_run(small):
    segment, _, _ = small
    segment.run({"tokens": np.zeros(2, int)}, Rows.of(2))
    counted = list(segment.counters())
    for _ in range(2):
        segment.close()
        segment.forget(0)
    assert list(segment.counters()) == counted
    with pytest.raises(LayoutError, match="small was closed"):
        segment.run({"tokens": np.zeros(2, int)}, Rows.of(2))


# --- Counters -------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([0, 1, 5, -1, -2, -6]), max_size=12))
@settings(max_examples=25, deadline=None)
def test_counters_are_those_of_all_runs_whatever_is_forgotten(steps):
    """The counters of a numpy norm and a product include all runs, even after `forget`."""
    b, d = Builder("counted"), Dim("D", 64)
    x = b.embedding("embedding", b.tokens(), b.constant("table", Dim("V", 50), d))
    h = b.rms_norm("norm", x, b.constant("norm.weight", d), 1e-6, plus_one=True)
    b.output(b.matmul("up", h, b.constant("weight", Dim("N", 32), d), role="up"), "y")
    graph, runs = b.build(), 0
    with CpuDevice(2) as cpu:
        segment = cpu.compile(graph, RandomWeights(graph), replace(LIMITS, sequences=3))
        found: dict[str, tuple[int, ...]] = {}
        for step in steps:  # a negative step forgets a sequence
            if step < 0:
                segment.forget(~step)
            else:
                rows = Rows(np.full(3, step), np.arange(3), np.ones(3, bool))
                segment.run({"tokens": np.arange(3)}, rows)
                runs += 1
            found = {c.op: (c.calls, c.rows, c.macs) for c in segment.counters() if c.calls}
            assert found.get("norm", (0, 0, 0)) == (runs, 3 * runs, 0)
            assert found.get("up", (0, 0, 0)) == (runs, 3 * runs, 3 * runs * 64 * 32)
            assert {calls for calls, _, _ in found.values()} <= {runs}
        segment.close()
        assert {c.op: (c.calls, c.rows, c.macs) for c in segment.counters() if c.calls} == found


# --- States ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama3", "qwen35", "lfm2"])
def test_states_of_another_shape_are_refused_and_change_nothing(name):
    ids = tiny.ids(name, 9)
    with GGUF(path(name)) as opened, CpuDevice(2) as cpu:
        made = describe(opened).graph(64)
        segment = cpu.compile(made.graph, FileWeights(opened, made), LIMITS)
        run(segment, ids[:8])
        for tensor in made.graph.tensors(Kind.STATE):
            kept = segment.read(tensor, 0)
            long = np.zeros((65, *kept.shape[1:]), np.float32)
            for wrong in (long, kept[..., :-1], kept[None]):
                with pytest.raises(LayoutError, match=tensor.name):
                    segment.write(tensor, 0, wrong)
            assert np.array_equal(segment.read(tensor, 0), kept)
        other = replace(tensor, name="nothing")
        for use in (lambda: segment.read(other, 0), lambda: segment.write(other, 0, kept)):
            with pytest.raises(LayoutError, match="nothing is no state of"):
                use()


@pytest.mark.parametrize("name", MODELS)
def test_states_move_between_the_cpu_and_numpy(name):
    """States move in the graph's form; a state written back on the CPU gives the same bits."""
    opened, ids = GGUF(path(name)), tiny.ids(name, 16)
    made = describe(opened).graph(64)
    graph, weights = made.graph, FileWeights(opened, made)
    states = graph.tensors(Kind.STATE)
    with CpuDevice(2) as cpu:
        segment = cpu.compile(graph, weights, LIMITS)
        run(segment, ids[:9])
        kept = {t.name: segment.read(t, 0) for t in states}
        expected = run(segment, ids[9:], 9)
        segment.forget(0)
        for tensor in states:
            segment.write(tensor, 1, kept[tensor.name])
        for tensor in states:
            assert np.array_equal(segment.read(tensor, 1), kept[tensor.name])
        rows = Rows(np.ones(7, int), np.arange(9, 16), np.ones(7, bool))
        again = segment.run({"tokens": np.array(ids[9:])}, rows)["logits"]
    other = ReferenceDevice().compile(graph, weights, LIMITS)
    for tensor in states:
        other.write(tensor, 0, kept[tensor.name])

    assert np.array_equal(again, expected)
    assert nmse(run(other, ids[9:], 9), expected.astype(np.float64)) < FLOAT32
    opened.close()


@pytest.mark.parametrize("name", ["qwen35", "lfm2", "llama3"])
def test_a_checkpoint_is_gone_back_to_exactly(name):
    ids = tiny.ids(name, 16)
    with GGUF(path(name)) as opened, CpuDevice(2) as cpu:
        graph = describe(opened).graph(64)
        segment = cpu.compile(graph.graph, FileWeights(opened, graph), LIMITS)
        run(segment, ids[:5])
        kept = segment.checkpoint(0)
        expected = run(segment, ids[5:], 5)
        segment.restore(0, kept)

        assert np.array_equal(run(segment, ids[5:], 5), expected)


# --- Verification ---------------------------------------------------------------------------------


def test_products_are_verified_and_a_wrong_one_is_said(model):
    file, graph, weights = model
    ids = tiny.ids(file.parent.name, 5)
    with CpuDevice(2) as cpu:
        segment = cpu.compile(graph, weights, LIMITS)
        y = run(segment, ids)
        assert not any(counter.verified for counter in segment.counters())
        segment.verify(Sampler(Mode.ALWAYS))
        segment.forget(0)
        assert np.array_equal(run(segment, ids), y)
        products = [counter for counter in segment.counters() if counter.macs]
        assert all((c.verified, c.failed, c.calls) == (1, 0, 2) for c in products)
        assert segment.events() == []

        (program,) = segment._program.steps._steps
        first = next(iter(program.products.values()))
        first.probes[0].s[:] += 1  # fails with every kernel set
        segment.forget(0)
        with pytest.raises(npurt.VerificationFailed, match=first.names.partition(",")[0]):
            run(segment, ids)
        assert "quarantined: cpu" in segment.events()[0]
        assert segment.events() == []


# --- Any graph ------------------------------------------------------------------------------------


def test_values_of_one_name_do_not_share_a_buffer_while_they_are_needed():
    """Values of two blocks may have one buffer name; while needed, they have separate buffers."""
    b, d = Builder("alike"), Dim("D", 64)
    x = b.embedding("embedding", b.tokens(), b.constant("table", Dim("V", 50), d))
    norms = [b.rms_norm(f"{i}.norm", x, b.constant(f"{i}.norm.weight", d), 1e-6) for i in range(3)]
    made = [
        b.matmul(f"{i}.up", h, b.constant(f"{i}.weight", Dim("N", 64), d), role="up")
        for i, h in reversed(list(enumerate(norms)))
    ]
    total = b.add("sum", b.add("first", made[0], made[1]), made[2])
    b.output(b.add("x", total, norms[1]), "logits")
    graph = b.build()
    weights, ids = RandomWeights(graph), np.arange(5)
    with CpuDevice(2) as cpu:
        y = run(cpu.compile(graph, weights, LIMITS), ids)

    assert nmse(y, reference(graph, weights, ids)) < FLOAT32


def test_a_value_that_leaves_is_not_overwritten_by_a_sum_in_its_place():
    b, d = Builder("leaves"), Dim("D", 64)
    x = b.embedding("embedding", b.tokens(), b.constant("table", Dim("V", 50), d))
    h = b.rms_norm("norm", x, b.constant("norm.weight", d), 1e-6)
    y = b.matmul("up", h, b.constant("weight", Dim("N", 64), d), role="up")
    total = b.add("total", x, y)
    b.output(b.rms_norm("last", total, b.constant("last.weight", d), 1e-6), "logits")
    graph = replace(b.build(), wanted=frozenset({x.name, total.name}))
    weights, ids = RandomWeights(graph), np.arange(5)
    inputs, rows = {"tokens": ids}, Rows.of(5)
    with CpuDevice(2) as cpu:
        made = cpu.compile(graph, weights, LIMITS).run(inputs, rows)
    expected = ReferenceDevice().compile(graph, weights, LIMITS).run(inputs, rows)

    assert made.keys() == expected.keys() == {"logits", x.name, total.name}
    for name, values in expected.items():
        assert nmse(made[name], values.astype(np.float64)) < FLOAT32


def test_an_output_of_all_rows_has_them_whatever_logits_are_wanted():
    b, d = Builder("rows"), Dim("D", 64)
    x = b.embedding("embedding", b.tokens(), b.constant("table", Dim("V", 50), d))
    h = b.rms_norm("norm", x, b.constant("norm.weight", d), 1e-6)
    b.output(b.matmul("up", h, b.constant("weight", Dim("N", 32), d), role="up"), "y")
    graph = b.build()
    weights, inputs = RandomWeights(graph), {"tokens": np.arange(5)}
    with CpuDevice(2) as cpu:
        segment = cpu.compile(graph, weights, LIMITS)
        y = segment.run(inputs, Rows.of(5))["y"]
        some = segment.run(inputs, Rows.of(5, wanted=2))["y"]
        odd = Rows.of(5)
        odd = replace(odd, wanted=np.arange(len(odd)) != 2)
        others = segment.run(inputs, odd)["y"]

    assert y.shape == (5, 32)
    assert np.array_equal(some, y)
    assert np.array_equal(others, y)


def test_a_weight_with_two_biases_is_refused():
    b, d = Builder("biases"), Dim("D", 64)
    x = b.embedding("embedding", b.tokens(), b.constant("table", Dim("V", 50), d))
    w = b.constant("weight", Dim("N", 64), d)
    one, two = (
        b.matmul(name, x, w, b.constant(f"{name}.bias", Dim("N", 64)), role="up")
        for name in ("one", "two")
    )
    b.output(b.add("sum", one, two), "y")
    graph = b.build()
    with CpuDevice(2) as cpu, pytest.raises(npurt.UnsupportedOp, match="another bias"):
        cpu.compile(graph, RandomWeights(graph), LIMITS)
