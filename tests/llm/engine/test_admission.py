"""Tests of the admission of waiting sequences, and of the eviction of cached prefixes for them."""

import contextlib

import pytest

from npurt.errors import SettingError
from npurt.llm.session.context import Context
from tests.llm import tiny
from tests.llm.engine.stepping import HYBRID, Steps, alone

IDS = tiny.ids("llama3")
LONG = [7, *IDS * 4]


def kept(steps, *prompts):
    """Evaluate *prompts* and cache them as prefixes; return the number of cached prefixes."""
    for number, prompt in enumerate(prompts):
        steps.add(-1 - number, prompt, 1)
        steps.finish()
    return steps.scheduler.stats().prefixes


@pytest.fixture
def others():
    """Return a function that creates contexts until a given number of sequences is free."""
    with contextlib.ExitStack() as made:

        def take(llm, left):
            while len(llm.model._free) > left:
                made.callback(Context(llm.model).release)
            return made

        yield take


# --- Eviction of prefixes -------------------------------------------------------------------------


def test_a_text_that_must_wait_costs_no_kept_prefix(opened):
    """No prefix is evicted if the eviction of all prefixes would not free enough pages."""
    steps = Steps(opened(8), prefixes=4)
    assert kept(steps, IDS[:70], IDS[3:40]) == 2
    steps.add(1, IDS[5:70], 50)
    steps.step()
    waiting = steps.add(2, LONG[:390], 3)
    for _ in range(5):
        steps.step()

    assert waiting.context is None
    assert steps.scheduler.stats().prefixes == 2
    steps.finish()
    assert steps.tokens(2) == alone(tuple(LONG[:390]), 3)
    steps.scheduler.close()


def test_only_as_many_prefixes_go_as_a_text_needs(opened):
    """The least recently used prefixes are evicted, but not the one that the sequence reuses."""
    steps = Steps(opened(8), prefixes=4)
    assert kept(steps, IDS[:70], IDS[3:40], IDS[4:100]) == 3  # 2, 1 and 2 pages
    steps.add(1, IDS[9:20], 50)
    steps.step()
    text = steps.add(2, [*IDS[:70], *IDS[:80]], 3)  # needs 3 pages; the first is cached
    steps.step()

    assert text.cached == 70
    assert steps.scheduler.stats().prefixes == 2
    steps.finish()
    assert steps.end(2).usage.cached == 70
    steps.scheduler.close()


def test_pages_that_a_running_text_shares_with_a_prefix_are_not_free_without_it(opened):
    steps = Steps(opened(6), prefixes=4)
    kept(steps, LONG[:129])
    sharing = steps.add(1, LONG[:140], 30)  # two of its three pages are those of the cached prefix
    steps.step()
    assert sharing.cached == 129
    waiting = steps.add(2, IDS[:130], 3)
    for _ in range(3):
        steps.step()

    assert waiting.context is None
    assert steps.scheduler.stats().prefixes == 1
    steps.finish()
    assert steps.tokens(2) == alone(tuple(IDS[:130]), 3)
    steps.scheduler.close()


# --- Contexts of the caller -----------------------------------------------------------------------


def test_a_text_waits_while_contexts_of_a_caller_have_all_sequences(opened, others):
    llm = opened()
    steps = Steps(llm)
    first = steps.add(1, IDS[:9], 4)
    steps.step()
    made = others(llm, 0)
    second = steps.add(2, IDS[:7], 3)
    steps.step()
    assert (second.finish, second.context) == ("", None)
    while not first.finish:
        steps.step()
    steps.finish()

    assert steps.tokens(1) == alone(tuple(IDS[:9]), 4)
    assert steps.tokens(2) == alone(tuple(IDS[:7]), 3)
    made.close()
    steps.scheduler.close()


def test_a_text_that_no_other_can_make_room_for_has_an_error(opened, others):
    """The next sequence can run as soon as the caller has released a context."""
    llm = opened()
    steps = Steps(llm)
    made = others(llm, 0)
    steps.add(1, IDS[:9], 4)
    steps.step()

    error = steps.end(1).error
    assert isinstance(error, SettingError)
    assert "release a context" in error.remedy
    made.close()
    steps.add(2, IDS[:7], 3)
    steps.finish()
    assert steps.tokens(2) == alone(tuple(IDS[:7]), 3)
    steps.scheduler.close()


def test_a_kept_prefix_goes_for_a_text_that_has_no_sequence(opened, others):
    llm = opened()
    steps = Steps(llm, prefixes=4)
    assert kept(steps, IDS[:70], IDS[3:40]) == 2
    others(llm, 0)
    steps.add(1, IDS[:9], 4)
    steps.step()

    assert steps.scheduler.stats().prefixes == 1
    steps.finish()
    assert steps.tokens(1) == alone(tuple(IDS[:9]), 4)
    steps.scheduler.close()


def test_no_sequence_for_a_copy_of_states_costs_no_text(opened, others):
    llm, ids = opened(model=HYBRID), tiny.ids("qwen35")
    steps = Steps(llm, prefixes=4)
    others(llm, 1)
    steps.add(1, ids[:70], 4)
    steps.finish()

    assert steps.tokens(1) == alone(tuple(ids[:70]), 4, HYBRID)
    steps.scheduler.close()
