"""Test the recovery of a lost device, with a device that records its calls."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from npurt.device import restart
from npurt.device.restart import RESTARTS, Restarts, patiently
from npurt.errors import DeviceFull, DeviceLost, DeviceNotFound, DeviceTimeout, NpurtError


def failure(kind=DeviceLost, what="it fell"):
    return kind(what, remedy="pick it up", call="run", code=7)


class Script:
    """Takes the next item at each call: raises an error, returns anything else."""

    def __init__(self, *acts):
        self.acts = list(acts)
        self.calls = 0

    def __call__(self):
        self.calls += 1
        act = self.acts.pop(0) if self.acts else None
        if isinstance(act, BaseException):
            raise act
        return act


@pytest.fixture
def restarts():
    return Restarts("toy", (DeviceLost, DeviceTimeout))


def test_work_that_goes_well_reopens_nothing(restarts):
    work, reopen = Script(), Script()

    restarts.surviving(work, reopen)

    assert (work.calls, reopen.calls, restarts.events()) == (1, 0, [])


@pytest.mark.parametrize("kind", [DeviceLost, DeviceTimeout])
def test_work_over_which_the_device_is_lost_is_repeated_once_it_is_open_again(restarts, kind):
    work, reopen = Script(failure(kind)), Script()

    restarts.surviving(work, reopen)

    assert (work.calls, reopen.calls) == (2, 1)
    (events,) = restarts.events()
    assert "toy was opened again" in events
    assert restarts.count == 1
    assert "it fell" in events
    assert restarts.events() == []


def test_losses_are_counted_over_the_whole_life_and_the_last_is_said_again_without_a_try(restarts):
    for _ in range(RESTARTS):
        restarts.surviving(Script(failure()), Script())
    work, reopen = Script(failure(what="the last straw")), Script()
    with pytest.raises(DeviceLost, match="lost 3 times and is given up: the last straw") as caught:
        restarts.surviving(work, reopen)
    assert (work.calls, reopen.calls) == (1, 0)

    with pytest.raises(DeviceLost) as again:
        restarts.surviving(work, reopen)

    assert (work.calls, reopen.calls) == (1, 0)
    assert again.value.what == caught.value.what
    assert (caught.value.remedy, caught.value.call, caught.value.code) == ("pick it up", "run", 7)


def test_a_device_that_is_given_up_may_have_a_remedy_of_its_own():
    restarts = Restarts("toy", (DeviceLost,), "buy another")
    with pytest.raises(DeviceLost) as caught:
        restarts.surviving(Script(*[failure() for _ in range(9)]), Script())

    assert caught.value.remedy == "buy another"


@pytest.mark.parametrize("kind", [DeviceLost, DeviceFull, DeviceNotFound])
def test_a_device_that_cannot_be_opened_again_is_tried_again_and_then_given_up(restarts, kind):
    gone = kind("no", remedy="?") if kind is DeviceNotFound else failure(kind, "no")
    work, reopen = Script(failure()), Script(gone, gone)

    with pytest.raises(DeviceLost, match="given up: toy cannot be opened again: no"):
        restarts.surviving(work, reopen)

    assert (work.calls, reopen.calls) == (1, RESTARTS)
    assert restarts.events() == []


@pytest.mark.parametrize("error", [failure(DeviceFull), ValueError("mine"), KeyboardInterrupt()])
def test_what_is_no_loss_goes_through_and_counts_for_nothing(error):
    restarts = Restarts("toy", (DeviceLost, DeviceFull))
    for _ in range(RESTARTS + 1):
        with pytest.raises(type(error)):
            restarts.surviving(Script(error), Script())

    restarts.surviving(Script(failure()), Script())


def test_a_recovery_that_is_interrupted_comes_before_any_other_work(restarts):
    reopen = Script(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        restarts.surviving(Script(failure()), reopen)
    work = Script()

    restarts.surviving(work, reopen)

    assert (work.calls, reopen.calls) == (1, 2)
    assert len(restarts.events()) == 1


def test_a_closed_device_does_nothing(restarts):
    work, release = Script(), Script()

    restarts.close(release)
    restarts.close(release)  # a second call has no effect

    with pytest.raises(NpurtError, match="toy is closed"):
        restarts.surviving(work, Script())
    assert (work.calls, release.calls) == (0, 2)


def test_no_other_thread_works_or_closes_meanwhile(restarts):
    free = []

    def work():
        with ThreadPoolExecutor(1) as pool:
            free.append(pool.submit(restarts.lock.acquire, blocking=False).result())

    restarts.surviving(work, Script())
    restarts.close(work)

    assert free == [False, False]


def test_a_device_that_is_not_back_is_tried_until_it_is(monkeypatch):
    monkeypatch.setattr(restart, "RETRY_SECONDS", 0)
    connect = Script(failure(), DeviceNotFound("not yet", remedy="wait"), failure(), "opened")

    assert patiently(connect, DeviceLost, 1e9) == "opened"


@pytest.mark.parametrize(("error", "seconds"), [(failure(), -1), (failure(DeviceTimeout), 1e9)])
def test_a_device_whose_time_is_up_or_whose_error_will_not_pass_is_not_tried_again(error, seconds):
    connect = Script(error, "opened")

    with pytest.raises(type(error)):
        patiently(connect, DeviceLost, seconds)
    assert connect.calls == 1
