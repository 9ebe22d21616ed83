"""Test the first program on a board: it finds faults, reports them, and continues."""

import functools
import json

import numpy as np
import pytest

from npurt.errors import DeviceNotFound
from npurt.rknpu.doctor.probe import LOST_IN_A_ROW, TRIALS, UNSAFE, Trial, operands, probe
from npurt.rknpu.driver.detect import open_driver
from npurt.rknpu.isa import layout
from npurt.rknpu.isa.lower import Profile
from tests.cli.conftest import npurt
from tests.rknpu.conftest import STRICT

__all__ = ["npurt"]


@pytest.fixture(params=["rocket", "rknpu"])
def connect(request, simulator):
    simulator.set(f"reload=1 {STRICT}")
    yield functools.partial(open_driver, simulator, (request.param,))
    simulator.set(f"reload=1 {STRICT}")


def states(outcomes):
    return [outcome.state for outcome in outcomes]


def test_what_a_board_owner_should_try_first_is_tried():
    """The trials have cases of issues and notes: identity, 1 to 9 rows, past a group, odd sums."""
    shapes = {trial.shape for trial in TRIALS}

    assert TRIALS[0].identity
    assert {"1x32x32", "4x64x64", "4x64x96", "126x2080x64", "144x672x64"} <= shapes
    for connection in ("row", "native-w"):
        rows = {t.m for t in TRIALS if t.layout.value == connection and (t.k, t.n) == (64, 64)}
        assert set(range(1, 10)) <= rows
    assert any(trial.k == 2080 for trial in TRIALS)
    assert any(trial.cores == 3 for trial in TRIALS)
    assert all(trial.profile is Profile.FULL for trial in TRIALS)


def test_all_trials_pass_on_an_npu_that_works(connect):
    outcomes = list(probe(connect))

    assert states(outcomes) == ["ok"] * (2 + len(TRIALS))
    assert [o.name for o in outcomes[:2]] == ["open", "memory"]
    assert all(outcome.model_seconds > 30e-6 for outcome in outcomes[2:])


def test_the_driver_is_asked_how_long_it_took_where_it_knows(connect):
    times = {outcome.driver_seconds for outcome in probe(connect)} - {None}

    assert bool(times) == (connect().name == "rknpu")


def test_a_list_without_dpu_rdma_runs_with_the_vendors_driver_only(connect):
    outcomes = list(probe(connect, unsafe=True))

    assert len(outcomes) == 2 + len(TRIALS) + len(UNSAFE)
    assert outcomes[-1].state == ("ok" if connect().name == "rknpu" else "error")
    assert set(states(outcomes[:-1])) == {"ok"}


def test_operands_are_the_same_each_time_and_add_up_exactly():
    for trial in TRIALS:
        a, b = operands(trial)
        again, _ = operands(trial)
        np.testing.assert_array_equal(a, again)
        assert abs(a.astype(np.int64)).max() * abs(b.astype(np.int64)).max() * trial.k < 2**31
        if trial.format == "fp16":
            assert 8 * 8 * trial.k < 2**24
    a, b = operands(TRIALS[0])
    np.testing.assert_array_equal(a @ b.T, a)


def test_a_wrong_result_is_told_with_its_place_and_the_next_trial_is_made(connect, simulator):
    outcomes = []
    for outcome in probe(connect):
        if outcome.name == "memory":
            simulator.set("fault=flip@submit")
        outcomes.append(outcome)

    (bad,) = [outcome for outcome in outcomes if outcome.state != "ok"]
    assert (bad.name, bad.state) == ("identity", "wrong")
    assert bad.what.startswith("1 of 32 wrong, first at row 0, column 16: ")
    assert TRIALS[0].about in bad.what


def test_weights_in_the_wrong_order_are_seen(connect, monkeypatch):
    """Simulate a mistake in npurt's layout: rows of B swapped in pairs."""
    pack = layout.pack_weights

    def wrong(b, format):
        return pack(b.reshape(-1, 2, b.shape[1])[:, ::-1].reshape(b.shape), format)

    monkeypatch.setattr("npurt.rknpu.plan.images.pack_weights", wrong)
    outcomes = list(probe(connect))

    assert set(states(outcomes[2:])) == {"wrong"}


