"""Test that an NPU that fails, hangs or is wrong costs no product or token, and is reported.

Three kinds of failure, under both drivers: a call that returns an error, a job that does not end,
and a result that is silently wrong.
"""

import functools

import numpy as np
import pytest

import npurt
from npurt.cpu.device import CpuDevice
from npurt.device import verify
from npurt.errors import DeviceFull, DeviceLost
from npurt.quant.tensor import QTensor
from npurt.rknpu.device import device as device_module
from npurt.rknpu.device.device import open_rknpu
from npurt.rknpu.driver.system import LinuxKernel
from tests.llm import tiny
from tests.rknpu.conftest import STRICT
from tests.rknpu.test_device import NAMES, inputs, multiply, tensor
from tests.runtime.fake import Products

ONCE = ["einval", "efault", "ebusy", "enomem", "timeout", "stale"]  # the driver tries again
LOST = ["eio", "enodev"]  # the device is opened again


@pytest.fixture(params=[*NAMES, f"{NAMES[0]} with threads"])
def name(request, simulator, monkeypatch):
    monkeypatch.setattr(device_module, "RESTART_SECONDS", 0.2)
    name, _, threads = request.param.partition(" ")
    monkeypatch.setenv("NPURT_ROCKET_THREADS", "1" if threads else "0")
    simulator.set(f"reload=1 {STRICT}")
    yield name
    simulator.set(f"reload=1 {STRICT}")


class Work:
    """Weights of two schemes on a device, and their products without faults."""

    def __init__(self, device):
        self.device = device
        self.weights = [
            device.pack(tensor(n, 128, "q4_0", n), int16=int16)
            for n, int16 in ((200, False), (40, True))
        ]
        self.wanted = self.multiply()

    def multiply(self):
        return np.concatenate(multiply(self.device, inputs(3, 128), *self.weights), axis=1)

    def is_right(self):
        return np.array_equal(self.multiply(), self.wanted)


@pytest.mark.parametrize("fault", ONCE)
def test_a_job_that_fails_once_is_repeated_and_counted(name, simulator, fault):
    with open_rknpu(name) as device:
        work = Work(device)
        assert device.status_note() == ""
        for count in ("a job", "2 jobs", "3 jobs"):
            simulator.set(f"fault={fault}@submit")

            assert work.is_right()
            assert device.status_note().startswith(f"{name} ran {count} again, the last because ")
        mainline_says_nothing = fault == "timeout" and name == "rknpu:sim"
        silent = fault == "stale" or mainline_says_nothing
        code = "ETIMEDOUT" if fault == "timeout" else fault.upper()
        assert ("without writing its result" if silent else code) in device.status_note()
        assert device.events() == []


def test_what_was_counted_outlives_the_driver(name, simulator):
    with open_rknpu(name) as device:
        work = Work(device)
        simulator.set("fault=stale@submit")
        assert work.is_right()
        before = device.status_note()
        simulator.set("fault=eio@submit")
        assert work.is_right()
        assert device.status_note() == before
        simulator.set("fault=stale@submit")
        assert work.is_right()
        assert " ran 2 jobs again" in device.status_note()
    assert " ran 2 jobs again" in device.status_note()


@pytest.mark.parametrize("fault", LOST)
def test_a_device_that_is_lost_is_opened_again_with_its_weights(name, simulator, fault):
    with open_rknpu(name) as device:
        work = Work(device)
        for _ in range(2):
            simulator.set(f"fault={fault}@submit")
            assert work.is_right()
            (events,) = device.events()
            assert "opened again" in events
            assert fault.upper() in events
        assert work.is_right()
        assert device.events() == []
        assert device.restarts() == 2


@pytest.mark.parametrize("call", ["create", "submit", "sync", "prep", "fini"])
def test_it_is_opened_again_whichever_call_fails(name, simulator, call):
    with open_rknpu(name) as device:
        work = Work(device)
        simulator.set(f"fault=eio@{call}")
        device._weights.calls.made.clear()  # this makes the driver build programs again

        assert work.is_right()


def test_cores_that_hang_until_they_are_reset_are_reset_or_opened_again(name, simulator):
    with open_rknpu(name) as device:
        work = Work(device)
        simulator.set("fault=wedge@submit")

        assert work.is_right()
        assert len(device.events()) == (name == "rknpu:sim")  # mainline has no such request


