"""Tests of drafts in an engine: it drafts as `Llama` does, and drafts change no text."""

import functools
import gc
import weakref

import pytest

import npurt
from npurt.errors import OutOfPages, SettingError
from npurt.llm.decode.options import GenerationRequest
from npurt.llm.engine.controller import BatchController
from npurt.llm.engine.scheduler import Scheduler
from npurt.llm.engine.sequence import Sequence
from npurt.llm.session.context import Context
from npurt.llm.spec.controller import Thresholds
from tests.llm import tiny
from tests.llm.engine.test_steps import finished

FOLDER = tiny.MODELS / "spec"
TARGET = FOLDER / "spec-target-qwen3-q8_0.gguf"
TARGETS = {"attention": TARGET, "hybrid": tiny.path("qwen35", "q8_0")}  # of the same width
KINDS = {
    "lookup": "lookup",
    "model": FOLDER / "spec-draft-qwen3-q8_0.gguf",
    "dflash": FOLDER / "spec-dflash-qwen3-q8_0.gguf",
}
PAIRS = [  # not (model, hybrid), whose vocabularies differ
    ("lookup", "attention"), ("model", "attention"), ("dflash", "attention"), ("lookup", "hybrid"),
    ("dflash", "hybrid"),
]  # fmt: skip
OPTIONS = {"n_ctx": 160, "n_batch": 32, "n_threads": 2, "progress": False, "verify": "off"}
SAMPLINGS = (
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 40, "seed": 7},
    {"temperature": 1.5, "top_k": 0, "seed": 3},
)
IDS = tiny.ids("qwen3")
PROMPTS = [IDS[:20], IDS[:70], IDS[5:45], [*IDS[:9], 3, 4, 5, 3, 4, 5, 3, 4]]
COUNT = 24


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """Draft four tokens in each step, because measured costs depend on the machine."""
    monkeypatch.setattr(BatchController, "choose", lambda self, behind=0: 4)
    monkeypatch.setattr(BatchController, "thresholds", Thresholds())
    monkeypatch.setattr(BatchController, "reading", lambda self, behind: behind)


def asked(number, count=COUNT):
    settings = SAMPLINGS[number % len(SAMPLINGS)]
    return GenerationRequest.of(settings | {"max_tokens": count, "ignore_eos": True}, None)


@functools.cache
def plain(path):
    """Return the tokens that follow each prompt, without drafts."""
    with npurt.Llama(path, **OPTIONS) as llm:
        found = {}
        for number, prompt in enumerate(PROMPTS):
            llm.reset()
            options = SAMPLINGS[number % len(SAMPLINGS)]
            llm.generate(prompt, max_tokens=COUNT + 1, ignore_eos=True, **options)
            found[number] = list(llm.history[len(prompt) :])
        return found


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def pair(request):
    kind, target = request.param
    return KINDS[kind], TARGETS[target]


@pytest.fixture
def alone(pair):
    return plain(pair[1])


@pytest.fixture(scope="module")
def llm(pair):
    draft, path = pair
    with npurt.Llama(path, draft=draft, max_sequences=12, **OPTIONS) as made:
        yield made


def begin(llm, texts=4, prefixes=0):
    return Scheduler(
        llm.model, sequences=texts, prefixes=prefixes, drafts=llm.generator.drafts
    )  # fmt: skip


def submitted(scheduler, llm, count=COUNT):
    texts = []
    for number, prompt in enumerate(PROMPTS):
        texts.append(Sequence(number, list(prompt), asked(number, count), llm.tokenizer))
        scheduler.submit(texts[-1])
    return texts


def free_sequences(llm):
    """Return the number of free sequences of the draft model; None if there is no such model."""
    drafter = llm.speculator.drafter
    return len(drafter._draft.model._free) if hasattr(drafter, "_draft") else None


def test_each_text_is_what_it_is_without_drafts(llm, alone):
    scheduler = begin(llm)
    submitted(scheduler, llm)
    assert finished(scheduler) == alone
    assert scheduler.counts.drafted > 10
    if llm.path == TARGET and llm.speculator.drafter.name != "lookup":  # both were trained together
        assert scheduler.counts.accepted > 0


def test_a_stop_text_within_a_draft_ends_the_text_and_is_taken_back(llm, alone):
    """The cached prefix has the tokens that plain decoding evaluates: all but the last."""
    scheduler = begin(llm, prefixes=4)
    ended = {}
    for number, prompt in enumerate(PROMPTS):
        stop = alone[number][10]
        first = alone[number].index(stop)
        settings = SAMPLINGS[number % 3] | {"max_tokens": COUNT, "stop": stop, "ignore_eos": True}
        request = GenerationRequest.of(settings, None)
        scheduler.submit(Sequence(number, list(prompt), request, llm.tokenizer))
        ended[number] = alone[number][:first]
    texts = scheduler.sequences
    assert finished(scheduler) == ended
    kept = [entry for text in texts if (entry := scheduler.prefixes.has(text.history, ""))]
    assert len(kept) == len(texts)
    scheduler.close()


