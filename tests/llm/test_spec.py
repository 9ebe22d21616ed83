"""Tests of speculative decoding: any draft gives the tokens of plain decoding."""

import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npurt
from npurt.errors import DeviceNotFound, ModelFormatError, SettingError
from npurt.llm.spec.assistant import Assistant
from npurt.llm.spec.controller import Controller, Thresholds
from npurt.llm.spec.drafter import Drafter
from npurt.llm.spec.lookup import Lookup
from npurt.llm.spec.speculator import Speculator
from tests.llm import tiny
from tests.llm.conftest import drafted

PROMPT = tiny.ids(count=12)


class Oracle(Drafter):
    """Draft from a given sequence, with wrong tokens at chosen positions."""

    name = "oracle"

    def __init__(self, text, wrong=lambda position: False):
        self._text, self._wrong = text, wrong

    def draft(self, history, maximum):
        after = self._text[len(history) : len(history) + maximum]
        for i, token in enumerate(after):
            yield ((token + 1) % 600 if self._wrong(len(history) + i) else token), 1.0


@pytest.fixture(scope="module")
def llm():
    with npurt.Llama(tiny.path(), n_ctx=128, n_threads=2, progress=False) as llm:
        yield llm


def tokens(llm, prompt=PROMPT, *, speculator=None, count=40, temperature=0.0, seed=1):
    """Generate from an empty cache; return the ids of the prompt and of the generated tokens."""
    llm.reset()
    llm.speculator = speculator
    llm.generate(prompt, max_tokens=count, temperature=temperature, seed=seed, top_k=50)
    llm.speculator = None
    return list(llm.history)  # the last token is never evaluated


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@settings(max_examples=15)
@given(maximum=st.integers(1, 8), wrong=st.sets(st.integers(12, 60)), count=st.integers(1, 40))
def test_the_text_is_that_of_plain_decoding_with_any_draft(llm, temperature, maximum, wrong, count):
    plain = tokens(llm, temperature=temperature, count=count)
    text = tokens(llm, temperature=temperature, count=48)
    speculator = Speculator(Oracle(text, wrong.__contains__), maximum, fixed=True)

    again = tokens(llm, temperature=temperature, count=count, speculator=speculator)

    assert again == plain


@pytest.mark.parametrize(
    ("chances", "maximum", "made", "asked"),
    [
        ([1, 1, 1, 1], 3, 3, 3),
        ([0.9, 0.9, 0.9], 8, 2, 2),  # 0.81 is too low to draw another token
        ([0.9, 0.2, 1], 8, 1, 2),  # 0.18 is too low to verify the second token
        ([0.2, 1, 1], 8, 0, 1),
        ([0.5, 1, 1], 8, 1, 1),
        ([1, 1], 8, 2, 2),
        ([], 8, 0, 0),
    ],
)
def test_draft_tokens_end_where_they_are_not_worth_their_time(chances, maximum, made, asked):
    """Another is drawn from 0.85 on, one that was drawn is checked from 0.25 on."""
    seen = []

    class Certain(Oracle):
        def draft(self, history, maximum):
            for token, chance in enumerate(chances[:maximum]):
                seen.append(token)
                yield token, chance

    speculator = Speculator(Certain([]), 8)
    speculator.controller = SimpleNamespace(thresholds=Thresholds(draft=0.85, verify=0.25))

    assert speculator._draft([1], maximum, None) == (list(range(made)), asked)
    assert len(seen) == asked


def test_a_draft_token_that_was_drawn_in_vain_is_accounted_for(llm):
    """The controller counts the token although it was not verified."""
    heard = []

    class Doubtful(Oracle):
        def draft(self, history, maximum):
            yield 5, 0.1

    class Listening(Controller):
        thresholds = Thresholds(draft=0.85, verify=0.25)

        def observe(self, proposed, *times, drawn, **others):
            heard.append((proposed, drawn))

    speculator = Speculator(Doubtful([]), 4)
    speculator.controller = Listening(4, fixed=True)
    tokens(llm, count=4, speculator=speculator)

    assert heard == [(0, 1)] * 2 + [(0, 0)]  # the last token leaves no position for a draft token


