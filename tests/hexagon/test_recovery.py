"""Test that a DSP that dies, hangs or is wrong costs no product or token, and is reported."""

import gc
import itertools
import os
import signal
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import npurt
from npurt.errors import DeviceFull, DeviceLost
from npurt.hexagon.connect import measurements, probe
from npurt.hexagon.device import session_memory, sessions
from npurt.hexagon.device.device import HexagonDevice
from npurt.hexagon.device.weights import HexagonPacked
from npurt.hexagon.fastrpc import lib
from npurt.hexagon.fastrpc.lib import load
from npurt.hexagon.session import messages
from npurt.quant.tensor import QTensor
from tests.hexagon.simulator import (
    CONNECTIONS,
    connection,
    impatient,
    kill,
    process,
    tell,
    wait_until,
)
from tests.limits import SOON, interrupt
from tests.llm import tiny

FAULTS = ["crash=1", "invoke=1", "ssr=1:300"]


class Work:
    """Some weights on a device, and their products from before any fault."""

    def __init__(self, hexagon):
        rng = np.random.default_rng(3)
        self.device = hexagon
        self.weights = [
            hexagon.pack(QTensor.quantize(rng.standard_normal((n, 128)).astype(np.float32), kind))
            for n, kind in ((96, "q4_0"), (40, "q8_0"))
        ]
        self.x = rng.standard_normal((3, 128)).astype(np.float32)
        self.wanted = self.multiply()

    def multiply(self):
        outs = [np.full((3, w.n), np.nan, np.float32) for w in self.weights]
        self.device.matmuls(self.x, self.weights, outs)
        return np.concatenate(outs, axis=1)

    def is_right(self):
        return np.array_equal(self.multiply(), self.wanted)


def at_work(**fields):
    return HexagonDevice("hexagon:test", connection(**fields))


@pytest.mark.parametrize("transport", ["invoke", "dspqueue"])
@pytest.mark.parametrize("fault", ["wrong_byte=1", "crash=2", "crash=3", "ssr=3:300", "invoke=3"])
def test_a_dsp_that_dies_while_it_is_opened_is_opened_again(fault, transport, simulator):
    """Its first calls are echo, info and map."""
    tell(fault)
    with at_work(transport=transport) as hexagon:
        (events,) = hexagon.events()
        assert "opened again" in events
        assert hexagon.restarts() == 1
        assert Work(hexagon).is_right()
        assert process(3)
        assert not process(11)  # a second session


@pytest.mark.parametrize("fault", ["no_memory=1", "map=1"])
def test_memory_that_is_short_for_a_moment_is_tried_again(fault, simulator):
    tell(fault)
    with at_work() as hexagon:
        assert Work(hexagon).is_right()


@pytest.mark.parametrize(
    ("fault", "error", "remedy"),
    [
        ("crash=3+", DeviceLost, "doctor"),
        ("no_memory=1+", DeviceFull, "close other programs"),
        ("map=1+", DeviceFull, "close other programs"),
    ],
)
def test_a_dsp_that_cannot_be_opened_is_given_up(fault, error, remedy, simulator, monkeypatch):
    monkeypatch.setattr(sessions, "RESTART_SECONDS", 0.2)
    tell(fault)
    with pytest.raises(error) as caught:
        at_work()
    assert remedy in caught.value.remedy
    assert "by itself" not in caught.value.remedy
    assert process() == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_product_over_which_the_dsp_dies_is_repeated_on_a_new_one(fault, simulator):
    with at_work() as hexagon:
        work = Work(hexagon)
        for _ in range(5):
            work.multiply()
        packets = hexagon.packets()  # more calls than the new session will make
        tell(fault)

        assert work.is_right()
        (events,) = hexagon.events()
        assert "opened again" in events
        assert hexagon.events() == []
        assert work.is_right()
        assert hexagon.packets() > packets


def test_a_dsp_killed_between_products_is_noticed_at_the_next(simulator):
    with at_work() as hexagon:
        work = Work(hexagon)
        for _ in range(2):
            before = process()
            kill()
            assert work.is_right()
            assert process() not in (0, before)
        assert len(hexagon.events()) == 2


