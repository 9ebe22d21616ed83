"""Tests of scheduler steps: the tokens that are evaluated, and failures within a step."""

import pytest

from npurt.errors import GrammarError, LayoutError, OutOfPages
from npurt.llm.engine.reuse import MIN_COPIED
from npurt.llm.engine.scheduler import Scheduler
from tests.llm import tiny
from tests.llm.engine.stepping import CYCLE, DENSE, HYBRID, LOOKUP, Steps, alone, cycle, with_times

# --- Pages ----------------------------------------------------------------------------------------


def test_a_text_begins_without_a_prefix_when_no_page_is_free_for_the_copy(opened):
    """A partly shared page is copied, which needs a free page."""
    llm, ids = opened(6), tiny.ids("llama3")
    steps = Steps(llm, prefixes=1)
    steps.add(0, ids[:70], 1)
    steps.finish()
    steps.add(1, ids[1:97], 3)
    rest = [*ids[:70], *ids[5:35]]
    second = steps.add(2, rest, 3)
    for _ in range(3):
        steps.step()  # sequence 1 gets all rows
    assert second.context is not None
    assert second.context.n_tokens == 0
    llm.eval([7] * (64 * llm.model.executor.capacity().free))  # another context takes all pages
    steps.step()
    llm.reset()
    steps.finish()

    assert steps.tokens(1) == alone(tuple(ids[1:97]), 3)
    assert steps.tokens(2) == alone(tuple(rest), 3)
    steps.scheduler.close()


def test_a_text_that_loses_its_pages_needs_none_for_the_step(opened):
    """Only one sequence is preempted, because a preempted one needs no pages for its tokens."""
    llm, ids = opened(9, n_batch=192), tiny.ids("llama3")
    prompt = [7, *ids * 3][:300]
    steps = Steps(llm)
    with_times(steps.scheduler, lambda rows: 1.0)
    steps.add(1, ids[:20])
    youngest = steps.add(2, ids[5:68])  # 63 tokens, one less than a page
    steps.step()
    urgent = steps.add(3, prompt, 3, priority=1)
    steps.step()  # it has 3 of its 5 pages; the youngest sequence has evaluated 64 tokens
    assert (urgent.context.n_tokens, youngest.context.n_tokens) == (190, 64)
    llm.eval([7] * (64 * (llm.model.executor.capacity().free - 1)))
    steps.step()

    assert urgent.context.n_tokens == 300
    assert youngest.context is None
    assert steps.scheduler.counts.preempted == 1
    steps.scheduler.close()


# --- Fairness -------------------------------------------------------------------------------------


def test_drafts_leave_a_row_to_a_prompt(opened):
    """If further rows cost nothing, as on an NPU, drafts could otherwise use all rows of a step."""
    llm, ids = opened(n_batch=8), tiny.ids("llama3")
    steps = Steps(llm, drafts=LOOKUP)
    with_times(steps.scheduler, lambda rows: 1.0)
    for number in (1, 2):
        steps.add(number, CYCLE * 2, 90, logits_processor=cycle)
    while steps.scheduler.counts.accepted < 8:
        steps.step()
    reader = steps.add(3, ids[:40], 3)
    for _ in range(5):
        before = reader.pending
        steps.step()
        assert reader.pending < before
    assert len(steps.scheduler.sequences) == 3
    steps.finish()
    steps.scheduler.close()


def test_a_short_prompt_does_not_wait_for_a_long_one(opened):
    """The short prompt gets half of the rows for prompts, and the long one the other half."""
    llm, ids = opened(), [7, *tiny.ids("llama3") * 4]
    steps = Steps(llm)
    long = steps.add(1, ids[:400], 3)
    steps.step()
    steps.add(2, ids[5:25], 3)
    steps.add(3, ids[3:13], 3)
    similar = steps.add(4, ids[1:200], 3)
    before = long.pending
    assert steps.step().keys() >= {1, 3}
    assert before - long.pending == 16
    assert len(steps.tokens(3)) == 1
    steps.step()
    assert len(steps.tokens(2)) == 1
    assert similar.context.n_tokens == 0
    steps.finish()

    for number, (start, end) in enumerate([(0, 400), (5, 25), (3, 13), (1, 200)], 1):
        assert steps.tokens(number) == alone(tuple(ids[start:end]), 3)
    steps.scheduler.close()


