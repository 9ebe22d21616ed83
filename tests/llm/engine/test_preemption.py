"""Tests of the cost of preemption: the number of tokens that are evaluated again."""

from tests.llm import tiny
from tests.llm.engine.stepping import Steps, alone, with_times

IDS = tiny.ids("llama3")
LONG = [7, *IDS * 4]


def test_a_text_is_not_evaluated_again_whenever_pages_are_free_for_a_while(opened):
    """Four sequences with priority have 4 of the 12 pages at first, and soon 8.

    A sequence of 5 pages waits for 1 free page more than it needs at first.  After each
    preemption the number doubles: 2, then 4.
    """
    steps = Steps(opened(12), sequences=9)
    with_times(steps.scheduler, lambda rows: 1.0)
    large = steps.add(0, LONG[:290], 30)
    for number in range(1, 33):
        steps.add(number, LONG[number : number + 50], 60, priority=1)
        for _ in range(58 * (number % 4 == 0)):
            steps.step()
    steps.finish()

    assert steps.tokens(0) == alone(tuple(LONG[:290]), 30)
    assert 1 <= large.preempted <= 2
    ends = [events[-1].usage for events in steps.events.values()]
    once = sum(usage.prompt + usage.generated - 1 for usage in ends)
    assert steps.scheduler.counts.rows - once <= 2 * len(large.history)
