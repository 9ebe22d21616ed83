"""Tests of placement: weights on the requested device, or on the CPU with a reason."""

import numpy as np
import pytest

import npurt
from npurt.cpu.device import CpuDevice
from npurt.cpu.kernels.abi import limits
from npurt.errors import NotOffloaded, UnsupportedOp
from npurt.llm.session import devices as opened_devices
from npurt.quant.tensor import QTensor
from npurt.runtime.execute.placement import Wanted, place
from tests.llm import reference, tiny
from tests.runtime.fake import FakeDevice

SIZE = {"q8_0": 8, "q4_0": 16, "f32": 24}
FEED_FORWARD = 512  # of llama3-256


@pytest.fixture(scope="module")
def cpu():
    with CpuDevice(2) as device:
        yield device


def tensors(*names):
    return [Wanted(fmt, QTensor.quantize(np.ones((SIZE[fmt], 32)), fmt)) for fmt in names]


def only(*formats):
    return lambda op: None if op.format in formats else f"no kernel for {op.format}"


# --- place() --------------------------------------------------------------------------------------


def test_what_a_device_refuses_goes_to_the_cpu_with_the_reason(cpu):
    device = FakeDevice(cpu, refuses=only("q4_0"))
    done = []

    placed = place(tensors("q8_0", "q4_0", "f32"), device, cpu, done=done.append)

    assert [(w.name, w.device, w.planned, w.reason) for w in placed] == [
        ("q8_0", "cpu", "fake", "no kernel for q8_0"),
        ("q4_0", "fake", "fake", ""),
        ("f32", "cpu", "fake", "no kernel for f32"),
    ]
    assert sorted(done) == [0, 1, 2]
    assert [w.packed.n for w in placed] == [8, 16, 24]


def test_a_device_is_asked_with_the_shape_and_format_of_each_weight(cpu):
    asked = []
    device = FakeDevice(cpu, refuses=lambda op: asked.append((op.m, op.k, op.n, op.format)))

    place(tensors("q8_0", "q4_0"), device, cpu)

    assert asked == [(1, 32, 8, "q8_0"), (1, 32, 16, "q4_0")]


def test_in_strict_mode_a_refusal_is_an_error_before_anything_is_packed(cpu):
    done = []

    with pytest.raises(NotOffloaded, match=r"fake cannot take f32.*no kernel for f32") as caught:
        place(
            tensors("q4_0", "f32"),
            FakeDevice(cpu, refuses=only("q4_0")),
            cpu,
            strict=True,
            done=done.append,
        )
    assert "strict" in caught.value.remedy
    assert done == []


def test_what_even_the_cpu_refuses_is_an_error(cpu):
    wide = QTensor.from_bytes(bytes(34 << 19), "q8_0", (1 << 19, 32))
    placed = place([Wanted("wide", wide)], cpu, cpu)
    assert placed[0].packed.n == 1 << 19

    rows = np.broadcast_to(wide.blocks[:1], (limits().columns + 1, *wide.blocks.shape[1:]))
    wider = Wanted("wide", QTensor(rows, "q8_0"))
    with pytest.raises(UnsupportedOp, match="N or K is more than"):
        place([wider], cpu, cpu)


# --- A whole model --------------------------------------------------------------------------------


def on_fake(monkeypatch, device, kind="q4_k_m", **options):
    """Open a tiny model on *device*."""
    monkeypatch.setattr(opened_devices, "open_device", lambda name, threads: device)
    return npurt.Llama(tiny.path("llama3-256", kind), n_ctx=160, verify="always", **options)


@pytest.fixture(scope="module")
def plain():
    """Return the logits of the CPU alone, for 100 tokens at once and 20 one by one."""
    with npurt.Llama(tiny.path("llama3-256", "q4_k_m"), "cpu", n_ctx=160) as llm:
        return evaluate(llm)


def evaluate(llm):
    ids = tiny.ids("llama3-256", 120)
    return np.concatenate([llm.eval(ids[:100]), *(llm.eval([token]) for token in ids[100:])])


def test_a_model_split_between_two_devices_gives_the_same_logits(monkeypatch, plain):
    """The logits are equal because the feed-forward network has int8 activations on any device."""
    device = FakeDevice(
        refuses=lambda op: None if FEED_FORWARD in (op.n, op.k) else "only feed-forward"
    )
    with on_fake(monkeypatch, device) as llm:
        np.testing.assert_array_equal(evaluate(llm), plain)
        report = llm.report()

    assert device.products == 2 * 3 * 21  # layers times weights times runs
    assert {row.op: row.actual for row in report.rows if row.macs} == {
        "attn_qkv": "cpu",
        "attn_output": "cpu",
        "ffn_gate_up": "fake",
        "ffn_down": "fake",
        "output": "cpu",
    }
    astray = [row for row in report.rows if not row.offloaded]
    assert {row.reason for row in astray} == {"only feed-forward"}
    assert f"{len(astray)} fallbacks" in report.line()
    assert report.fallbacks() == [
        f"{len(astray)} ops, blk.0.attn_q to output: planned fake, ran on cpu: only feed-forward"
    ]
    assert ", 0 wrong" in report.line()


@pytest.mark.parametrize(
    ("refuses", "homes"),
    [
        (only("q4_k"), {"fake"}),
        (only(), {"cpu"}),
        (lambda op: "not k and v" if op.n == 128 else None, {"fake", "cpu"}),
    ],
    ids=["nothing", "everything", "k and v"],
)
def test_any_part_of_a_model_may_be_refused(monkeypatch, refuses, homes):
    """A device gets float activations; the fake device rounds them to int8 for every product."""
    ids = tiny.ids("llama3-256", 120)
    path = tiny.path("llama3-256", "q4_k_m")
    exact = reference.logits(path, ids)
    coarse = reference.logits(path, ids, rounding=lambda x, int16: reference.int8(x, False))

    with on_fake(monkeypatch, FakeDevice(refuses=refuses)) as llm:
        y = evaluate(llm)
        rows = [row for row in llm.report().rows if row.macs]

    assert reference.nmse(y, exact) < 1.25 * reference.nmse(coarse, exact)
    assert {row.actual for row in rows} == homes
    assert all(bool(row.reason) == (row.actual == "cpu") for row in rows)


def test_one_lie_in_a_whole_model_is_mended(monkeypatch):
    def lie(index, y):
        if index == 40:
            y[0, 3] += 1000

    with on_fake(monkeypatch, FakeDevice()) as honest:
        wanted = evaluate(honest)
    with on_fake(monkeypatch, FakeDevice(meddle=lie)) as llm:
        np.testing.assert_array_equal(evaluate(llm), wanted)
        report = llm.report()

    assert report.line().endswith("1 wrong")
    assert "1 fallbacks" in report.line()
    assert sum(note.startswith("quarantined") for note in report.notes) == 1


def test_a_strict_model_is_refused_and_lets_go_of_the_device(monkeypatch):
    closed = []
    device = FakeDevice(refuses=only("q6_k"))
    monkeypatch.setattr(device, "close", lambda: closed.append(True))

    with pytest.raises(NotOffloaded, match="no kernel for q4_k"):
        on_fake(monkeypatch, device, strict=True)

    assert closed == [True]


def test_a_strict_model_that_is_taken_whole_runs(monkeypatch):
    with on_fake(monkeypatch, FakeDevice(), strict=True) as llm:
        llm.eval([1, 2, 3])
        assert "100.0 % of MACs on fake" in llm.report().line()
        assert "0 fallbacks" in llm.report().line()