def test_a_device_is_given_up_after_two_restarts_and_says_so_at_once_from_then_on(simulator):
    with at_work() as hexagon:
        work = Work(hexagon)
        for _ in range(2):
            kill()
            assert work.is_right()
        kill()
        with pytest.raises(DeviceLost, match="lost 3 times") as caught:
            work.multiply()
        assert "doctor" in caught.value.remedy
        before = process()
        with pytest.raises(DeviceLost) as again:
            work.multiply()
        assert again.value.what == caught.value.what
        assert process() == before  # no call was made


def test_a_dsp_that_dies_over_every_product_ends_in_an_error(simulator, monkeypatch):
    monkeypatch.setattr(sessions, "RESTART_SECONDS", 0.2)
    with at_work() as hexagon:
        work = Work(hexagon)
        tell("crash=1+")
        with pytest.raises(DeviceLost, match="lost 3 times"):
            work.multiply()


@pytest.mark.parametrize("fault", ["present=0", "wrong_arch=1+", "no_memory=1+"])
def test_a_dsp_that_does_not_come_back_ends_in_an_error(fault, simulator, monkeypatch):
    monkeypatch.setattr(sessions, "RESTART_SECONDS", 0.2)
    with at_work() as hexagon:
        work = Work(hexagon)
        tell(fault)
        kill()
        with pytest.raises(DeviceLost, match="lost 3 times"):
            work.multiply()


def test_an_upload_over_which_the_dsp_dies_is_repeated(simulator, monkeypatch):
    """The weight needs a separate block, and the DSP dies when it maps this block."""
    monkeypatch.setattr(session_memory, "MIN_BYTES", 1 << 15)
    with at_work() as hexagon:
        work = Work(hexagon)
        tell("crash=1")
        packed = hexagon.pack(QTensor.quantize(np.ones((512, 128), np.float32), "q8_0"))

        assert len(hexagon.events()) == 1
        assert work.is_right()
        y = np.zeros((1, 512), np.float32)
        hexagon.matmul(np.ones((1, 128), np.float32), packed, y)
        np.testing.assert_allclose(y, 128, rtol=1e-3)  # scales keep 14 bits and more


def test_weights_that_are_gone_are_not_uploaded_again(simulator):
    with at_work() as hexagon:
        work = Work(hexagon)
        gone = hexagon.pack(QTensor.quantize(np.ones((32, 64), np.float32), "q8_0"))
        numbers = {gone.number}
        del gone
        gc.collect()
        kill()
        assert work.is_right()
        assert not numbers & {packed.number for packed in hexagon._weights._packed}


def test_memory_of_the_lost_session_is_let_go(simulator):
    """Otherwise two copies of every weight would exist after a restart."""
    with at_work() as hexagon:
        work = Work(hexagon)
        scratch = hexagon._sessions.opened[0].scratch.blocks
        assert len(scratch) >= 2
        old = [weakref.ref(block) for block in (work.weights[0].part.block, *scratch)]
        del scratch
        kill()
        assert work.is_right()
        gc.collect()
        assert [block() for block in old if block()] == []


def test_a_dsp_that_hangs_is_left_alone_and_another_session_goes_on(simulator):
    with at_work() as hexagon:
        work = Work(hexagon)
        tell("delay=1:3600000")
        impatient(hexagon._sessions.opened[0].transport)

        assert work.is_right()
        assert f"did not come back within {SOON:g} s" in hexagon.events()[0]
        assert hexagon._sessions.opened[0].transport.slot.session > 0
        tell("")  # the late reply comes
        wait_until(lambda: process(3) == 0)  # the first session was closed when its call returned
        assert work.is_right()


@pytest.mark.parametrize("name", ["worker", "worker with dspqueue"])
def test_a_worker_that_hangs_or_dies_is_replaced(name, simulator, monkeypatch):
    with at_work(**CONNECTIONS[name]) as hexagon:
        work = Work(hexagon)
        os.kill(hexagon._sessions.opened[0].transport.process, signal.SIGKILL)
        assert work.is_right()
        os.kill(hexagon._sessions.opened[0].transport.process, signal.SIGSTOP)
        impatient(hexagon._sessions.opened[0].transport)
        assert work.is_right()
        assert len(hexagon.events()) == 2