def test_right_draft_tokens_are_all_taken_and_save_passes(llm):
    text = tokens(llm, count=42)
    speculator = Speculator(Oracle(text), 4, fixed=True)

    tokens(llm, count=41, speculator=speculator)

    said = speculator.controller.speculation
    assert said.drafted == said.accepted == 32
    assert said.passes == 8  # the prompt gives the first token, and each pass five more
    assert said.mean_accepted == 5


def test_what_is_left_in_the_cache_is_what_plain_decoding_leaves(llm):
    tokens(llm, count=20)
    plain = llm.eval([5, 6]).copy()
    text = tokens(llm, count=40)
    speculator = Speculator(Oracle(text, lambda position: position % 3 == 0), 6, fixed=True)

    tokens(llm, count=20, speculator=speculator)

    np.testing.assert_array_equal(llm.eval([5, 6]), plain)


def test_draft_tokens_stop_at_the_end_of_the_context(llm):
    prompt = PROMPT + tiny.ids(count=100)
    plain = tokens(llm, prompt, count=None)
    assert len(plain) == 128
    speculator = Speculator(Oracle([*plain, *[1] * 20]), 8, fixed=True)

    assert tokens(llm, prompt, count=None, speculator=speculator) == plain
    assert llm.timing.finish == "context"


def test_nothing_follows_a_drafted_end(llm):
    text = tokens(llm, count=20)
    end = next(iter(llm.tokenizer.eog))
    speculator = Speculator(Oracle([*text[:15], end, 1, 2, 3, 4, 5]), 8, fixed=True)

    assert tokens(llm, count=20, speculator=speculator) == text


def test_sampled_tokens_have_the_models_distribution(llm):
    """Frequencies of 1500 continuations of two tokens agree with the exact probabilities.

    The bound is that of Bretagnolle, Huber and Carol.  For n samples over k outcomes, the sum of
    absolute differences from the true distribution exceeds e with a probability of at most
    2^k exp(-n e^2 / 2), which is 10^-9 here.
    """
    n, kept = 1500, 4
    likely = tokens(llm, count=6)
    counts = Counter()
    for seed in range(n):
        llm.reset()
        llm.speculator = Speculator(Oracle(likely), 2, fixed=True)
        llm.generate(PROMPT, max_tokens=3, temperature=0.7, seed=seed, top_k=kept, top_p=1, min_p=0)
        counts[llm.history[-2:]] += 1
    llm.speculator = None

    wanted = {}
    for first, p in distribution(llm, PROMPT, kept).items():
        for second, q in distribution(llm, [*PROMPT, first], kept).items():
            wanted[first, second] = p * q
    assert set(counts) <= set(wanted)
    apart = sum(abs(counts[pair] / n - p) for pair, p in wanted.items())
    assert apart <= math.sqrt(2 * (len(wanted) * math.log(2) + math.log(1e9)) / n)


def distribution(llm, prompt, kept):
    """Return the probabilities of the *kept* likeliest tokens at temperature 0.7."""
    llm.reset()
    logits = llm.eval_last(prompt).astype(np.float64)
    logits[list(llm.tokenizer.never_sampled)] = -np.inf
    best = np.argsort(-logits)[:kept]
    weights = np.exp((logits[best] - logits[best[0]]) / 0.7)
    return dict(zip(best.tolist(), (weights / weights.sum()).tolist(), strict=True))


# --- Drafters ---------------------------------------------------------------------------------


def naive(history, longest, shortest, maximum):
    """Draft the tokens after the latest earlier occurrence of the longest suffix.

    Draft at most as many tokens as are equal before that occurrence and at the end of *history*.
    """
    for length in range(longest, shortest - 1, -1):
        if length > len(history):
            continue
        for end in range(len(history) - 1, length - 1, -1):
            if history[end - length : end] == history[-length:]:
                equal = [n for n in range(1, end + 1) if history[end - n : end] == history[-n:]]
                return history[end : end + min(maximum, max(equal))]
    return []


@given(
    history=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    grow=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    maximum=st.integers(1, 6),
)
def test_lookup_finds_what_a_search_finds(history, grow, maximum):
    lookup = Lookup(3, 1)
    for start in np.cumsum(grow).tolist():
        part = history[:start]

        assert drafted(lookup, part, maximum) == naive(part, 3, 1, maximum)


