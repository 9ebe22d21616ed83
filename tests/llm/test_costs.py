"""What rows cost, and which draft tokens are worth theirs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.llm.batch.costs import RowCosts
from npurt.llm.batch.guesses import Guesses, price

# Milliseconds of runs of 1, 5, 9, 17 and 32 rows of a model of 1.5 B parameters (bench/RESULTS.md).
MEASURED = {1: 26.4, 5: 34.3, 9: 58.3, 17: 107.1, 32: 200.0}


def measured(times=MEASURED, most=512):
    costs = RowCosts(most)
    for rows, milliseconds in times.items():
        for _ in range(3):
            costs.add(rows, milliseconds / 1000)
    return costs


def test_times_are_those_measured_and_lie_between_them():
    costs = measured()
    for rows in (1, 5, 9):
        assert costs.seconds(rows) == pytest.approx(MEASURED[rows] / 1000)
    assert costs.seconds(3) == pytest.approx((26.4 + 34.3) / 2000)
    assert costs.row(1) == pytest.approx((34.3 - 26.4) / 4000)
    assert costs.seconds(320) == pytest.approx(2.0)


def test_nothing_is_known_before_the_first_run():
    costs = RowCosts(512)
    assert (costs.seconds(4), costs.row(4)) == (0, 0)
    assert price(costs, 4, 4) == 1
    assert costs.rows_within(0.0, 3) == 512  # and so a prompt has them all


def test_a_step_with_a_prompt_has_the_rows_that_2_5_times_the_time_pays_for():
    """The row numbers of notes on this machine: 9 to 16 for one to eight texts."""
    costs = measured()
    for texts in (1, 4, 8):
        rows = costs.rows_within(2.5 * costs.seconds(texts), texts + 1)
        assert texts < rows <= 2.5 * 9
        assert costs.seconds(rows) <= 2.5 * costs.seconds(texts)


def test_where_only_decoding_was_measured_few_rows_are_tried():
    costs = measured({4: 10.0})
    assert costs.rows_within(2.5 * costs.seconds(4), 5) == 10


def test_one_bad_time_does_not_keep_prompts_waiting_for_good():
    """Such as that of a process that was stopped: a group that looks dear is not run again."""
    costs = measured({4: 10.0, 6: 12.0, 8: 14.0, 16: 18.0})
    costs.add(6, 60.0)
    assert costs.seconds(6) > 0.02 >= costs.seconds(16)
    assert costs.rows_within(0.02, 6) == 16
    assert costs.rows_within(0.02, 17) == 17


@given(st.lists(st.tuples(st.integers(1, 512), st.floats(1e-6, 10)), min_size=1, max_size=30))
def test_times_are_within_those_measured(runs):
    costs = RowCosts(512)
    for rows, seconds in runs:
        costs.add(rows, seconds)
    low, high = (f(seconds for _, seconds in runs) for f in (min, max))
    for rows in range(1, max(rows for rows, _ in runs) + 1):
        assert low * 0.999 <= costs.seconds(rows) <= high * 1.001
        assert costs.row(rows) >= 0
    assert 3 <= costs.rows_within(1.0, 3) <= 512


# --- Draft tokens ---------------------------------------------------------------------------------


def test_drafts_pay_for_one_text_and_not_for_eight():
    """As a step with one text takes 26 ms and a row 2, and one with eight takes 52 and a row 6."""
    costs = measured()
    text = Guesses()
    assert price(costs, 1, 1) < 0.1
    assert text.worth(4, price(costs, 1, 1)) == 4
    assert price(costs, 8, 8) > 0.9
    assert text.worth(4, price(costs, 8, 8)) == 0


def test_wrong_drafts_end_and_are_tried_again():
    text = Guesses()
    for _ in range(60):
        text.observe(1, 0)
    tried = [text.worth(3, 0.3) for _ in range(200)]
    assert set(tried) == {0, 1}
    assert 1 <= tried.count(1) <= 5
    assert (text.drafted, text.accepted) == (60, 0)


def test_right_drafts_become_longer():
    text = Guesses()
    before = text.worth(8, 0.5)
    for _ in range(50):
        text.observe(4, 4)
    assert before < text.worth(8, 0.5) == 8


def test_a_draft_is_what_followed_before():
    assert Guesses().propose([1, 2, 3, 9, 1, 2, 3], 2) == [9, 1]
    assert Guesses().propose([1, 2, 3, 9, 1, 2, 3], 0) == []
