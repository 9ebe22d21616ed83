"""Test that dspqueue is used only after it worked, is abandoned on failure, and is measured."""

import pytest

from npurt.hexagon.connect import measurements, probe
from npurt.hexagon.connect.connection import Connection
from npurt.hexagon.fastrpc import lib
from npurt.hexagon.fastrpc.lib import load
from npurt.hexagon.session import messages
from tests.hexagon.simulator import connection, opened

DEAD = ["queue_stuck=1", "queue_create=1+", "queue_read=1+", "start=1+"]


def known(what):
    return measurements.recall(measurements.identity(load([lib.simulator()]), "cdsp"), what)


def test_a_queue_that_answers_is_found_to_work_and_remembered(simulator, monkeypatch):
    assert probe.queue_works(connection())
    assert known("dspqueue") is True
    monkeypatch.setenv("NPURT_SIM_FASTRPC", "queue_stuck=1")
    assert probe.queue_works(connection())  # not tried again


@pytest.mark.parametrize("fault", DEAD)
def test_a_queue_that_does_not_answer_is_found_out_in_time_and_remembered(
    fault, simulator, monkeypatch
):
    monkeypatch.setenv("NPURT_SIM_FASTRPC", fault)
    assert not probe.queue_works(connection())
    assert known("dspqueue") is False
    monkeypatch.delenv("NPURT_SIM_FASTRPC")
    assert not probe.queue_works(connection())


def test_a_library_without_queues_is_not_even_tried(fake, simulator, monkeypatch):
    monkeypatch.setattr(probe, "Worker", None)

    assert not probe.queue_works(Connection(str(fake.path)))


@pytest.fixture
def calls(monkeypatch):
    """Record every later call into the library as (name, arguments)."""
    seen = []
    library = load([lib.simulator()])
    original = library.call

    def call(name, *arguments):
        seen.append((name, arguments))
        return original(name, *arguments)

    monkeypatch.setattr(library, "call", call)
    return seen


def test_a_queue_is_closed_before_its_session_and_both_only_once(simulator, calls):
    with opened(transport="dspqueue") as queue:
        queue.close()
        queue.close()
    closed = [name for name, _ in calls if name.endswith("close")]

    assert closed == ["dspqueue_close", "remote_handle64_close"]


def test_every_wait_on_a_queue_has_a_limit(simulator, calls):
    with opened(transport="dspqueue") as queue:
        request, reply = messages.BatchMessage(0), messages.reply()
        queue.prepare(request.data, reply)()
        messages.check(request, reply)
    limits = [rest[-1] for name, rest in calls if name in ("dspqueue_read", "dspqueue_write")]

    assert limits == [1_000_000, 1_000_000]


# --- Capacity -----------------------------------------------------------------------------------


def test_capacity_is_measured_in_steps_less_one_and_remembered(simulator, monkeypatch):
    """The simulated DSP maps 1100 MiB: four steps of 256 MiB fit, of which one remains free."""
    monkeypatch.setattr(probe, "available_memory", lambda: 1 << 40)
    monkeypatch.setenv("NPURT_SIM_FASTRPC", "space=1100M")

    assert probe.capacity(connection()) == 3 * 256 << 20
    assert known("capacity") == 3 * 256 << 20
    monkeypatch.setenv("NPURT_SIM_FASTRPC", "space=600M")
    assert probe.capacity(connection()) == 3 * 256 << 20


def test_this_machines_memory_limits_what_is_tried_and_is_not_remembered(simulator, monkeypatch):
    monkeypatch.setattr(probe, "available_memory", lambda: 1300 << 20)

    assert probe.capacity(connection()) == 256 << 20
    assert known("capacity") is None


def test_a_dsp_that_maps_almost_nothing_has_no_capacity_to_speak_of(simulator, monkeypatch):
    monkeypatch.setattr(probe, "available_memory", lambda: 1 << 40)
    monkeypatch.setenv("NPURT_SIM_FASTRPC", "map=1+")

    assert probe.capacity(connection()) == 0


def test_available_memory_is_what_the_kernel_says(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal:  8 kB\nMemAvailable:   1234 kB\nHugePages: 0\n")

    assert probe.available_memory(tmp_path / "meminfo") == 1234 * 1024
    assert probe.available_memory() > 1 << 20