def test_lookup_forgets_a_text_that_is_gone():
    lookup = Lookup()
    assert drafted(lookup, [1, 2, 3, 4, 1, 2], 3) == [3, 4]

    assert drafted(lookup, [1, 2, 5, 6, 1, 2], 2) == [5, 6]
    assert drafted(lookup, [7, 8, 9], 2) == []


def test_a_draft_model_is_taken_from_a_file_and_changes_nothing(llm):
    plain = tokens(llm, count=40)
    with npurt.Llama(
        tiny.path(), n_ctx=128, n_threads=2, progress=False, draft=tiny.path(kind="q8_0")
    ) as both:
        both.speculator.controller = Controller(4, fixed=True)
        again = tokens(both, count=40, speculator=both.speculator)
        first = both.report()

    assert again == plain
    assert "speculation: " in str(first)


def test_what_a_draft_model_computes_is_in_the_report():
    """The draft runs on the CPU, and the report counts its multiply-adds, too."""
    options = {"n_ctx": 128, "n_threads": 2, "progress": False, "draft": tiny.path(kind="q8_0")}
    with npurt.Llama(tiny.path(kind="q8_0"), "hexagon:sim", **options) as both:
        both.speculator.controller = Controller(4, fixed=True)
        tokens(both, count=9, speculator=both.speculator)
        report = both.report()

    passes = {row.op: row.rows for row in report.rows if row.tensor == "blk.0.ffn_down"}
    assert passes.keys() == {"ffn_down", "draft_ffn_down"}
    assert passes["draft_ffn_down"] >= len(PROMPT)
    devices = {row.actual for row in report.rows if row.macs and row.op.startswith("draft_")}
    assert devices == {"cpu"}
    assert "of MACs on cpu" in report.line()
    assert "of MACs on hexagon:sim" in report.line()


@pytest.mark.parametrize("device", ["hexagon:sim", "rknpu:sim"])
def test_a_draft_model_may_run_on_a_device_of_its_own(llm, device):
    plain = tokens(llm, count=20)
    options = {"n_ctx": 128, "n_threads": 2, "progress": False, "draft": tiny.path(kind="q8_0")}
    with npurt.Llama(tiny.path(), "cpu", draft_device=device, **options) as both:
        both.speculator.controller = Controller(4, fixed=True)
        again = tokens(both, count=20, speculator=both.speculator)
        report = both.report()

    ran = {row.op: row.actual for row in report.rows if row.tensor == "blk.0.ffn_down"}
    assert again == plain
    assert ran == {"ffn_down": "cpu", "draft_ffn_down": device}


def test_lookup_runs_nowhere_but_on_the_host():
    with pytest.raises(SettingError, match="lookup cannot draft on rknpu:sim"):
        npurt.Llama(tiny.path(), draft="lookup", draft_device="rknpu:sim", progress=False)


def test_a_device_that_is_none_is_refused():
    with pytest.raises(DeviceNotFound, match="elsewhere"):
        npurt.Llama(tiny.path(), draft=tiny.path(), draft_device="elsewhere", progress=False)


def read_by_draft(report):
    return sum(row.rows for row in report.rows if row.op == "draft_ffn_down")


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_draft_model_that_never_drafts_reads_nothing(llm, temperature):
    """A generation of four tokens ends before any draft is tried."""
    prompt = tiny.ids(count=60)
    plain = tokens(llm, prompt, count=4, temperature=temperature)
    options = {"n_ctx": 128, "n_threads": 2, "progress": False, "draft": tiny.path(kind="q8_0")}
    with npurt.Llama(tiny.path(), **options) as both:
        speculator = both.speculator
        again = tokens(both, prompt, count=4, temperature=temperature, speculator=speculator)

        assert again == plain
        assert read_by_draft(both.report()) == 0
        assert both.timing.speculation.figures()["drafted"] == 0


def test_a_draft_model_reads_a_prompt_once(llm):
    with npurt.Llama(tiny.path(kind="q8_0"), n_ctx=128, n_threads=2, progress=False) as small:
        drafter = Assistant(small.context, llm.model)
        history = tiny.ids(count=40)

        assert drafter.behind(history) == 39
        drafter.prepare(history, len(history))
        # Few tokens are evaluated together with the last one.
        assert drafter.behind([*history, 1]) == 0
        assert drafter.behind([*history, *[1] * 20]) == 20
        drafter.forget()
        assert drafter.behind(history) == 39
        # The sequence exceeds the context of the draft model.
        assert drafter.behind(tiny.ids(count=100) + history) == 0


