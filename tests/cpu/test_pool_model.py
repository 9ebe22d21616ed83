"""Tests of a model of the pool's protocol: every order of events is right, errors are found."""

from dataclasses import replace

import pytest

from tests.cpu.memory_model import (
    ACQUIRE,
    RELAXED,
    RELEASE,
    SEQ_CST,
    Await,
    Change,
    Explorer,
    Load,
    Read,
    Store,
    Write,
    Wrong,
)
from tests.cpu.pool_model import BROKEN, Scenario

# --- The memory: the search finds exactly what C11 allows -----------------------------------------


def outcomes(*threads, weak):
    """Return all results that *threads*, which share `x` and `y`, may return together."""
    names = [f"result {i}" for i in range(len(threads))]
    found = set()

    def reporting(thread, name):
        result = yield from thread()
        yield Store(name, result)

    def observer():
        results = ()
        for name in names:
            result = yield Await(name, lambda value: value is not None)
            results = (*results, result)
        found.add(results)

    pairs = zip(threads, names, strict=True)
    runs = [lambda thread=thread, name=name: reporting(thread, name) for thread, name in pairs]
    Explorer([*runs, observer], {"x": 0, "y": 0} | dict.fromkeys(names), {}, weak=weak).run()
    return found


def store_then_load(mine, other, stored, loaded):
    """Return a thread that stores 1 to *mine* and returns the value it loads from *other*."""

    def thread():
        yield Store(mine, 1, stored)
        seen = yield Load(other, loaded)
        return seen

    return thread


@pytest.mark.parametrize("weak", [False, True])
@pytest.mark.parametrize(
    ("stored", "loaded"), [(RELEASE, ACQUIRE), (SEQ_CST, SEQ_CST), (RELAXED, RELAXED)]
)
def test_both_miss_the_other_unless_all_is_sequentially_consistent(stored, loaded, weak):
    found = outcomes(
        store_then_load("x", "y", stored, loaded),
        store_then_load("y", "x", stored, loaded),
        weak=weak,
    )

    assert {(0, 1), (1, 0), (1, 1)} <= found
    assert ((0, 0) in found) == (weak and stored != SEQ_CST)


def test_two_loads_see_one_place_in_order_but_two_places_in_any():
    def writer():
        yield Store("x", 1, RELAXED)
        yield Store("y", 1, RELAXED)
        return 0

    def reader(first, second):
        one = yield Load(first, RELAXED)
        two = yield Load(second, RELAXED)
        return one, two

    same = outcomes(writer, lambda: reader("x", "x"), weak=True)
    other = outcomes(writer, lambda: reader("y", "x"), weak=True)

    assert {pair for _, pair in same} == {(0, 0), (0, 1), (1, 1)}
    assert {pair for _, pair in other} == {(0, 0), (0, 1), (1, 0), (1, 1)}


def passing(stored, loaded, changes=0):
    """Return threads of which the first passes plain memory `d` to the second by the flag `x`.

    Args:
        changes: Number of other threads that increment `x` in between.
    """

    def writer():
        yield Write("d", 1)
        yield Store("x", 1, stored)

    def reader():
        flag = yield Load("x", loaded)
        if flag > changes:
            seen = yield Read("d")
            assert seen == 1

    def changer():
        yield Change("x", lambda value: value + 1 if value else None)

    return [writer, reader, *[changer] * changes]


@pytest.mark.parametrize("changes", [0, 1, 2])
def test_release_and_acquire_hand_plain_memory_over(changes):
    Explorer(passing(RELEASE, ACQUIRE, changes), {"x": 0}, {"d": 0}, weak=True).run()


@pytest.mark.parametrize(("stored", "loaded"), [(RELAXED, ACQUIRE), (RELEASE, RELAXED)])
def test_half_a_pair_of_them_is_a_data_race(stored, loaded):
    with pytest.raises(Wrong, match="data race of thread 1: Read"):
        Explorer(passing(stored, loaded), {"x": 0}, {"d": 0}, weak=False).run()


def test_a_write_races_with_a_read_that_it_does_not_know_of():
    def reader():
        yield Read("d")
        yield Store("x", 1, RELAXED)

    def writer():
        yield Await("x", lambda value: value == 1)
        yield Write("d", 1)

    with pytest.raises(Wrong, match="data race of thread 1: Write"):
        Explorer([reader, writer], {"x": 0}, {"d": 0}, weak=False).run()


def test_threads_that_wait_for_each_other_are_found():
    def waits(mine, other):
        def thread():
            yield Await(other, lambda value: value == 1)
            yield Store(mine, 1)

        return thread

    with pytest.raises(Wrong, match="wait for each other"):
        Explorer([waits("x", "y"), waits("y", "x")], {"x": 0, "y": 0}, {}, weak=True).run()


# --- The pool ------------------------------------------------------------------------------------

SCENARIOS = [
    Scenario(("p+",)),
    Scenario(("f+",)),
    Scenario(("+", "+")),
    Scenario(("x", "p")),
    Scenario(("p",), chunks=2),
    Scenario(("p", "p"), weak=False),
    Scenario(("p", "+"), weak=False),
    Scenario(("f+", "+"), weak=False),
    Scenario(("f", "p"), weak=False),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_every_order_of_events_gives_the_results_without_a_race(scenario):
    assert scenario.explore() > 1000


@pytest.mark.parametrize("broken", BROKEN)
def test_a_protocol_without_one_of_its_rules_is_found_wrong(broken):
    """The search finds each error; "failure is reset" was once an error of pool.c."""
    runs = {
        "early end": Scenario(("f", "p"), weak=False),
        "failure is reset": Scenario(("f+", "+"), weak=False),
        "open lanes": Scenario(("+", "x"), weak=False, chunks=2),
    }
    scenario = runs.get(broken, Scenario(("p", "p"), weak=False))

    with pytest.raises(Wrong):
        replace(scenario, broken=broken).explore()
