"""Test that all transports behave alike, also when the DSP dies or hangs, or on an interrupt."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from npurt.errors import (
    DeviceFull,
    DeviceLost,
    DeviceTimeout,
    DriverError,
    NpurtError,
    NumericsError,
    SettingError,
)
from npurt.hexagon.connect.connection import Connection
from npurt.hexagon.connect.worker import connect
from npurt.hexagon.session import messages
from tests.hexagon.simulator import (
    CONNECTIONS,
    Product,
    connection,
    impatient,
    kill,
    opened,
    process,
    tell,
    wait_until,
)
from tests.limits import interrupt

# Functions that make the DSP of this process die during the next batch, or reply too late.
DEATHS = {"invoke": ["crash=1", "ssr=1:1", "invoke=1"], "dspqueue": ["queue_read=1"]}
DELAYS = {"invoke": "delay=1:3600000", "dspqueue": "queue_stuck=1"}


@pytest.fixture(params=CONNECTIONS)
def fields(request):
    return CONNECTIONS[request.param]


def test_a_batch_is_multiplied_as_often_as_it_is_sent(fields, simulator):
    with opened(**fields) as transport:
        product = Product(transport)

        assert transport.info.arch == 68
        before = transport.packets()
        assert all(product.run() for _ in range(3))
        assert transport.packets() > before


def test_another_number_of_rows_is_patched_in(simulator):
    with opened() as transport:
        product = Product(transport)
        exact = [out.copy() for out in (product.run(), product.outs)[1]]
        for rows in (1, 3, 2):
            outs = [np.full((rows, y.shape[1]), 7, np.float32) for y in exact]
            product.batch.run(product.x[:rows], outs)
            for y, out in zip(exact, outs, strict=True):
                np.testing.assert_array_equal(out, y[:rows])


@pytest.mark.parametrize(
    "before", [2, -1]
)  # x is multiplied by this factor, so all results change alike
def test_results_that_do_not_arrive_with_the_reply_are_noticed(
    before, fields, simulator, monkeypatch
):
    """The results remain in the DSP's cache, so the memory is the same as before the call."""
    with opened(**fields) as transport:
        product = Product(transport)
        product.batch.run(before * product.x, product.outs)
        send = product.batch._send

        def forgetful(written, read):
            old = read.array.copy()
            send(written, read)
            read.array[:] = old

        monkeypatch.setattr(product.batch, "_send", forgetful)
        with pytest.raises(DeviceLost, match="result"):
            product.run()
        monkeypatch.undo()
        assert product.run()


def test_numbers_that_are_none_are_told_from_a_failing_device(fields, simulator):
    with opened(**fields) as transport:
        product = Product(transport)
        product.x[1, 5] = np.inf
        with pytest.raises(NumericsError):
            product.run()
        product.x[1, 5] = 0
        product.batch.run(product.x, product.outs)


def test_a_batch_that_the_dsp_refuses_is_an_error_and_the_session_goes_on(fields, simulator):
    with opened(**fields) as transport:
        product = Product(transport)
        product.batch._ops["n"] = 0
        with pytest.raises(DriverError, match="size or stride"):
            product.run()
        product.batch._ops["n"] = (32, 70)
        assert product.run()


@pytest.mark.parametrize("way_name", DEATHS)
def test_a_dsp_process_that_dies_is_a_lost_device(way_name, simulator):
    with opened(**CONNECTIONS[way_name]) as transport:
        product = Product(transport)
        assert product.run()
        kill()
        with pytest.raises(DeviceLost):
            product.run()
        with pytest.raises(DeviceLost):
            product.run()
    with opened(**CONNECTIONS[way_name]) as transport:
        assert Product(transport).run()


@pytest.mark.parametrize(
    ("way_name", "fault"), [(name, fault) for name, faults in DEATHS.items() for fault in faults]
)
def test_a_crash_in_the_middle_of_a_batch_is_a_lost_device(way_name, fault, simulator):
    with opened(**CONNECTIONS[way_name]) as transport:
        product = Product(transport)
        assert product.run()
        tell(fault)
        with pytest.raises(DeviceLost):
            product.run()
        with pytest.raises(DeviceLost):
            transport.allocate(4096)


@pytest.mark.parametrize("way_name", DELAYS)
def test_an_answer_that_does_not_come_in_time_is_a_timeout_and_the_session_dead(
    way_name, simulator
):
    with opened(**CONNECTIONS[way_name]) as transport:
        product = Product(transport)
        tell(DELAYS[way_name])
        impatient(transport)
        with pytest.raises(DeviceTimeout):
            product.run()
        with pytest.raises(DeviceLost):
            product.run()
    tell("")  # the late reply comes
    wait_until(lambda: process() == 0)  # the thread returned, and closed its session