def test_texts_that_lose_their_pages_or_are_cancelled_release_their_drafts(llm, alone):
    before = free_sequences(llm)
    scheduler = begin(llm)
    texts = submitted(scheduler, llm)
    tokens = {}

    def steps(count):
        for _ in range(count):
            for event in scheduler.step():
                tokens.setdefault(event.id, []).extend(event.tokens)

    steps(5)
    scheduler.admission.preempt(texts[1])
    assert texts[1].speculator is None
    steps(2)
    scheduler.cancel(texts[2])
    assert texts[2].speculator is None
    scheduler.admission.preempt(texts[0])
    while scheduler.sequences:
        steps(1)

    assert tokens[2] == alone[2][: len(tokens[2])]
    assert {n: tokens[n] for n in (0, 1, 3)} == {n: alone[n] for n in (0, 1, 3)}
    assert not any(text.speculator or text.context for text in texts)
    assert free_sequences(llm) == before


def test_the_memory_of_a_draft_goes_with_its_text(llm):
    scheduler = begin(llm, prefixes=4)
    texts = submitted(scheduler, llm, 6)
    scheduler.step()
    drafters = [weakref.ref(text.speculator.drafter) for text in texts]
    captured = llm.context.hidden_states is not None
    states = [weakref.ref(text.context.hidden_states) for text in texts if captured]
    finished(scheduler)
    gc.collect()
    assert [each() for each in (*drafters, *states) if each()] == []
    scheduler.close()


def test_a_text_after_a_kept_prefix_is_the_same(llm, alone):
    scheduler = begin(llm, prefixes=4)
    submitted(scheduler, llm)
    assert finished(scheduler) == alone
    submitted(scheduler, llm)
    assert finished(scheduler) == alone
    assert scheduler.counts.cached > 0 or llm.model.executor.recurrent
    scheduler.close()


def test_a_text_whose_draft_fails_goes_on_without(llm, alone, monkeypatch):
    scheduler = begin(llm)
    texts = submitted(scheduler, llm)
    for _ in range(3):
        scheduler.step()
    done = {text.id: text.generated for text in texts}

    def fail(history, maximum):
        raise OutOfPages("no page is free", remedy="none")

    monkeypatch.setattr(texts[0].speculator.drafter, "draft", fail)
    tokens = finished(scheduler)

    assert tokens == {n: alone[n][done[n] :] for n in alone}
    assert "a sequence continues without drafts: no page is free" in "".join(llm.model.ledger.notes)


def test_a_text_begins_without_a_draft_when_there_is_no_memory_for_one(llm, alone, monkeypatch):
    scheduler = begin(llm)

    def fail(context):
        raise MemoryError

    monkeypatch.setattr(llm.generator.drafts, "_make", fail)
    submitted(scheduler, llm)

    assert finished(scheduler) == alone
    assert "a sequence continues without drafts: MemoryError" in "".join(llm.model.ledger.notes)


def test_an_engine_opens_the_drafts_of_llama(pair, alone):
    draft, path = pair
    with npurt.Engine(path, draft=draft, draft_max=5, max_sequences=4, **OPTIONS) as engine:
        requests = [
            engine.submit(prompt, SAMPLINGS[n % 3], max_tokens=COUNT, ignore_eos=True)
            for n, prompt in enumerate(PROMPTS)
        ]
        results = [request.result() for request in requests]
    assert {n: list(result.tokens) for n, result in enumerate(results)} == alone
    drafted = sum(result.usage.drafted for result in results)
    assert drafted > 10
    assert f"speculation: {drafted} drafted" in "".join(engine.llm.report().notes)


def test_an_open_model_needs_a_draft_of_its_own(llm):
    with npurt.Engine(llm, max_sequences=3) as engine:
        request = engine.submit(PROMPTS[3], temperature=0, max_tokens=9, ignore_eos=True)
        assert request.result().usage.drafted > 0
    with pytest.raises(SettingError, match="max_sequences"):
        npurt.Engine(llm, max_sequences=3, draft_max=2)
    with npurt.Llama(TARGET, max_sequences=12, **OPTIONS) as plain:
        with pytest.raises(SettingError, match="open already"):
            npurt.Engine(plain, max_sequences=3, draft=KINDS["model"])
        Context(plain.model).release()  # the model is not in use
