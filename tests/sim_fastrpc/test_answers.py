"""Test that the simulator answers like Qualcomm's library, apart from documented differences.

The answers were recorded from the library itself, on a replacement of the kernel's driver; the head
of answers/recorded.txt has the library's version.  `make foreign` compares them with the answers of
a newer version (tests/foreign/test_fastrpc.py).
"""

import functools

import pytest

from tests.sim_fastrpc.answers import record

RECORDED = record.recorded()
DIFFERENCES = record.differences()


@pytest.fixture(scope="module")
def answered(simulator):
    """Return a function that maps a mode of the simulator to its answers."""
    return functools.cache(lambda mode: record.run(simulator, RECORDED, mode))


@pytest.mark.parametrize("mode", ["strict", "faithful"])
@pytest.mark.parametrize("scenario", RECORDED)
def test_the_simulator_answers_as_the_library_does(answered, scenario, mode):
    ending, answers = RECORDED[scenario]
    for difference in DIFFERENCES:
        if difference.mode in (mode, "both") and scenario in difference.scenarios:
            ending, others = difference.scenarios[scenario]
            answers = record.replaced(answers, others)

    assert answered(mode)[scenario] == (ending, answers)


def test_a_correct_client_meets_no_difference():
    """The list of differences must not contain an answer that a correct client can get."""
    assert {difference.weight for difference in DIFFERENCES} <= {"B", "C"}


def test_every_difference_is_one():
    """An entry with the recorded answer would be obsolete."""
    lists = [difference.scenarios for difference in DIFFERENCES]
    for scenarios in [*lists, record.recorded_newer()]:
        for scenario, (ending, answers) in scenarios.items():
            recorded_ending, recorded = RECORDED[scenario]
            assert ending != recorded_ending or answers, scenario
            assert not set(answers) & set(recorded), scenario


def test_all_of_it_was_recorded():
    assert len(RECORDED) == 50
    assert sum(len(answers) for _, answers in RECORDED.values()) == 577