def test_what_a_kept_text_has_makes_a_prompt_short(opened):
    llm, ids = opened(), [7, *tiny.ids("llama3") * 4]
    steps = Steps(llm, prefixes=2)
    steps.add(0, ids[5:250], 1)
    steps.finish()
    steps.add(1, ids[:400], 3)
    steps.step()
    steps.add(2, [*ids[5:250], 9], 3)
    steps.step()

    assert len(steps.tokens(2)) == 1
    steps.finish()
    steps.scheduler.close()


def test_a_short_prompt_waits_for_what_it_shares_with_a_long_one(opened):
    """The shared tokens are evaluated once."""
    llm, ids = opened(), [7, *tiny.ids("llama3") * 4]
    steps = Steps(llm)
    steps.add(1, ids[:400], 3)
    steps.add(2, [*ids[:70], 9], 3)
    steps.finish()

    assert steps.end(2).usage.cached == 70
    assert steps.tokens(2) == alone((*ids[:70], 9), 3)
    steps.scheduler.close()


# --- Failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("same", [100, 50], ids=["choices", "beginnings"])
@pytest.mark.parametrize("model", [DENSE, HYBRID], ids=["dense", "hybrid"])
def test_prompts_that_begin_alike_at_the_same_time_are_read_once(opened, model, same):
    """For recurrent states, a copy is stored where the prompts diverge; no token differs."""
    llm = opened(model=model)
    steps = Steps(llm, sequences=4, prefixes=4)
    ids = tiny.ids(model[0])
    prompts = [(*ids[:same], *ids[same + i : 100 + (i if same < 100 else 0)]) for i in range(4)]
    for number, prompt in enumerate(prompts):
        steps.add(number, prompt, 5)
    steps.finish()
    counts = steps.scheduler.counts
    own = 1 if same == 100 else 100 - same
    slack = 0 if model == HYBRID else MIN_COPIED  # of a part that others read meanwhile
    assert 100 + 3 * own + 4 * 4 <= counts.rows <= 100 + 3 * (own + slack) + 4 * 4
    assert counts.cached == 100 + 3 * 100 + 4 * 4 - counts.rows
    assert [steps.tokens(i) for i in range(4)] == [alone(p, 5, model) for p in prompts]
    steps.scheduler.close()


def test_a_text_reads_by_itself_when_no_copy_could_be_kept_for_it(opened, monkeypatch):
    monkeypatch.setattr("npurt.llm.engine.reuse.Reuse.keep_copy", lambda *arguments: None)
    steps = Steps(opened(model=HYBRID), sequences=2, prefixes=4)
    prompt = tuple(tiny.ids(HYBRID[0])[:100])
    for number in range(2):
        steps.add(number, prompt, 5)
    steps.finish()
    assert steps.scheduler.counts.cached == 0
    assert steps.tokens(0) == steps.tokens(1) == alone(prompt, 5, HYBRID)
    steps.scheduler.close()


def test_tokens_of_a_step_that_failed_after_them_are_told(opened, monkeypatch):
    """Only sequences that have not ended get the error."""
    llm, ids = opened(), tiny.ids("llama3")
    steps = Steps(llm)
    steps.add(1, ids[:9], 2)
    steps.add(2, ids[3:9], 9)
    steps.add(3, ids[4:9], 9)
    steps.step()
    advanced = Scheduler._advanced

    def fails(self, text, event):
        if text.id == 2:
            raise LayoutError("of a mistake", remedy="none")
        return advanced(self, text, event)

    monkeypatch.setattr(Scheduler, "_advanced", fails)
    steps.step()
    monkeypatch.undo()

    assert (steps.end(1).finish, steps.tokens(1)) == ("length", alone(tuple(ids[:9]), 2))
    assert isinstance(steps.end(2).error, LayoutError)
    steps.finish()
    steps.scheduler.close()


