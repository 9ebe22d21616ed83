"""Tests of experts and delta nets on another device: a fake one that computes on the CPU."""

import numpy as np
import pytest

import npurt
from npurt.cpu.device import CpuDevice
from npurt.device.delta import DeltaNets
from npurt.device.device import Estimates, ExactInt8, RowScaledInt8
from npurt.quant.tensor import QTensor
from npurt.runtime.execute.placement import Stacked, Wanted, place
from tests.llm import tiny
from tests.runtime import plans
from tests.runtime.fake import FakeDevice


class DeltaDevice(FakeDevice, DeltaNets):
    """A fake device that also runs delta nets, and counts them."""

    nets = 0

    def why_not_delta(self, net):
        return None if net.v.shape[3] == 32 else "heads are not 32 wide"

    def delta_net(self, net):
        self.nets += 1
        self.cpu.delta_net(net)


def nothing_but(*sizes):
    """Return a function that refuses every product whose N is not one of *sizes*."""
    return lambda op: None if op.n in sizes else "not one of ours"


OPTIONS = {"n_ctx": 160, "verify": "always"}


def logits(model, device=None, kind="f32"):
    ids = tiny.ids(model, 70)
    with npurt.Llama(tiny.path(model, kind), device or "cpu", **OPTIONS) as llm:
        rows = [llm.eval(ids[:60]), *(llm.eval([token]) for token in ids[60:])]
        return np.concatenate(rows), llm.report()


# --- Delta nets -----------------------------------------------------------------------------------


def test_a_delta_net_on_another_device_gives_what_it_gives_here():
    device = DeltaDevice(refuses=nothing_but())
    plain, _ = logits("qwen35")

    y, report = logits("qwen35", device)

    np.testing.assert_array_equal(y, plain)
    assert device.nets >= 3 * 11  # layers times runs; more when the state is copied within a run
    rows = [row for row in report.rows if row.op == "delta net" and row.calls]
    assert {(row.planned, row.actual) for row in rows} == {("fake", "fake")}


def test_its_state_is_taken_back_there():
    ids = tiny.ids("qwen35")
    device = DeltaDevice(refuses=nothing_but())
    with npurt.Llama(tiny.path("qwen35", "f32"), device, **OPTIONS) as llm:
        wanted = llm.eval(ids[:60])
        llm.rewind(50)
        runs = device.nets
        np.testing.assert_array_equal(llm.eval(ids[50:60]), wanted[50:])
        assert runs > 0
        llm.rewind(55)
        llm.rewind(3)
        np.testing.assert_array_equal(llm.eval(ids[3:60]), wanted[3:])


def test_a_device_that_says_why_not_leaves_it_here_and_the_ledger_says_why():
    _, report = logits("qwen35", FakeDevice(refuses=nothing_but()))

    rows = [row for row in report.rows if row.op == "delta net" and row.calls]
    assert {(row.planned, row.actual, row.reason) for row in rows} == {
        ("fake", "cpu", "fake has no kernel for the gated delta net")
    }


def test_what_a_device_can_do_beside_products_is_asked_of_its_class():
    cpu = CpuDevice(1)

    assert isinstance(cpu, DeltaNets)
    assert isinstance(cpu, ExactInt8)
    assert isinstance(DeltaDevice(cpu), DeltaNets)
    for capability in (DeltaNets, ExactInt8, RowScaledInt8, Estimates):
        assert not isinstance(FakeDevice(cpu), capability)


# --- Experts --------------------------------------------------------------------------------------


def test_experts_on_another_device_give_what_they_give_here():
    """Products with N = 96 and 128, those of experts and attention, run on the other device."""
    device = FakeDevice(refuses=nothing_but(96, 128))
    plain, _ = logits("qwen3moe")

    y, report = logits("qwen3moe", device)

    np.testing.assert_array_equal(y, plain)
    rows = [row for row in report.rows if "_exps" in row.tensor and row.calls]
    assert {row.actual for row in rows} == {"fake"}
    assert len(rows) == 2 * 3  # layers times stacks: one row for all matrices of a stack
    assert all(row.verified == row.calls for row in rows)


