"""Test that the simulated driver gives Linux's recorded answer to every question of protocol.py."""

import pytest

from tests.sim_rknpu import client, protocol

RECORDED = protocol.recorded()
# Requests that strict=1 refuses and a driver accepts.
REFUSED = {
    "job with no outputs": "nothing would wait for what it writes",
    "job with no buffers": "nothing would wait for what it writes",
}


@pytest.mark.parametrize("kernel", RECORDED)
def test_every_question_was_asked(kernel):
    assert list(RECORDED[kernel]) == list(protocol.CASES)


@pytest.mark.parametrize("name", protocol.CASES)
@pytest.mark.parametrize("kernel", RECORDED)
def test_the_simulator_answers_as_the_driver(kernel, name):
    client.configure("strict=0 guard=0 iova_base=0 hang_ms=60")

    assert protocol.ask(name) == RECORDED[kernel][name]


@pytest.mark.parametrize("name", protocol.CASES)
def test_strict_refuses_what_is_listed_and_nothing_else(name):
    client.configure("strict=1 guard=0 iova_base=0 hang_ms=60")
    answers = {answers[name] for answers in RECORDED.values()}

    assert (protocol.ask(name) in answers) == (name not in REFUSED)
