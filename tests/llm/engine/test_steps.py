"""Tests of scheduler steps: rows, pages, waiting and preemption."""

import numpy as np
import pytest

import npurt
from npurt.llm.decode.options import GenerationRequest
from npurt.llm.engine.costs import RowCosts
from npurt.llm.engine.scheduler import Scheduler
from npurt.llm.engine.sequence import Sequence
from npurt.llm.spec.lookup import Lookup
from npurt.llm.spec.opening import Drafts
from tests.llm import tiny
from tests.llm.engine.stepping import page_bytes

PATH = tiny.path("llama3", "q8_0")
IDS = tiny.ids("llama3")
OPTIONS = {"n_ctx": 320, "n_batch": 48, "n_threads": 2, "progress": False, "verify": "off"}
PAGES = 5
LOOKUP = Drafts(lambda context: Lookup(), 8)


@pytest.fixture(scope="module")
def alone():
    with npurt.Llama(PATH, **OPTIONS) as made:
        yield made


@pytest.fixture(scope="module")
def llm(alone):
    size = PAGES * page_bytes(alone)
    with npurt.Llama(PATH, max_sequences=20, kv_bytes=size, **OPTIONS) as made:
        assert made.model.executor.capacity().total == PAGES
        yield made


@pytest.fixture(scope="module")
def ample():
    with npurt.Llama(PATH, max_sequences=20, **OPTIONS) as made:
        yield made


def begin(llm, texts=8, prefixes=0, drafts=None):
    return Scheduler(llm.model, sequences=texts, prefixes=prefixes, drafts=drafts)


def text(llm, number, prompt, count=8, **options):
    settings = {"temperature": 0, "ignore_eos": True, "max_tokens": count}
    return Sequence(
        number, list(prompt), GenerationRequest.of(settings, None), llm.tokenizer, **options
    )


def finished(scheduler):
    """Step until all sequences have ended; return the tokens of each."""
    tokens = {}
    while scheduler.sequences:
        for event in scheduler.step():
            tokens.setdefault(event.id, []).extend(event.tokens)
    return tokens


def wanted(alone, prompt, count):
    alone.reset()
    alone.generate(list(prompt), max_tokens=count, temperature=0, ignore_eos=True)
    return list(alone.history[len(prompt) :])


def rows_of_step(scheduler, monkeypatch):
    """Run a step; return its number of rows for each sequence."""
    found, run = {}, scheduler._model.executor.run

    def counting(values, rows, out):
        sequences, counts = np.unique(rows.sequences, return_counts=True)
        found.update(zip(sequences.tolist(), counts.tolist(), strict=True))
        return run(values, rows, out)

    with monkeypatch.context() as patch:
        patch.setattr(scheduler._model.executor, "run", counting)
        scheduler.step()
    return found


# --- Rows -----------------------------------------------------------------------------------------


def test_a_lone_prompt_has_all_rows_of_a_run(ample, monkeypatch):
    scheduler = begin(ample)
    scheduler.submit(text(ample, 1, IDS[:100]))
    assert [sum(rows_of_step(scheduler, monkeypatch).values()) for _ in range(4)] == [48, 48, 4, 1]
    scheduler.close()


def test_short_prompts_share_a_step(ample, monkeypatch):
    scheduler = begin(ample)
    for number in range(3):
        scheduler.submit(text(ample, number, IDS[number : number + 10]))
    assert sorted(rows_of_step(scheduler, monkeypatch).values()) == [10, 10, 10]
    assert sorted(rows_of_step(scheduler, monkeypatch).values()) == [1, 1, 1]
    scheduler.close()


def test_a_prompt_slows_a_step_down_by_2_5_at_most(ample, monkeypatch):
    """Where a row costs 1 beside 6 of the step: 8 for 2 texts, and 20 of 2.5 times that."""
    costs = RowCosts(48)
    for rows in (1, 2, 3, 4, 8, 16, 32, 48):
        for _ in range(3):
            costs.add(rows, 6 + rows)
    monkeypatch.setattr(costs, "add", lambda rows, seconds: None)
    scheduler = begin(ample)
    scheduler._costs = costs
    for number in range(2):
        scheduler.submit(text(ample, number, [1 + number], 60))
    rows_of_step(scheduler, monkeypatch)
    scheduler.submit(text(ample, 2, IDS[:120]))

    rows = [sorted(rows_of_step(scheduler, monkeypatch).values()) for _ in range(3)]

    assert all(each[:2] == [1, 1] for each in rows)
    assert all(4 <= each[2] <= 12 for each in rows)
    assert costs.seconds(sum(rows[0])) <= 2.5 * costs.seconds(2)
    scheduler.close()


def test_no_text_waits_while_others_go_on(ample):
    """Each has a token in each step, from its first one on, while long prompts are read."""
    scheduler = begin(ample, drafts=LOOKUP)
    seen, steps = {}, 0
    for number in range(8):
        scheduler.submit(text(ample, number, IDS[number : number + 150 * (number % 2) + 4], 30))
    while scheduler.sequences:
        steps += 1
        for event in scheduler.step():
            if event.tokens:
                last = seen.get(event.id, steps - 1)
                assert steps - last <= 2
                seen[event.id] = steps
    assert len(seen) == 8


# --- Pages ----------------------------------------------------------------------------------------


