"""Tests of a device with too little memory: it has the weights that save the most time."""

import numpy as np
import pytest

import npurt
from npurt.cpu.device import CpuDevice
from npurt.cpu.pool.engine import Input
from npurt.cpu.pool.table import RowTable
from npurt.device.device import Saving
from npurt.device.verify import Mode, Sampler
from npurt.errors import DeviceFull, DeviceLost, NotOffloaded
from npurt.llm.session import devices as opened_devices
from npurt.quant.tensor import QTensor
from npurt.runtime.execute.placement import PROMPT, REPLY, Wanted, place
from npurt.runtime.execute.plan import Plan
from npurt.runtime.report.ledger import Ledger
from tests.llm import tiny
from tests.runtime.fake import FakeDevice, FakePacked, quantise

SIZE = 34 * 8  # bytes of a weight [8, 32] of q8_0


@pytest.fixture(scope="module")
def cpu():
    with CpuDevice(2) as device:
        yield device


class SmallDevice(FakeDevice):
    """A device with limited memory for weights.

    Args:
        capacity: Bytes of memory; when the weights need more, products fail.
        saves: Returns the seconds that a product saves, given its rows, N and K.
    """

    def __init__(self, cpu, capacity, saves=lambda rows, n, k: 1.0):
        super().__init__(cpu)
        self.capacity, self.saves = capacity, saves
        self.held, self.maximum, self.reserved = 0, 0, None

    def reserve(self, uses):
        self.reserved = list(uses)

    def saving(self, op, *, int16=False):
        return Saving(self.saves(op.m, op.n, op.k), op.n * op.k // 32 * 34)

    def pack(self, tensor, *, int16=False):
        if self.held + tensor.nbytes > self.capacity:
            raise self.full(tensor.nbytes)
        return Held(self, self.cpu.pack(tensor))

    def full(self, nbytes):
        what = f"no room for {nbytes} bytes beside {self.held}"
        return DeviceFull(what, remedy="use less", call="pack", code=0)

    def matmul(self, x, w, out):
        if self.held > self.capacity:
            raise self.full(len(x))
        super().matmul(x, w, out)


class Held(FakePacked):
    """A weight that releases its memory when no reference to the weight remains."""

    def __init__(self, device, inner):
        super().__init__(device, inner)
        device.held += self.tensor.nbytes
        device.maximum = max(device.maximum, device.held)

    def __del__(self):
        self.device.held -= self.tensor.nbytes


def weight(name, unit="", n=8, seed=0, **fields):
    values = np.random.default_rng(seed).standard_normal((n, 32))
    return Wanted(name, QTensor.quantize(values.astype(np.float32), "q8_0"), unit=unit, **fields)


def where(placed):
    return {w.name: (w.device, w.planned) for w in placed}


HERE, THERE = ("cpu", "cpu"), ("fake", "fake")


# --- Placing --------------------------------------------------------------------------------------


def test_units_that_save_most_for_each_byte_come_first_and_come_whole(cpu):
    """With memory for four weights, c comes first: its three weights save the most time."""
    worth = {8: 1.0, 9: 5.0, 10: 2.0}  # by N
    device = SmallDevice(cpu, 4 * 34 * 9, lambda rows, n, k: worth[n])
    wanted = [
        weight("a1", "a"), weight("c1", "c", 9), weight("a2", "a"), weight("c2", "c", 9),
        weight("b", "b", 10), weight("c3", "c", 9),
    ]  # fmt: skip
    notes, done = [], []

    placed = place(wanted, device, cpu, done=done.append, note=notes.append)

    assert [w.name for w in placed] == ["a1", "c1", "a2", "c2", "b", "c3"]
    assert where(placed) == dict.fromkeys(("c1", "c2", "c3"), THERE) | dict.fromkeys(
        ("a1", "a2", "b"), HERE
    )
    assert sorted(done) == [0, 1, 2, 3, 4, 5]
    assert {w.reason for w in placed} == {"", "fake has no space for it"}
    assert notes == [
        "fake has space for 3 of 6 weights (0.0 of 0.0 MB of the file); the CPU has the others, "
        "a1 to b. To place more on fake: use less"
    ]


def test_what_is_smaller_than_what_had_no_room_may_still_have_some(cpu):
    worth = {64: 9.0, 8: 0.1}
    device = SmallDevice(cpu, 3 * SIZE, lambda rows, n, k: worth[n])
    wanted = [weight("large", n=64), weight("small1"), weight("large2", n=64), weight("small2")]

    placed = where(place(wanted, device, cpu))

    assert placed == {"large": HERE, "small1": THERE, "large2": HERE, "small2": THERE}


def test_half_a_unit_is_taken_back(cpu):
    device = SmallDevice(cpu, 2 * SIZE)
    wanted = [weight(f"{unit}{i}", unit) for unit in "ab" for i in range(3)] + [weight("c")]

    assert where(place(wanted, device, cpu)) == dict.fromkeys(
        ("a0", "a1", "a2", "b0", "b1", "b2"), HERE
    ) | {"c": THERE}
    assert device.maximum == 2 * SIZE


def test_a_prompt_and_an_answer_say_what_a_weight_is_worth(cpu):
    """A weight is worth more if more tokens of a prompt and of a reply use it."""
    device = SmallDevice(cpu, 1 << 30, lambda rows, n, k: float(rows))

    def worth(**fields):
        return weight("w", **fields).worth(device)[0]

    assert worth() == PROMPT + REPLY
    assert worth(prompt=0.0) == 1 + REPLY
    assert worth(prompt=1 / 16, reply=1 / 16) == PROMPT / 16 + REPLY / 16
    stack = QTensor.quantize(np.ones((4 * 8, 32), np.float32), "q8_0")
    stack = QTensor(stack.blocks.reshape(4, 8, -1), stack.format)
    assert Wanted("e", stack, prompt=0.5, reply=0.5).worth(device)[0] == 4 * (PROMPT + REPLY) / 2


def test_a_device_is_told_what_will_be_used_before_it_gets_anything(cpu):
    device = SmallDevice(cpu, 1 << 30)
    wanted = [
        weight("q", call="qkv", rows=512, int16=True), weight("v", call="qkv", rows=512),
        weight("output", n=16),
    ]  # fmt: skip

    place(wanted, device, cpu)

    assert [(u.op.m, u.op.n, u.int16, u.call) for u in device.reserved] == [
        (512, 8, True, "qkv"), (512, 8, False, "qkv"), (1, 16, False, "output"),
    ]  # fmt: skip


def test_without_room_to_work_in_the_cpu_has_all(cpu, monkeypatch):
    device = SmallDevice(cpu, 1 << 30)

    def none(uses):
        raise device.full(7)

    monkeypatch.setattr(device, "reserve", none)
    notes = []

    assert where(place([weight("a"), weight("b")], device, cpu, note=notes.append)) == {
        "a": HERE, "b": HERE,
    }  # fmt: skip
    assert len(notes) == 1
    with pytest.raises(NotOffloaded, match="no room for 7"):
        place([weight("a")], device, cpu, strict=True)


def test_a_model_counts_what_had_no_room_as_planned_and_says_it_once(monkeypatch):
    path = tiny.path("llama3-256", "q4_k_m")
    with npurt.Llama(path, "cpu", progress=False) as llm:
        layer = sum(
            t.nbytes for t in llm.tensors if t.name.startswith("blk.0.") and len(t.shape) > 1
        )
    device = SmallDevice(CpuDevice(2), layer + 1000, lambda rows, n, k: rows * n * k)
    monkeypatch.setattr(opened_devices, "open_device", lambda name, threads: device)
    with npurt.Llama(path, n_ctx=64, verify="always", progress=False) as llm:
        llm.eval(tiny.ids("llama3-256", 20))
        report = llm.report()

    assert {r.tensor.split(".")[1] for r in report.rows if r.actual == "fake"} == {"0"}
    assert "0 fallbacks" in report.line()
    assert report.fallbacks() == []
    (note,) = report.notes
    assert "has space for 7 of 15 weights" in note
    assert str(report).count("use less") == 1


# --- During runs ----------------------------------------------------------------------------------


class Work:
    """A plan of four products of one input; the weights are in descending order of their worth."""

    def __init__(self, cpu, capacity=1 << 30, strict=False):
        self.device = SmallDevice(cpu, capacity, lambda rows, n, k: -float(n))
        self.ledger = Ledger("test", strict)
        wanted = [weight(f"w{i}", n=8 + i, seed=i) for i in range(4)]
        self.placed = place(wanted, self.device, cpu)
        self.plan = Plan(cpu, self.ledger, Sampler(Mode.ALWAYS))
        x = np.random.default_rng(9).standard_normal((3, 32)).astype(np.float32)
        self.x = Input(3, 32, quantised=True)
        quantise(cpu, self.x, x)
        self.y = np.empty((3, sum(8 + i for i in range(4))), np.float32)
        self.plan.matmul("product", self.x, self.placed, self.y)

    def run(self):
        self.plan.redirect(self.y)
        self.plan.run(RowTable.of(3))
        return self.y.copy()

    def there(self):
        return [w.name for w in self.placed if w.device == "fake"]


def test_memory_that_runs_out_costs_the_weights_that_are_worth_least(cpu):
    work = Work(cpu)
    wanted = work.run()
    for capacity, kept in ((3, ["w0", "w1", "w2"]), (3, ["w0", "w1", "w2"]), (1, ["w0"])):
        work.device.capacity = sum(34 * (8 + i) for i in range(capacity))

        np.testing.assert_array_equal(work.run(), wanted)
        assert work.there() == kept
        assert work.device.held <= work.device.capacity

    report = work.ledger.report()
    assert report.fallbacks() == [
        "3 ops, w3 to w1: planned fake, ran on cpu: fake ran out of memory"
    ]
    assert report.notes == (
        "fake ran out of memory while it worked; the weights that save the least time move to "
        "the CPU. To keep more on fake: use less",
    )
    assert ", 0 wrong" in report.line()


def test_when_nothing_is_left_to_give_up_the_cpu_goes_on(cpu):
    work = Work(cpu)
    wanted = work.run()
    work.device.capacity = -1

    np.testing.assert_array_equal(work.run(), wanted)
    assert work.there() == []
    assert work.device.held == 0


def test_in_strict_mode_it_is_an_error(cpu):
    work = Work(cpu, strict=True)
    work.device.capacity = 0

    with pytest.raises(NotOffloaded, match="ran out of memory"):
        work.run()
    assert len(work.there()) == 4


def test_a_device_that_fails_otherwise_is_given_up(cpu, monkeypatch):
    work = Work(cpu)
    wanted = work.run()

    def lost(x, w, out):
        raise DeviceLost("it is gone", remedy="none", call="x", code=1)

    monkeypatch.setattr(work.device, "matmul", lost)
    np.testing.assert_array_equal(work.run(), wanted)
    assert "fake failed: it is gone" in work.ledger.report().fallbacks()[0]