@pytest.mark.parametrize("error", [MemoryError(), OutOfPages("no", remedy="none")])
def test_no_memory_for_a_copy_of_states_costs_no_text(opened, monkeypatch, error):
    llm, ids = opened(model=HYBRID), tiny.ids("qwen35")

    wanted = alone(tuple(ids[:70]), 3, HYBRID)

    def fails(self, other):
        raise error

    monkeypatch.setattr("npurt.cpu.state.recurrent.Recurrent.begin_as", fails)
    steps = Steps(llm, prefixes=4)
    for number in (1, 2):
        steps.add(number, ids[:70], 3)
        steps.finish()
        assert steps.tokens(number) == wanted
    steps.scheduler.close()


def test_no_memory_for_a_run_ends_its_texts_and_no_others(opened, monkeypatch):
    llm = opened()
    steps = Steps(llm, sequences=1)
    run, errors = llm.model.executor.run, [MemoryError()]
    monkeypatch.setattr(
        llm.model.executor, "run",
        lambda *a, **k: (_ for _ in ()).throw(errors.pop()) if errors else run(*a, **k),
    )  # fmt: skip
    for number in (1, 2):
        steps.add(number, [1, 2, 3], 3)
    steps.finish()

    assert isinstance(steps.end(1).error, MemoryError)
    assert steps.tokens(2) == alone((1, 2, 3), 3)
    steps.scheduler.close()


# --- Counts ---------------------------------------------------------------------------------------


def test_counts_are_of_requests_however_often_they_are_evaluated(opened):
    """A preempted sequence is not counted as another request."""
    llm, ids = opened(), tiny.ids("llama3")
    steps = Steps(llm, prefixes=4)
    steps.add(1, ids[:70], 3)
    steps.finish()
    second = steps.add(2, [*ids[:70], 9], 6)
    for _ in range(3):
        steps.step()
        steps.scheduler.admission.preempt(second)
    steps.finish()

    counts = steps.scheduler.counts
    assert (counts.hits, counts.misses, counts.cached) == (1, 1, 70)
    assert steps.end(2).usage.cached == 70
    steps.scheduler.close()


def test_tokens_that_were_accepted_are_those_of_the_requests(opened):
    """This also holds for a draft that extends beyond the end of its sequence."""
    llm = opened()
    steps = Steps(llm, drafts=LOOKUP)
    with_times(steps.scheduler, lambda rows: 1.0)
    for number in range(3):
        steps.add(number, CYCLE * 2, 30 + number, logits_processor=cycle)
    steps.add(3, CYCLE * 2, 60, logits_processor=cycle, min_tokens=33, stop=CYCLE[4])
    steps.add(4, CYCLE * 2, 60, logits_processor=cycle, stop=llm.detokenize(CYCLE[3:6]))
    steps.finish()

    usages = [steps.end(number).usage for number in range(5)]
    counts = steps.scheduler.counts
    assert sum(usage.drafted for usage in usages) == counts.drafted > 20
    assert sum(usage.accepted for usage in usages) == counts.accepted > 20
    steps.scheduler.close()


# --- Errors among drafts --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["logits_processor", "stopping_criteria"])
def test_an_error_comes_after_the_tokens_before_it(opened, kind):
    """The tokens were drafted and evaluated in the same step; the function is called once."""
    llm, seen = opened(), []

    def raises(ids, logits):
        seen.append(len(ids))
        if len(ids) == 54:
            raise GrammarError("of the caller", remedy="none")
        return cycle(ids, logits) if kind == "logits_processor" else False

    steps = Steps(llm, drafts=LOOKUP)
    with_times(steps.scheduler, lambda rows: 1.0)
    functions = {"logits_processor": cycle} | {kind: raises}
    steps.add(1, CYCLE * 2, 60, **functions)
    steps.finish()

    assert steps.scheduler.counts.accepted > 10
    assert isinstance(steps.end(1).error, GrammarError)
    assert steps.tokens(1) == (CYCLE * 4)[:34]
    assert seen == list(range(20, 55))
    steps.scheduler.close()