def test_when_pages_run_out_the_youngest_gives_way_and_nothing_shows(llm, alone):
    """Four sequences of 60 and 75 tokens need 3 pages each; there are 5 pages."""
    scheduler = begin(llm)
    prompts = [IDS[i : i + 60] for i in range(4)]
    for number, prompt in enumerate(prompts):
        scheduler.submit(text(llm, number, prompt, 75))
    tokens, ends, first = {}, [], None
    while scheduler.sequences:
        before = list(scheduler.admission.running)
        events = scheduler.step()
        if scheduler.counts.preempted and first is None:
            first = before[-1] not in scheduler.admission.running
        for event in events:
            tokens.setdefault(event.id, []).extend(event.tokens)
            ends += [event.id] if event.finish else []

    assert scheduler.counts.preempted > 0
    assert first, "the youngest did not give way"
    assert ends[0] == 0
    for number, prompt in enumerate(prompts):
        assert tokens[number][:-1] == wanted(alone, prompt, 75)[: len(tokens[number]) - 1]
        assert len(tokens[number]) == 75
    assert llm.model.executor.capacity().free == PAGES


def test_a_text_begins_when_its_pages_and_one_more_are_free(llm):
    scheduler = begin(llm)
    for number, length in enumerate((64, 128, 128)):
        scheduler.submit(text(llm, number, IDS[number : number + length]))
    scheduler.step()
    # The first two sequences have 3 pages.  The third needs 2, and one more must be free.
    assert [each.id for each in scheduler.admission.running] == [0, 1]
    assert len(scheduler.admission.waiting) == 1
    assert set(finished(scheduler)) == {0, 1, 2}


def test_cancelling_frees_pages_at_once(llm):
    scheduler, capacity = begin(llm), llm.model.executor.capacity
    long = text(llm, 1, IDS[:130], 50)
    scheduler.submit(long)
    for _ in range(4):
        scheduler.step()
    assert capacity().free == PAGES - 3
    event = scheduler.cancel(long)
    assert (capacity().free, event.finish) == (PAGES, "cancelled")
    assert scheduler.cancel(long) is None
    assert scheduler.step() == []


def test_kept_texts_give_way_to_running_ones(llm):
    scheduler = begin(llm, prefixes=8)
    for number in range(4):
        scheduler.submit(text(llm, number, [number, *IDS[:70]], 2))
    finished(scheduler)
    assert scheduler.stats().prefixes == 2  # prefixes of two pages each
    scheduler.submit(text(llm, 9, [9, *IDS[:200]], 2))
    finished(scheduler)
    assert scheduler.stats().prefixes == 1
    scheduler.close()
    assert llm.model.executor.capacity().free == PAGES


def test_texts_that_begin_alike_share_pages(llm, alone):
    """Six sequences of 130 tokens need 18 pages separately, and 2 + 6 with shared pages."""
    size = 9 * page_bytes(alone)
    with npurt.Llama(PATH, max_sequences=20, kv_bytes=size, **OPTIONS) as shared:
        scheduler = begin(shared)
        for number in range(6):
            scheduler.submit(text(shared, number, [*IDS[:128], number, 7], 3))
        tokens = finished(scheduler)
        assert scheduler.counts.preempted == 0
        # One sequence began while the first prompt was evaluated.
        assert scheduler.counts.cached >= 4 * 128
        assert scheduler.counts.steps <= 3 + 3 + 3  # later steps have all sequences
    for number in range(6):
        assert tokens[number][:2] == wanted(alone, [*IDS[:128], number, 7], 3)[:2]


def test_a_text_that_fills_all_pages_ends(llm, alone):
    scheduler = begin(llm)
    assert scheduler.longest == PAGES * 64
    scheduler.submit(text(llm, 1, IDS[:140], 400))
    events = []
    while scheduler.sequences:
        events += scheduler.step()
    tokens = [token for event in events for token in event.tokens]
    assert events[-1].finish == "context"
    assert len(tokens) == PAGES * 64 - 140 + 1
    assert tokens[:-1] == wanted(alone, IDS[:140], 400)[: len(tokens) - 1]


def test_a_priority_comes_before_age(llm):
    scheduler = begin(llm, texts=1)
    for number, priority in ((0, 0), (1, 0), (2, 1)):
        scheduler.submit(text(llm, number, [1, number], 1, priority=priority))
    ends = []
    while scheduler.sequences:
        ends += [event.id for event in scheduler.step() if event.finish]
    assert ends == [2, 0, 1]


def test_a_deadline_ends_a_text_that_waits_or_runs(llm):
    scheduler = begin(llm, texts=1)
    for number in range(2):
        scheduler.submit(text(llm, number, [1, number], 50))
    scheduler.step()
    for each in scheduler.sequences:
        each.deadline = 0.0
    ended = [(event.id, event.finish) for event in scheduler.step()]
    assert ended == [(0, "deadline"), (1, "deadline")]
    assert not scheduler.sequences
    assert llm.model.executor.capacity().free == PAGES


def test_a_text_that_cannot_have_a_page_ends_with_an_error(llm):
    """Another context holds all pages; sequences that come later are served."""
    llm.eval([1] * 64 * (PAGES - 1))
    scheduler = begin(llm)
    scheduler.submit(text(llm, 1, IDS[:130], 50))
    scheduler.submit(text(llm, 2, IDS[:10], 3))
    events = []
    while scheduler.sequences:
        events += scheduler.step()
    llm.reset()
    assert [(event.id, event.finish) for event in events if event.finish] == [
        (1, "error"),
        (2, "length"),
    ]
    assert next(event.error for event in events if event.error).remedy
    assert llm.model.executor.capacity().free == PAGES
