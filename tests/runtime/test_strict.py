"""Tests of strict mode: an op that does not run on the requested device is an error."""

import numpy as np
import pytest

import npurt
from npurt.errors import NotOffloaded
from tests.llm import tiny
from tests.runtime.fake import FakeDevice
from tests.runtime.test_delta_elsewhere import Meddling, lost, wrong_result
from tests.runtime.test_lost import FailingDevice
from tests.runtime.test_parts_elsewhere import DeltaDevice


def open_strict(device, model="llama3", kind="q8_0"):
    return npurt.Llama(tiny.path(model, kind), device, n_ctx=64, strict=True, verify="always")


def evaluate(llm):
    for _ in range(10):
        llm.eval([1, 2, 3])


def assert_refused(llm, match):
    """Check that each try raises NotOffloaded, appends no token, and runs nothing on the CPU."""
    for _ in range(2):
        with pytest.raises(NotOffloaded, match=match) as caught:
            evaluate(llm)
        assert "strict" in caught.value.remedy
        assert llm.history == (1, 2, 3) * (llm.n_tokens // 3)
    report = llm.report()
    assert {row.actual for row in report.rows if row.macs} <= {"fake"}
    assert not any("the CPU" in note for note in report.notes)


@pytest.mark.parametrize("good", [0, 33])
def test_a_device_that_is_lost_is_an_error(good):
    with open_strict(FailingDevice(good=good)) as llm:
        assert_refused(llm, "fake: it is gone")


@pytest.mark.parametrize("well", [0, 33])
def test_a_wrong_product_is_an_error(well):
    def lie(index, y):
        if index >= well:
            y[0, 3] += 1000

    with open_strict(FakeDevice(meddle=lie)) as llm:
        assert_refused(llm, "fake computed a wrong product with blk")


@pytest.mark.parametrize("what", [lost, wrong_result])
def test_a_delta_net_that_fails_or_is_wrong_is_an_error(what):
    device = Meddling(what, well=3)
    device.why_not = lambda op: None
    with open_strict(device, "qwen35") as llm, pytest.raises(NotOffloaded, match="delta net"):
        evaluate(llm)


def test_delta_nets_that_a_device_has_no_kernel_for_are_an_error_while_loading(monkeypatch):
    device, closed = FakeDevice(), []
    monkeypatch.setattr(device, "close", lambda: closed.append(True))

    with pytest.raises(NotOffloaded, match="fake cannot run delta nets: fake has no kernel"):
        open_strict(device, "qwen35")

    assert closed == []  # the caller opened the device, and closes it


@pytest.mark.parametrize(
    ("device", "model"), [(DeltaDevice, "qwen35"), (FakeDevice, "qwen3moe"), (None, "qwen35")]
)
def test_what_stays_where_it_was_planned_is_none(device, model):
    """The router and the gates of delta nets are planned for the CPU, so no row is a fallback."""
    with open_strict(device() if device else "cpu", model, "f32") as llm:
        assert np.isfinite(llm.eval([1, 2, 3])).all()
        assert "; 0 fallbacks" in llm.report().line()