def test_a_worker_of_another_npurt_is_refused(simulator, monkeypatch):
    """A worker that replaces a dead one runs the npurt that is installed now."""
    with at_work(**CONNECTIONS["worker"]) as hexagon:
        work = Work(hexagon)
        os.kill(hexagon._sessions.opened[0].transport.process, signal.SIGKILL)
        monkeypatch.setattr("npurt.hexagon.connect.worker.__version__", "0.0.1")
        with pytest.raises(DeviceLost, match=r"npurt .*, and this program npurt 0\.0\.1"):
            work.is_right()


def test_another_skel_is_refused_after_a_restart(simulator, monkeypatch):
    with at_work() as hexagon:
        work = Work(hexagon)
        connect = sessions.connect

        def replaced(asked):
            transport = connect(asked)
            transport.info = transport.info._replace(build=transport.info.build + 1)
            return transport

        monkeypatch.setattr(sessions, "connect", replaced)
        kill(3)
        with pytest.raises(DeviceLost, match="code for the DSP was replaced"):
            work.is_right()


@pytest.mark.parametrize("fault", ["queue_read=1", "queue_stuck=1"])
def test_a_queue_that_fails_in_use_is_given_up_for_good(fault, simulator):
    with at_work(transport="dspqueue") as hexagon:
        work = Work(hexagon)
        tell(fault)
        impatient(hexagon._sessions.opened[0].transport)
        assert work.is_right()
        assert hexagon._sessions.opened[0].transport.name == "invoke"
    library = load([lib.simulator()])
    assert measurements.recall(measurements.identity(library, "cdsp"), "dspqueue") is False
    assert not probe.queue_works(connection())


def test_a_delay_ends_with_settings_that_come_before_it_begins(simulator):
    """The DSP is still executing the call that will be delayed."""
    with at_work(deadline=30.0) as hexagon:
        values = np.random.default_rng(0).standard_normal((1024, 1024), dtype=np.float32)
        packed = hexagon.pack(QTensor.quantize(values, "q8_0"))
        x, y = np.ones((128, 1024), np.float32), np.zeros((128, 1024), np.float32)
        hexagon.matmul(x, packed, y)  # maps memory, which also makes calls
        tell("delay=1:3600000")
        with ThreadPoolExecutor(1) as pool:
            product = pool.submit(hexagon.matmul, x, packed, y)
            time.sleep(SOON)
            tell("delay=0")
            product.result()
        assert hexagon.events() == []  # such as the end of a call after its deadline


def test_ctrl_c_in_the_middle_of_a_product_costs_that_product_only(simulator):
    with at_work() as hexagon:
        work = Work(hexagon)
        tell("delay=1:3600000")
        caller = hexagon._sessions.opened[0].transport._owned.caller
        interrupt(work.multiply, lambda: caller._abandoned, then=lambda: tell("delay=0"))
        assert work.is_right()
        assert hexagon.events() == []


def test_ctrl_c_in_the_middle_of_recovery_costs_nothing_but_another_try(simulator):
    with at_work() as hexagon:
        work = Work(hexagon)
        tell("delay=2:3600000")  # the second call of the new session: info
        old = process()
        kill()
        interrupt(work.multiply, lambda: process() not in (0, old), then=lambda: tell("delay=0"))
        assert work.is_right()