@pytest.mark.parametrize("fault", [*(f"{f}@submit:1+" for f in (*ONCE, *LOST)), "dead@submit"])
def test_a_device_that_always_fails_is_given_up_and_says_so_at_once_from_then_on(
    name, simulator, fault
):
    with open_rknpu(name) as device:
        work = Work(device)
        simulator.set(f"fault={fault}")
        with pytest.raises(DeviceLost, match="given up") as caught:
            work.multiply()
        assert caught.value.remedy
        simulator.set("reload=1 counters=0")
        with pytest.raises(DeviceLost) as again:
            work.multiply()
        assert again.value.what == caught.value.what
        assert simulator.report()["submits"] == {"rocket": 0, "rknpu": 0}  # there was no attempt


def test_a_device_that_dies_while_weights_come_back_is_opened_once_more(name, simulator):
    with open_rknpu(name) as device:
        work = Work(device)
        simulator.set("fault=eio@submit fault=eio@create:3")

        assert work.is_right()
        assert len(device.events()) == 1


def test_an_upload_over_which_the_device_dies_is_repeated(name, simulator):
    with open_rknpu(name) as device:
        work = Work(device)
        simulator.set("fault=eio@create:2")
        packed = device.pack(tensor(96, 64, "q8_0"))

        assert len(device.events()) == 1
        assert work.is_right()
        assert multiply(device, inputs(1, 64), packed).any()


def test_weights_that_do_not_fit_any_more_end_in_a_clear_error_until_they_do(name, simulator):
    with open_rknpu(name) as device:
        work = Work(device)
        simulator.set("fault=eio@submit fault=enomem@create:1+")
        for _ in range(2):
            with pytest.raises(DeviceFull, match="no space for"):
                work.multiply()
        simulator.set(f"reload=1 {STRICT}")

        assert work.is_right()


def test_a_weight_is_packed_once_there_is_room_again_after_a_restart_without(name, simulator):
    """No product needs the earlier weights while there is no memory for them."""
    with open_rknpu(name) as device:
        work = Work(device)
        simulator.set("fault=eio@create fault=enomem@create:2+")
        with pytest.raises(DeviceFull, match="no space for"):
            device.pack(tensor(96, 64, "q8_0"))
        simulator.set(f"reload=1 {STRICT}")

        packed = device.pack(tensor(96, 64, "q8_0"))

        assert multiply(device, inputs(1, 64), packed).any()
        assert work.is_right()


def test_ctrl_c_in_the_middle_of_a_product_or_of_recovery_costs_only_that(
    name, simulator, monkeypatch
):
    with open_rknpu(name) as device:
        work = Work(device)
        make, upload = LinuxKernel.make, device_module.RkPacked.upload

        def interrupted(function, *args):
            monkeypatch.undo()
            function(*args)
            raise KeyboardInterrupt

        monkeypatch.setattr(
            LinuxKernel, "make", functools.partialmethod(lambda *a: interrupted(make, *a))
        )
        with pytest.raises(KeyboardInterrupt):
            work.multiply()
        assert work.is_right()
        assert device.events() == []

        simulator.set("fault=eio@submit")
        monkeypatch.setattr(
            device_module.RkPacked,
            "upload",
            functools.partialmethod(lambda *a: interrupted(upload, *a)),
        )
        with pytest.raises(KeyboardInterrupt):
            work.multiply()
        assert work.is_right()
        assert len(device.events()) == 1


# --- Results that are silently wrong --------------------------------------------------------------


@pytest.fixture
def known_secrets(monkeypatch):
    """Fix the secrets: with random ones, errors in three places may sometimes cancel."""
    signs = np.array([1.0, -1.5, 1.25])
    monkeypatch.setattr(verify, "probe_vector", lambda n: np.resize(signs, n))


def products(device, n, k, m=1):
    source = QTensor.quantize(inputs(n, k, seed=7), "q8_0")
    return Products(CpuDevice(1), source, inputs(m, k), device=device)


