"""Tests of a device that fails for good: the CPU computes its products, and the ledger says so."""

import numpy as np
import pytest

import npurt
from npurt.cpu.device import CpuDevice
from npurt.errors import DeviceLost, NotOffloaded, NumericsError, UnsupportedOp
from npurt.llm.session import devices as opened_devices
from npurt.quant.tensor import QTensor
from npurt.runtime.execute.placement import Wanted, place
from npurt.runtime.report.ledger import Report, Row
from tests.llm import tiny
from tests.runtime.fake import FakeDevice, Products


class FailingDevice(FakeDevice):
    """A device that computes *good* products; every later product raises *error*."""

    def __init__(self, cpu=None, *, good=0, error=None):
        super().__init__(cpu)
        self._left = good
        self._error = error or DeviceLost("it is gone", remedy="none", call="x", code=0x27)
        self.calls = 0

    def matmuls(self, x, weights, outs):
        self.calls += 1
        if self._left < len(weights):
            outs[0][:] = 1e9  # an incomplete result
            raise self._error
        self._left -= len(weights)
        super().matmuls(x, weights, outs)

    def packets(self):
        return 1_000_000 * self.products

    def events(self):
        return [f"call {self.calls}"] if self.calls == 2 else []


@pytest.fixture(scope="module")
def cpu():
    with CpuDevice(2) as device:
        yield device


def product(cpu, device, rows=3):
    rng = np.random.default_rng(5)
    tensor = QTensor.quantize(rng.standard_normal((48, 64)).astype(np.float32), "q8_0")
    x = rng.standard_normal((rows, 64)).astype(np.float32)
    return Products(cpu, tensor, x, device=device)


def test_a_lost_device_is_replaced_in_the_middle_and_said_to_be(cpu):
    device = FailingDevice(cpu, good=2)
    wanted = product(cpu, cpu).run()
    products = product(cpu, device)

    for _ in range(4):
        np.testing.assert_array_equal(products.run(), wanted)

    assert device.calls == 3  # two that succeeded, one that failed, and no later call
    report = products.ledger.report()
    rows = {row.actual: row for row in report.rows}
    assert (rows["fake"].calls, rows["cpu"].calls) == (2, 2)
    assert rows["cpu"].reason == "fake failed: it is gone"
    assert "1 fallbacks" in report.line()
    assert ", 0 wrong" in report.line()
    assert report.notes == ("call 2", "the CPU takes over from fake: it is gone")


def test_packets_are_charged_to_the_products_that_took_them(cpu):
    products = product(cpu, FailingDevice(cpu, good=9))
    for _ in range(3):
        products.run()
    (row,) = products.ledger.report().rows

    assert row.packets == 3_000_000
    header, line, *_ = Report((row,), "fake").table().splitlines()
    assert header.split()[4:6] == ["bytes", "packets"]
    assert "  3.00 M  " in line
    assert "packets" not in Report((Row("x", "", (), "cpu", "cpu"),), "cpu").table()


def test_numbers_that_are_none_are_not_the_devices_fault(cpu):
    error = NumericsError("a NaN", remedy="none")

    with pytest.raises(NumericsError):
        product(cpu, FailingDevice(cpu, error=error)).run()


def test_what_the_device_cannot_pack_after_all_goes_to_the_cpu(cpu, monkeypatch):
    device = FakeDevice(cpu)
    can = iter([True, False, True])
    pack = device.pack

    def choosy(tensor, *, int16=False):
        if not next(can):
            raise UnsupportedOp("it has no kernel", remedy="none")
        return pack(tensor, int16=int16)

    monkeypatch.setattr(device, "pack", choosy)
    tensor = QTensor.quantize(np.ones((8, 32)), "q8_0")
    wanted = [Wanted(str(i), tensor) for i in range(3)]
    done = []

    placed = place(wanted, device, cpu, done=done.append)

    assert [(w.device, w.planned, w.reason) for w in placed] == [
        ("fake", "fake", ""),
        ("cpu", "fake", "it has no kernel"),
        ("fake", "fake", ""),
    ]
    assert done == [0, 1, 2]
    can = iter([False])
    with pytest.raises(NotOffloaded, match="it has no kernel"):
        place(wanted, device, cpu, strict=True)


def test_a_device_lost_in_the_middle_of_a_model_costs_no_token(monkeypatch):
    """The fake device and the CPU compute the same bits, so both give the same sequence."""

    def generate(device):
        monkeypatch.setattr(opened_devices, "open_device", lambda name, threads: device)
        with npurt.Llama(tiny.path("llama3-256", "q4_k_m"), n_ctx=160) as llm:
            text = llm.generate([1, 2, 3], max_tokens=12, temperature=0)
            return text, llm.report()

    wanted, _ = generate(FakeDevice())
    text, report = generate(FailingDevice(good=70))

    assert text == wanted
    assert any(row.actual == "cpu" and "it is gone" in row.reason for row in report.rows)
    assert sum("the CPU takes over" in note for note in report.notes) == 1
