"""Test that requested faults occur at the requested calls, and that bad settings are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim_rknpu import client
from tests.sim_rknpu.bench import Bench, exact, hangs, operands
from tests.sim_rknpu.client import Rknpu, Rocket
from tests.sim_rknpu.lists import Task

TASK = Task(4, 64, 64)
RESET = 6


@pytest.fixture
def bench(driver):
    return Bench(driver, TASK, *operands(TASK))


def right(bench):
    bench.fill()
    return np.array_equal(bench.run(), exact(TASK, *operands(TASK)))


def test_the_nth_job_hangs(bench):
    client.configure("fault=timeout@submit:3")

    assert right(bench)
    assert right(bench)
    with hangs(bench.driver):
        bench.run()
    assert right(bench)


def test_every_job_from_the_nth_leaves_stale_output(bench):
    client.configure("fault=stale@submit:2+")

    assert right(bench)
    for _ in range(3):
        assert not right(bench)
        assert bench.untouched()
    assert client.report()["refused"] == 0  # the driver reports no error


def test_one_bit_of_an_output_flips(bench):
    client.configure("fault=flip")
    bench.fill()

    difference = bench.run() ^ exact(TASK, *operands(TASK)).astype(np.int32)

    assert np.count_nonzero(difference) == 1
    assert int(difference.max()).bit_count() == 1
    assert right(bench)


def test_a_wedged_core_hangs_until_a_user_resets_it(driver):
    bench = Bench(driver, TASK, *operands(TASK))
    client.configure("fault=wedge@submit:2")
    assert right(bench)
    for _ in range(3):
        with hangs(driver):
            bench.run()
    if isinstance(driver, Rknpu):
        driver.action(RESET)
    else:
        Rocket().close()  # users of the node open it again
    assert right(bench)


@pytest.mark.parametrize("open_", [Rocket, Rknpu])
def test_a_dead_node_is_gone_for_everybody(open_):
    with open_() as first, open_() as second:
        bench = Bench(first, TASK, *operands(TASK))
        client.configure("fault=dead@submit")
        with pytest.raises(OSError, match="ENODEV"):
            bench.run()
        with pytest.raises(OSError, match="ENODEV"):
            second.create(64)
        with pytest.raises(OSError, match="ENODEV"):
            open_()
        client.configure("reload=1")
        second.create(64)


@pytest.mark.parametrize(
    ("fault", "call"),
    [
        ("enomem@create", lambda bench: bench.driver.create(64)),
        ("efault@submit", lambda bench: bench.run()),
        ("ebusy@submit", lambda bench: bench.run()),
        ("ebusy@open", lambda bench: type(bench.driver)()),
    ],
)
def test_a_call_fails_once_as_asked(bench, fault, call):
    client.configure(f"fault={fault}")

    with pytest.raises(OSError, match=fault.split("@")[0].upper()):
        call(bench)

    assert right(bench)


def test_each_drivers_own_calls_fail_too():
    with Rocket() as rocket, Rknpu() as rknpu:
        benches = [Bench(each, TASK, *operands(TASK)) for each in (rocket, rknpu)]
        for fault, call in (
            ("ebusy@prep", benches[0].c.prep),
            ("eintr@fini", benches[0].c.fini),
            ("eio@sync", benches[1].c.fini),
            ("eio@action", lambda: rknpu.action(RESET)),
            ("enoent@destroy", benches[1].c.destroy),
            ("einval@map", lambda: rknpu.create(64)),
        ):
            client.configure(f"fault={fault}")
            with pytest.raises(OSError, match=fault.split("@")[0].upper()):
                call()


@pytest.mark.parametrize(
    "settings",
    [
        "fault=nothing", "fault=timeout@open", "fault=timeout@submit:0", "fault=timeout@submit:x",
        "fault=ebusy@never", "fault=", "cores=0", "cores=4", "cores=two", "strict=2", "hang_ms=-1",
        "hang_ms=nan", "log", "=1", "unknown=1", "reload=2", "nodes=" + "x" * 300, "x" * 2000,
    ],
)  # fmt: skip
def test_a_setting_that_means_nothing_is_refused(settings):
    with pytest.raises(ValueError, match=r"."):
        client.configure(settings)


@given(st.text(st.characters(codec="ascii"), max_size=60).filter(lambda text: "\0" not in text))
def test_no_text_of_settings_does_harm(text):
    try:
        client.configure(text)
    except ValueError:
        pass
    finally:
        client.configure("reload=1 strict=1 coherent=1 cores=3 log=0 report= nodes=accel0")


def test_more_faults_than_can_wait_are_refused():
    for _ in range(16):
        client.configure("fault=timeout@submit:1000")
    with pytest.raises(ValueError, match="16 faults"):
        client.configure("fault=timeout@submit")