@pytest.mark.parametrize("fault", ["timeout", "stale", "einval", "enodev"])
def test_a_trial_that_fails_is_told_and_the_next_is_made_anew(connect, simulator, fault):
    outcomes = []
    for outcome in probe(connect):
        if outcome.name == "memory":
            # The second fault is in the second attempt.
            simulator.set(f"fault={fault}@submit fault={fault}@submit:2")
        outcomes.append(outcome)

    assert states(outcomes)[2] == "error"
    assert states(outcomes)[4:] == ["ok"] * (len(TRIALS) - 2)
    assert all(o.what for o in outcomes if o.state == "error")


@pytest.mark.parametrize("fault", ["timeout", "stale", "einval", "wedge"])
def test_a_product_that_is_right_when_run_again_is_not_called_right(connect, simulator, fault):
    """The driver repeats failed jobs; a board that loses jobs does not count as working."""
    outcomes = []
    for outcome in probe(connect):
        if outcome.name == "memory":
            # With either driver, the second submit is in the first trial.
            simulator.set(f"fault={fault}@submit:2")
        outcomes.append(outcome)

    mended = fault != "wedge" or connect().name == "rknpu"  # mainline has no reset
    assert states(outcomes)[2] == ("flaky" if mended else "error")
    assert "when run again" in outcomes[2].what or not mended
    assert states(outcomes)[3:] == ["ok"] * (len(TRIALS) - 1)


def test_an_npu_that_is_gone_is_not_tried_for_ever(connect, simulator):
    outcomes = []
    for outcome in probe(connect):
        if outcome.name == "memory":
            simulator.set("fault=dead@submit")
        outcomes.append(outcome)

    assert states(outcomes)[2:] == ["error"] + ["left out"] * (len(TRIALS) - 1)


def test_an_npu_that_hangs_each_time_is_not_tried_for_ever(connect, simulator):
    simulator.set("fault=timeout@submit:1+")

    outcomes = list(probe(connect))

    left = len(TRIALS) - LOST_IN_A_ROW
    assert states(outcomes)[2:] == ["error"] * LOST_IN_A_ROW + ["left out"] * left


def test_no_npu_is_an_error(simulator):
    simulator.set("nodes=none")
    with pytest.raises(DeviceNotFound):
        next(probe(functools.partial(open_driver, simulator)))
    simulator.set("nodes=accel0,renderD128,card1")


def test_nothing_is_left_open(connect, simulator):
    trials = probe(connect)
    next(trials)
    trials.close()

    driver = connect()
    assert driver.spaces[0].is_ours
    driver.close()


def test_a_shape_is_written_as_in_reports():
    assert Trial("x", 4, 64, 96, "").shape == "4x64x96"


# --- The command ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rknpu:sim", "rknpu:sim-vendor"])
def test_the_command_prints_a_row_for_each_trial_and_succeeds(npurt, name, simulator):
    simulator.set(f"reload=1 {STRICT}")

    result = npurt("probe", "-dev", name)

    lines = result.out.splitlines()
    assert result.code == 0
    assert lines[0] == f"{name} (simulated)"
    assert len(lines) == 2 + 2 + len(TRIALS) + 1
    assert "identity                 1x32x32  ok" in lines[4]
    assert lines[-1].startswith(f"all {2 + len(TRIALS)} right")
    assert "simulated" in lines[-1]


def test_the_command_tells_scripts_and_fails_when_something_is_wrong(npurt, simulator):
    simulator.set(f"reload=1 {STRICT} fault=flip@submit:4")

    result = npurt("probe", "-dev", "rknpu:sim", "--json")

    told = json.loads(result.out)
    assert result.code == 1
    assert told["simulated"] is True
    assert told["ok"] is False
    (bad,) = [trial for trial in told["trials"] if trial["state"] != "ok"]
    assert bad["shape"] == "4x64x64"
    assert "start with the first" not in result.out


def test_the_command_names_what_failed_first(npurt, simulator):
    simulator.set(f"reload=1 {STRICT} fault=flip@submit:4")

    result = npurt("probe", "-dev", "rknpu:sim")

    assert result.code == 1
    wanted = f"1 of {2 + len(TRIALS)} not right; start with the first: 4 x 64 x 64;"
    assert result.out.splitlines()[-1].startswith(wanted)


@pytest.mark.parametrize("name", ["hexagon:sim", "cpu", "rknpu:7"])
def test_the_command_refuses_another_device(npurt, name):
    result = npurt("probe", "-dev", name)

    assert result.code == 2
    assert "remedy: use rknpu" in result.err
