"""Tests of the cost of rows, and of which draft tokens are worth the cost of their rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.llm.engine.controller import BatchController, StepCost
from npurt.llm.engine.costs import RowCosts
from npurt.llm.spec.assistant import FEW
from npurt.llm.spec.drafter import Drafter

# Milliseconds of runs of 1, 5, 9, 17 and 32 rows of a model of 1.5 B parameters (bench/RESULTS.md).
MEASURED = {1: 26.4, 5: 34.3, 9: 58.3, 17: 107.1, 32: 200.0}


def measured(times=MEASURED, maximum=512):
    costs = RowCosts(maximum)
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
    assert costs.rows_within(0.0, 3) == 512  # so a prompt gets all rows


def test_a_step_with_a_prompt_has_the_rows_that_2_5_times_the_time_pays_for():
    """A step with a prompt takes at most 2.5 times as long as the step without it."""
    costs = measured()
    for texts in (1, 4, 8):
        rows = costs.rows_within(2.5 * costs.seconds(texts), texts + 1)
        assert texts < rows <= 2.5 * 9
        assert costs.seconds(rows) <= 2.5 * costs.seconds(texts)


def test_where_only_decoding_was_measured_few_rows_are_tried():
    costs = measured({4: 10.0})
    assert costs.rows_within(2.5 * costs.seconds(4), 5) == 10


def test_one_bad_time_does_not_keep_prompts_waiting_for_good():
    """A suspended process may make a number of rows look expensive; more rows may still be run."""
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


class Free(Drafter):
    """A drafter that reads *share* of the model's bytes; by default it costs nothing."""

    name = "free"

    def __init__(self, share=0.0):
        self.share = share

    def draft(self, history, maximum):
        yield from ()


def controller(costs, texts=1, share=0.0, maximum=4, limit=None):
    """Return the controller of a sequence in a step with a given number of sequences."""
    step = StepCost(costs)
    step.begin(texts)
    return BatchController(step, Free(share), maximum, limit)


def flat(row):
    """Return the costs of runs that take 1, and *row* more for each row."""
    costs = RowCosts(512)
    for rows in (1, 2, 4, 8, 16):
        for _ in range(3):
            costs.add(rows, 1 + row * rows)
    return costs


def test_drafts_pay_for_one_text_and_not_for_eight():
    """Drafts pay if a run takes 26 ms and a row 2 ms (one sequence), not 52 and 6 ms (eight)."""
    assert controller(measured()).choose() == 4
    assert controller(measured(), texts=8).choose() == 0


def test_nothing_is_drafted_before_a_run_was_measured():
    assert controller(RowCosts(512)).choose() == 0


def test_a_row_is_worth_a_chance_above_its_price():
    """Three tokens have a chance above the price: 0.7, 0.49 and 0.343, but not 0.24.

    The price is 1.05 * 4 sequences * 0.1 / (1 + 0.4) = 0.3.
    """
    assert controller(flat(0.1), texts=4, maximum=8).choose() == 3


def test_a_drafters_own_time_counts_for_all_texts_that_wait():
    """With two sequences, a draft token that takes half a run costs 1.05 * 2 * 0.6 / 1.2 = 1.05."""
    assert controller(flat(0.1), texts=2, share=0.5).choose() == 0
    assert controller(flat(0.1), texts=2, share=0.01).choose() > 1


def test_a_long_prompt_is_read_by_a_drafter_only_if_the_text_can_win_it_back():
    """A drafter reads 100 tokens to generate 400, but not 2000 tokens to generate 10."""
    assert controller(flat(0.1), share=0.2, limit=400).choose(behind=100) > 0
    assert controller(flat(0.1), share=0.2, limit=10).choose(behind=2000) == 0


def test_drafters_read_no_longer_than_a_step_while_others_wait():
    """A step of two takes 1.2, reading a token 0.021: 57 tokens are read, then FEW, then none."""
    step = StepCost(flat(0.1))
    step.begin(2)
    first, second, third = (BatchController(step, Free(0.21), 4, None) for _ in range(3))
    assert (first.reading(100), second.reading(100), third.reading(100)) == (57, FEW, 0)
    step.begin(1)
    assert first.reading(1000) == 1000


def test_wrong_drafts_end_and_are_tried_again():
    text = controller(flat(0.1), texts=2)
    for _ in range(60):
        text.observe(1, 0, 0.0, 1.0)
    tried = []
    for _ in range(200):
        tried.append(text.choose())
        text.observe(tried[-1], 0, 0.0, 1.0)
    assert set(tried) == {0, 1}
    assert 1 <= tried.count(1) <= 5
    assert (text.text.drafted, text.text.accepted) == (60 + tried.count(1), 0)


def test_a_slow_first_draft_of_a_process_is_not_the_last():
    """The first draft may be slow: it allocates memory and reads the weights for the first time."""
    text = controller(flat(0.1), share=0.2)
    text.observe(1, 1, 30.0, 1.0)
    assert text.choose() > 0
    text.observe(1, 1, 0.2, 1.0)
    assert text.choose() > 0
    text.observe(1, 1, 30.0, 1.0)
    assert text.choose() == 0  # the second slow draft counts


def test_right_drafts_become_longer():
    text = controller(flat(0.1), texts=4, maximum=8)
    before = text.choose()
    for _ in range(50):
        text.observe(4, 4, 0.0, 1.0)
    assert before < text.choose() == 8


def test_a_draft_token_less_likely_than_its_price_is_not_verified():
    """A row costs 1.05 * 2 * 0.1 / 1.2 = 0.175 tokens; the draft threshold is 1 / 0.7 of that."""
    found = controller(flat(0.1), texts=2).thresholds
    assert found.verify == pytest.approx(0.175)
    assert found.draft == pytest.approx(0.25)


def test_where_a_row_costs_nothing_all_are_drafted():
    """All tokens are drafted if rows are free: an NPU may compute 16 rows in the time of one."""
    costs = RowCosts(512)
    for rows in (1, 2, 16):
        for _ in range(3):
            costs.add(rows, 1.0)
    assert controller(costs, texts=8, maximum=6).choose() == 6