def test_each_generation_says_how_drafting_went(llm):
    text = tokens(llm, count=42)
    speculator = Speculator(Oracle(text), 4, fixed=True)
    tokens(llm, count=41, speculator=speculator)
    first = llm.timing.speculation
    tokens(llm, count=6, speculator=speculator)

    assert (first.drafted, first.accepted, first.passes, first.mean_accepted) == (32, 32, 8, 5)
    assert llm.timing.speculation.passes == 1
    assert speculator.controller.speculation.passes == 9
    tokens(llm, count=6)
    assert llm.timing.speculation is None


@pytest.mark.parametrize(("count", "expected"), [(7, 7), (500, 116), (None, None)])
def test_no_more_is_expected_of_a_text_than_its_context_holds(llm, monkeypatch, count, expected):
    said = []
    begin = Controller.begin
    monkeypatch.setattr(
        Controller, "begin", lambda self, *a: (said.append(a[0]), begin(self, *a))[1]
    )

    tokens(llm, count=count, speculator=Speculator(Oracle([]), 4))

    assert said == [expected]


@pytest.mark.parametrize("said", [{"draft_max": 4}, {"draft_device": "cpu"}])
def test_what_is_said_of_a_draft_without_one_is_refused(said):
    with pytest.raises(SettingError, match=f"{next(iter(said))} is .*there is no draft"):
        npurt.Llama(tiny.path(), **said)


def test_a_draft_model_drafts_what_it_would_write(llm):
    with npurt.Llama(tiny.path(kind="q8_0"), n_ctx=128, n_threads=2, progress=False) as small:
        own = tokens(small, count=12)
        drafter = Assistant(small.context, llm.model)

        assert drafted(drafter, PROMPT, 5) == own[12:17]
        assert drafted(drafter, own[:14], 4) == own[14:18]
        assert drafted(drafter, [*PROMPT, 7], 3) != own[13:16] or own[12] == 7
        assert drafted(drafter, PROMPT, 5) == own[12:17]


def test_a_draft_model_with_other_tokens_is_refused(llm, tmp_path):
    file = tiny.read(tiny.path(kind="q8_0"))
    keys = [
        (name, kind, (value[0], [*value[1][:599], "other", *value[1][600:]]))
        if name == "tokenizer.ggml.tokens"
        else (name, kind, value)
        for name, kind, value in file.keys
    ]
    wrong = tiny.write(file.but(keys=keys), tmp_path)

    with pytest.raises(ModelFormatError, match="token 599 differs: 'other'"):
        npurt.Llama(tiny.path(), n_ctx=64, progress=False, draft=wrong)


@pytest.mark.parametrize("maximum", [0, -1, 64, 512])
def test_numbers_of_draft_tokens_that_make_no_sense_are_refused(maximum):
    with pytest.raises(SettingError, match="drafted at once") as caught:
        npurt.Llama(tiny.path(), n_ctx=64, progress=False, draft="lookup", draft_max=maximum)
    assert "1 to 63" in caught.value.remedy


@pytest.mark.parametrize("limits", [{"n_batch": 2}, {"n_ctx": 2}])
def test_draft_tokens_are_no_more_than_a_batch_holds_unless_that_is_asked_for(limits):
    options = {"n_ctx": 64, "progress": False, "draft": "lookup"} | limits
    with npurt.Llama(tiny.path(), **options) as llm:
        assert llm.speculator is not None
    with pytest.raises(SettingError, match="2 tokens cannot be drafted at once"):
        npurt.Llama(tiny.path(), draft_max=2, **options)


@pytest.mark.parametrize("limits", [{"n_batch": 1}, {"n_ctx": 1}])
def test_a_draft_for_a_model_that_takes_one_token_at_a_time_is_refused(limits):
    options = {"n_ctx": 64, "progress": False, "draft": "lookup"} | limits
    with pytest.raises(SettingError, match="one token in a run"):
        npurt.Llama(tiny.path(), **options)


def test_lengths_that_make_no_sense_are_refused():
    with pytest.raises(SettingError):
        Lookup(2, 3)