@pytest.mark.parametrize("fault", ["crash=6", "invoke=6", "ssr=6:50"])
def test_a_worker_tells_that_its_dsp_died(fault, simulator, monkeypatch):
    """The DSP dies at the sixth call, after the session was opened."""
    monkeypatch.setenv("NPURT_SIM_FASTRPC", fault)
    with opened(worker=True) as transport:
        product = Product(transport)
        with pytest.raises(DeviceLost):
            run_often(product)


def run_often(product):
    for _ in range(9):
        assert product.run()


def test_a_worker_that_does_not_answer_in_time_is_killed(simulator, monkeypatch):
    monkeypatch.setenv("NPURT_SIM_FASTRPC", "delay=6+:3600000")
    with opened(worker=True) as transport:
        pid = transport.process
        product = Product(transport)
        impatient(transport)
        with pytest.raises(DeviceTimeout):
            run_often(product)
        assert not os.path.exists(f"/proc/{pid}")
        with pytest.raises(NpurtError, match="closed"):
            transport.allocate(4096)


@pytest.mark.parametrize("signal_number", [9, 15])
def test_a_worker_that_is_killed_is_a_lost_device(signal_number, simulator):
    with opened(worker=True) as transport:
        product = Product(transport)
        os.kill(transport.process, signal_number)
        with pytest.raises(DeviceLost, match="worker"):
            product.run()


def test_a_worker_that_cannot_open_says_why_and_is_gone(simulator, monkeypatch):
    monkeypatch.setenv("NPURT_SIM_FASTRPC", "wrong_arch=1+")
    with pytest.raises(DriverError, match="0x80000406") as caught:
        connect(connection(worker=True))
    assert caught.value.code == 0x80000406
    assert caught.value.remedy


def test_ctrl_c_on_the_terminal_does_not_reach_a_worker(simulator):
    """The signal goes to the terminal's foreground process group, which is the parent's."""
    with opened(worker=True) as transport:
        assert os.getpgid(transport.process) == transport.process != os.getpgid(0)


def test_a_worker_has_its_own_numbers_for_memory_that_both_see(simulator):
    with opened(worker=True) as transport:
        blocks = [transport.allocate(nbytes) for nbytes in (4096, 1 << 20)]
        assert [block.nbytes for block in blocks] == [4096, 1 << 20]
        assert len({block.fd for block in blocks}) == 2
        for block in blocks:
            block.array[:] = 5


def test_memory_of_a_worker_that_ended_can_still_be_read(simulator):
    with opened(worker=True) as transport:
        block = transport.allocate(1 << 20)
        block.array[:] = 5
    assert (block.array == 5).all()


def test_a_worker_ends_with_its_parent_whatever_it_is_doing(simulator, tmp_path):
    code = f"""
import os, sys
sys.path[:] = {sys.path!r}
from tests.hexagon.simulator import Product, opened
os.environ["NPURT_SIM_FASTRPC"] = "delay=6+:3600000"
with opened(worker=True, deadline=3600) as transport:
    product = Product(transport)
    print(transport.process, flush=True)
    for _ in range(9):
        product.run()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        worker = int(parent.stdout.readline())
        assert os.path.exists(f"/proc/{worker}")
        parent.kill()
    wait_until(lambda: not alive(worker))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ctrl_c_during_a_product_leaves_a_transport_that_works(fields, simulator, monkeypatch):
    monkeypatch.setenv("NPURT_SIM_FASTRPC", "delay=9:700")  # for the worker's simulator
    with opened(**fields) as transport:
        product = Product(transport)
        for _ in range(2):
            product.run()
        if not fields.get("worker"):
            tell("delay=1:3600000")
        begun = threading.Event()

        def work():
            begun.set()
            while True:
                product.run()

        interrupt(work, begun.is_set, then=lambda: tell("delay=0"))
        transport.settle()
        assert product.run()


def test_memory_that_cannot_be_had_is_said_so_and_the_session_goes_on(fields, simulator):
    with opened(**fields) as transport:
        product = Product(transport)
        if not fields.get("worker"):
            tell("no_memory=1")
            with pytest.raises(DeviceFull):
                transport.allocate(4096)
            tell("map=1")
        with pytest.raises(NpurtError):
            transport.allocate(1 << 31)
        assert product.run()


def test_a_transport_is_closed_once_and_then_refuses(fields, simulator):
    with opened(**fields) as transport:
        product = Product(transport)
        transport.close()
        transport.close()
        with pytest.raises(NpurtError):
            product.run()
    assert process() == 0


def test_an_unknown_transport_is_refused():
    with pytest.raises(SettingError, match="pigeon"):
        Connection("", transport="pigeon")


def test_a_reply_to_another_batch_is_not_taken_for_this_one(simulator):
    with opened() as transport:
        product = Product(transport)
        product.run()
        product.batch._send = lambda *blocks: None  # success without an effect

        with pytest.raises(DeviceLost, match="the reply to batch"):
            product.run()
    assert messages.REPLY_MAGIC