def test_only_the_matrices_of_chosen_experts_are_multiplied():
    device = FakeDevice(refuses=nothing_but(96))
    with npurt.Llama(tiny.path("qwen3moe", "f32"), device, n_ctx=20, verify="off") as llm:
        llm.eval([5])
    assert device.products == 2 * 2 * 3  # layers, times gate and up, times experts of a token


@pytest.mark.parametrize(("here", "there"), [("up", "gate"), ("gate", "up")])
def test_stacks_may_lie_on_two_devices(tmp_path, here, there):
    """Stacks of two formats on two devices still write adjacent columns of one result."""
    file = tiny.read(tiny.path("qwen3moe", "f32"))
    half = [i for i, tensor in enumerate(file.tensors) if f"{here}_exps" in tensor.name]
    tensors, contents = list(file.tensors), tiny.contents(file)
    for i in half:
        contents[i] = np.frombuffer(contents[i], "<f4").astype("<f2").tobytes()
        tensors[i] = tiny.raw.Tensor(tensors[i].name, tensors[i].dims, 1)
    path = tiny.write(tiny.with_data(file, tensors, contents), tmp_path)
    device = FakeDevice(refuses=lambda op: None if (op.format, op.n) == ("f32", 96) else "not it")
    ids = tiny.ids("qwen3moe", 70)

    with npurt.Llama(path, **OPTIONS) as llm:
        plain = llm.eval(ids)
    with npurt.Llama(path, device, **OPTIONS) as llm:
        y, report = llm.eval(ids), llm.report()

    np.testing.assert_array_equal(y, plain)
    where = {row.tensor: row.actual for row in report.rows if "_exps" in row.tensor and row.calls}
    assert where[f"blk.0.ffn_{there}_exps"] == "fake"
    assert where[f"blk.0.ffn_{here}_exps"] == "cpu"


def test_a_wrong_product_of_one_expert_is_mended():
    def meddle(index, y):
        if index == 5:
            y[0, 0] += 1

    plain, _ = logits("qwen3moe")

    y, report = logits("qwen3moe", FakeDevice(refuses=nothing_but(96), meddle=meddle))

    np.testing.assert_array_equal(y, plain)
    assert sum(row.failed for row in report.rows) == 1
    assert any("quarantined" in note for note in report.notes)


def test_a_stack_is_packed_matrix_by_matrix():
    tensor = QTensor.quantize(np.random.default_rng(0).standard_normal((3, 16, 64)), "q8_0")
    with FakeDevice() as device:
        (placed,) = place([Wanted("stack", tensor)], device, device.cpu)

        assert isinstance(placed.packed, Stacked)
        assert (placed.packed.n, placed.packed.k) == (16, 64)
        assert placed.packed.nbytes == sum(w.packed.nbytes for w in placed.packed.each)
        for e, one in enumerate(placed.packed.each):
            np.testing.assert_array_equal(one.packed.tensor.dequantize(), tensor[e].dequantize())


def test_a_wrong_kernel_is_quarantined_for_experts_too():
    """Freivalds' check has one probe for each matrix of a stack."""
    path = tiny.path("qwen3moe", "q8_0")
    with npurt.Llama(path, n_ctx=20, verify="always") as llm:
        wanted = llm.eval([1, 2, 3]).copy()
        step = next(iter(plans.of(llm)))
        product = next(p for p in step.products.values() if "_down_exps" in p.names)
        matmul = step.program.ops[product.op].u.matmul
        probe = product.probes[0]
        assert probe.s.size == 8 * 96
        probe.s[:] += 1  # every matrix now fails, with the scalar kernels too
        llm.reset()
        with pytest.raises(npurt.VerificationFailed, match="down_exps"):
            llm.eval([1, 2, 3])
        probe.s[:] -= 1
        np.testing.assert_array_equal(llm.eval([1, 2, 3]), wanted)
        assert matmul.matrices == 8
