"""Test that the simulator answers like Qualcomm's library, apart from documented differences.

The answers were recorded from the library itself, on a replacement of the kernel's driver; `make
foreign` records them again (tests/foreign/test_fastrpc.py).
"""

import pytest

from tests.sim_fastrpc.answers import record

RECORDED = record.recorded()
DIFFERENCES = record.differences()


@pytest.mark.parametrize("mode", ["strict", "faithful"])
@pytest.mark.parametrize("scenario", RECORDED)
def test_the_simulator_answers_as_the_library_does(simulator, scenario, mode):
    ending, answers = RECORDED[scenario]
    for difference in DIFFERENCES:
        if difference.mode in (mode, "both") and scenario in difference.scenarios:
            ending, others = difference.scenarios[scenario]
            answers = record.replaced(answers, others)

    assert record.run(simulator, scenario, settings=mode) == (ending, answers)


def test_a_correct_client_meets_no_difference():
    """The list of differences must not contain an answer that a correct client can get."""
    assert {difference.weight for difference in DIFFERENCES} <= {"B", "C"}


def test_every_difference_is_one():
    """An entry with the recorded answer would be obsolete."""
    for difference in DIFFERENCES:
        for scenario, (ending, answers) in difference.scenarios.items():
            recorded_ending, recorded = RECORDED[scenario]
            assert ending != recorded_ending or answers, scenario
            assert not set(answers) & set(recorded), scenario


def test_all_of_it_was_recorded():
    """The first recording had 577 questions; one was omitted because it crashes the library."""
    assert len(RECORDED) == 49
    assert sum(len(answers) for _, answers in RECORDED.values()) == 576