@pytest.mark.parametrize("closed", [False, True], ids=["before it", "after it"])
def test_ctrl_c_while_a_session_is_closed_counts_no_packet_twice(closed, simulator, monkeypatch):
    with at_work() as hexagon:
        Work(hexagon)
        packets = hexagon.packets()
        transport = hexagon._sessions.opened[0].transport
        close, presses = transport.close, [KeyboardInterrupt]

        def interrupted():
            if closed or not presses:
                close()
            if presses:
                raise presses.pop()

        monkeypatch.setattr(transport, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            hexagon.close()
        assert hexagon.packets() == packets > 0
        hexagon.close()
        assert hexagon.packets() == packets
        assert process() == 0


def test_what_threads_read_of_a_weight_is_the_same_during_a_restart(simulator, monkeypatch):
    """Checks in other threads read these data without the lock."""
    with at_work() as hexagon:
        work = Work(hexagon)
        packed = work.weights[0]

        def read():
            return packed.multiplied(slice(None)), packed.error(slice(None))

        before, during, write = read(), [], HexagonPacked._write

        def look(*args):
            during.append(read())
            write(*args)

        monkeypatch.setattr(HexagonPacked, "_write", look)
        kill()
        assert work.is_right()
        assert len(during) == 2
        for values in during:
            np.testing.assert_array_equal(values[0], before[0])
            np.testing.assert_array_equal(values[1], before[1])


def test_a_reply_that_is_damaged_is_that_of_a_lost_device(simulator, monkeypatch):
    with at_work() as hexagon:
        work = Work(hexagon)
        check, flips = messages.check, [1 << 30]

        def spoiled(request, answer, words=None):
            answer.view(messages.REPLY)["done"] ^= flips.pop() if flips else 0
            return check(request, answer, words)

        monkeypatch.setattr(messages, "check", spoiled)
        assert work.is_right()
        (events,) = hexagon.events()
        assert "damaged" in events


# --- Whole models -------------------------------------------------------------------------------

LAYERS = 2  # of llama3-256
CALLS = 4 * LAYERS + 1  # of a token: qkv, attn_output, gate and up, down; and the output matrix


def generate(count=12, then=lambda index: None, **options):
    """Return the text and the report of a tiny model on the simulator."""
    path = tiny.path("llama3-256", "q4_k_m")
    with npurt.Llama(path, "hexagon:sim", n_ctx=64, progress=False, **options) as llm:
        pieces = []
        stream = llm.generate([1, 2, 3], max_tokens=count, temperature=0, stream=True)
        for index, piece in enumerate(stream):
            pieces.append(piece)
            then(index)
        return "".join(pieces), llm.report()


@pytest.fixture(scope="module")
def undisturbed():
    tell("reset")
    text, report = generate()
    assert {row.actual for row in report.rows if row.macs} == {"hexagon:sim"}
    assert report.notes == () or all("again" not in note for note in report.notes)
    return text


def test_a_dsp_killed_in_the_middle_of_a_generation_costs_no_token(undisturbed, simulator):
    text, report = generate(then=lambda index: kill() if index == 4 else None)

    assert text == undisturbed
    assert sum("opened again" in note for note in report.notes) == 1
    assert {row.actual for row in report.rows if row.macs} == {"hexagon:sim"}
    assert "0 fallbacks" in report.line()
    assert ", 0 wrong" in report.line()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_crash_in_the_middle_of_a_token_costs_none(fault, undisturbed, simulator):
    name, _, rest = fault.partition("=1")
    text, report = generate(then=lambda i: tell(f"{name}=5{rest}") if i == 3 else None)

    assert text == undisturbed
    assert sum("opened again" in note for note in report.notes) == 1


def test_the_cpu_goes_on_when_the_dsp_is_lost_for_good(undisturbed, simulator):
    text, report = generate(then=lambda i: kill() if i in (1, 3, 5) else None)

    assert text == undisturbed
    rows = [row for row in report.rows if row.macs]
    assert {row.actual for row in rows} == {"hexagon:sim", "cpu"}
    assert all("lost 3 times" in row.reason for row in rows if row.actual == "cpu")
    (note,) = [note for note in report.notes if "CPU takes over" in note]
    assert "hexagon:sim" in note
    assert sum("in the arithmetic of hexagon:sim" in note for note in report.notes) == 1
    output = [row for row in rows if row.op == "output"]
    assert sum(row.calls for row in output) == 12


def test_a_wrong_byte_is_found_and_the_product_computed_again(undisturbed, simulator):
    def lie(index):
        if index == 3:
            tell("wrong_byte=2")

    text, report = generate(then=lie, verify="always")

    assert ", 1 wrong" in report.line()
    assert any("quarantined" in note for note in report.notes)
    assert len(text) > 0


def test_a_token_takes_four_calls_for_each_layer_and_one_for_the_output(simulator, monkeypatch):
    calls = []
    run = HexagonDevice.matmuls

    def counted(self, x, weights, outs):
        calls.append(len(x))
        return run(self, x, weights, outs)

    monkeypatch.setattr(HexagonDevice, "matmuls", counted)
    marks = []
    generate(count=6, then=lambda index: marks.append(len(calls)))

    assert {b - a for a, b in itertools.pairwise(marks)} == {CALLS}
    assert calls[-1] == 1