@pytest.mark.usefixtures("known_secrets")
def test_a_flipped_bit_is_found_and_the_cpu_computes_that_product_from_then_on(name, simulator):
    """Sums of 64 products of codes are below 2^20, so a norm of 24 bits shows an error in bit 4.

    The 96 columns have no padding, so the flipped bit is in a result, on any core.
    """
    with open_rknpu(name) as device:
        work = products(device, 96, 64)
        right = work.run()
        simulator.set("fault=flip@submit")

        replaced = work.run()

        assert work.counts() == (2, 2, 1)
        assert work.placed[0].device == "cpu"
        assert any("quarantined" in note for note in work.ledger.report().notes)
        exact = (
            work.x.values[:1].astype(np.float64)
            @ QTensor.quantize(inputs(96, 64, seed=7), "q8_0").dequantize().T
        )
        for y in (right, replaced):
            assert ((y - exact) ** 2).sum() < 1e-3 * (exact**2).sum()


def test_no_right_product_is_ever_called_wrong(name):
    with open_rknpu(name) as device:
        for n, k, m in ((70, 64, 1), (33, 2080, 5), (1000, 128, 40)):
            work = products(device, n, k, m)
            for _ in range(5):
                work.run()
            assert work.counts() == (5, 5, 0)


# --- Whole models ---------------------------------------------------------------------------------


def generate(name, count=12, then=lambda index: None, model=("llama3-256", "q4_k_m"), **options):
    """Return the pieces and the report of a tiny model on the simulator."""
    with npurt.Llama(tiny.path(*model), name, n_ctx=64, progress=False, **options) as llm:
        pieces = []
        stream = llm.generate([1, 2, 3], max_tokens=count, temperature=0, stream=True)
        for index, piece in enumerate(stream):
            pieces.append(piece)
            then(index)
        return pieces, llm.report()


@functools.cache
def undisturbed(model=("llama3-256", "q4_k_m")):
    return generate(NAMES[0], model=model)[0]


def is_all_on(report, *devices):
    return {row.actual for row in report.rows if row.macs} == set(devices)


NOT_ALL = ("qwen3moe", "qwen35")  # experts and delta nets run on the CPU


@pytest.mark.parametrize("model", tiny.FILES, ids="-".join)
def test_both_drivers_write_the_same_text(model, simulator):
    simulator.set(f"reload=1 {STRICT}")
    texts = []
    for driver in NAMES:
        pieces, report = generate(driver, model=model, verify="always")
        assert model[0] in NOT_ALL or is_all_on(report, driver)
        assert "0 fallbacks" in report.line() or model[0] in NOT_ALL
        assert ", 0 wrong" in report.line()
        texts.append(pieces)
    assert texts[0] == texts[1] != []


@pytest.mark.parametrize("fault", [*ONCE, *LOST])
@pytest.mark.parametrize("nth", [1, 6])
def test_a_fault_in_the_middle_of_a_generation_costs_no_token(name, simulator, fault, nth):
    def strike(index):
        if index == 3:
            simulator.set(f"fault={fault}@submit:{nth}")

    pieces, report = generate(name, then=strike)

    assert pieces == undisturbed()
    assert is_all_on(report, name)
    assert "0 fallbacks" in report.line()
    said = ["opened again" if fault in LOST else f"{name} ran a job again"]
    assert [text for text in said if any(text in note for note in report.notes)] == said
    assert sum(" again" in note for note in report.notes) == 1


@pytest.mark.parametrize("fault", ["dead@submit", "timeout@submit:1+"])
def test_the_cpu_goes_on_when_the_npu_is_lost_for_good(name, simulator, fault):
    def strike(index):
        if index == 3:
            simulator.set(f"fault={fault}")

    pieces, report = generate(name, then=strike)

    assert pieces == undisturbed()
    assert is_all_on(report, name, "cpu")
    assert all("given up" in row.reason for row in report.rows if row.macs and row.actual == "cpu")
    assert any("CPU takes over" in note for note in report.notes)
    output = [row for row in report.rows if row.op == "output"]
    assert sum(row.calls for row in output) == 12


@pytest.mark.usefixtures("known_secrets")
def test_a_flipped_bit_in_the_middle_of_a_generation_costs_no_token(name, simulator):
    """The second product has one pass and K = 128, so its sums are small enough to show bit 4."""
    model = ("llama3", "q8_0")
    nth = {"rknpu:sim": 4, "rknpu:sim-vendor": 2}[name]  # mainline has a job for each core

    def strike(index):
        if index == 3:
            simulator.set(f"fault=flip@submit:{nth}")

    pieces, report = generate(name, then=strike, model=model, verify="always")

    assert pieces == undisturbed(model)
    assert ", 1 wrong" in report.line()
    assert any("quarantined" in note for note in report.notes)
