"""Tests of options of a generation: ends, functions, biases, drafts, logprobs, several results."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest

from npurt.errors import LayoutError, SettingError
from npurt.llm.decode.samplers.breakers import breakers_of
from npurt.llm.decode.samplers.settings import CHECKS, DEFAULTS, Sampling
from npurt.llm.spec.controller import Controller
from tests.llm import tiny
from tests.llm.conftest import GREEDY, PROMPT, fresh, open_tiny

CREATIVE = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 4}


def ids_of(llm, **options):
    """Generate 12 tokens or fewer; return their ids, including the last one."""
    fresh(llm, max_tokens=12, logprobs=True, **options)
    return [each.token for each in llm.timing.logprobs]


# --- Ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("several", [False, True])
def test_a_stop_id_ends_the_text_and_is_no_part_of_it(llm, several):
    whole = ids_of(llm, **GREEDY)
    end = next(i for i in range(3, 12) if whole[i] not in whole[:i])
    stop = [np.int64(whole[end]), "no such text"] if several else whole[end]

    assert ids_of(llm, stop=stop, **GREEDY) == whole[:end]
    assert llm.timing.finish == "stop"
    assert llm.timing.generated_tokens == end + 1


def test_no_end_token_is_sampled_before_min_tokens_and_none_with_ignore_eos(llm):
    ends = llm.tokenizer.eog
    bias = dict.fromkeys(ends, 1e6)
    options = {"max_tokens": 12, "logit_bias": bias, **CREATIVE}

    fresh(llm, **options)
    assert (llm.timing.finish, llm.timing.generated_tokens) == ("end", 1)
    fresh(llm, min_tokens=5, **options)
    assert (llm.timing.finish, llm.timing.generated_tokens) == ("end", 6)
    fresh(llm, ignore_eos=True, **options)
    assert (llm.timing.finish, llm.timing.generated_tokens) == ("length", 12)


def test_a_stop_id_is_not_sampled_before_min_tokens(llm):
    fresh(llm, max_tokens=12, min_tokens=4, stop=7, logit_bias={7: 1e6}, **GREEDY)

    assert (llm.timing.finish, llm.timing.generated_tokens) == ("stop", 5)


def test_stopping_criteria_end_a_text(llm):
    whole = ids_of(llm, **CREATIVE)
    limit = len(PROMPT) + 5
    criteria = [lambda *_: False, lambda ids, logits: len(ids) == limit and len(logits) > 0]

    assert ids_of(llm, stopping_criteria=criteria, **CREATIVE) == whole[:5]
    assert llm.timing.finish == "end"


# --- Functions and biases -------------------------------------------------------------------------


def test_a_logits_processor_decides(llm):
    word = [llm.tokenize(letter, add_bos=False)[0] for letter in "abc"]

    def spell(ids, scores):
        scores[word[len(ids) - len(PROMPT)]] = 1e6
        return scores

    assert fresh(llm, max_tokens=3, logits_processor=spell, **CREATIVE) == "abc"
    assert fresh(llm, max_tokens=3, logits_processor=[spell], **GREEDY) == "abc"


def test_a_bias_decides_and_ids_of_another_vocabulary_are_refused(llm):
    word = llm.tokenize("a", add_bos=False)[0]

    assert fresh(llm, max_tokens=3, logit_bias={str(word): 1e6}, **CREATIVE) == "aaa"
    for name, ids in (("logit_bias", {10**6: 1.0}), ("stop", [10**6]), ("stop", 10**6)):
        with pytest.raises(LayoutError, match=f"{name} has token id 1000000"):
            llm.generate(PROMPT, max_tokens=0, min_tokens=2, **{name: ids})
    last = llm.tokenizer.n_vocab - 1
    assert fresh(llm, max_tokens=0, stop=[last], logit_bias={last: 1}) == ""


def test_a_presence_penalty_leaves_no_token_twice(llm):
    ids = ids_of(llm, presence_penalty=1e6, repeat_last_n=-1, **GREEDY)

    assert len(set(ids)) == len(ids) == 12
    assert not set(ids) & set(PROMPT)


def test_dry_breaks_a_loop(llm):
    """A logits processor makes the model repeat two tokens for ever; DRY is applied after it."""
    a, b = (llm.tokenize(letter, add_bos=False)[0] for letter in "ab")

    def loop(ids, scores):
        scores[b if ids[-1] == a else a] = scores.max() + 5
        return scores

    assert fresh(llm, max_tokens=12, logits_processor=loop, **GREEDY) == "ab" * 6
    text = fresh(llm, max_tokens=12, logits_processor=loop, dry_multiplier=50.0, **GREEDY)
    assert text.startswith("ab")
    assert "ababab" not in text


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("logits_processor", 5), ("stopping_criteria", ["x"]), ("min_tokens", -1),
     ("top_logprobs", 3), ("logprobs", -1), ("logprobs", 10**6), ("logit_bias", [5]),
     ("logit_bias", {10**30: 1}), ("logit_bias", {"9" * 5000: 1}), ("logit_bias", {1: 10**5000}),
     ("dry_sequence_breakers", 5), ("dry_sequence_breakers", ["\ud800"]),
     ("xtc_probability", 2), ("dry_sequence_breakers", "ab")],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_by_name(llm, name, wrong):
    with pytest.raises(SettingError, match=name) as caught:
        llm.generate(PROMPT, **{name: wrong})
    assert caught.value.remedy


def test_none_is_the_default_of_every_setting_of_sampling(llm):
    names = ("temperature", "top_k", "typical_p", "top_n_sigma", "xtc_probability", "dry_base",
             "frequency_penalty", "repeat_last_n", "logit_bias", "dry_sequence_breakers",
             "logits_processor", "stopping_criteria", "logprobs", "min_tokens")  # fmt: skip
    usual = fresh(llm, max_tokens=12, seed=3)

    assert fresh(llm, max_tokens=12, seed=3, **dict.fromkeys(names)) == usual


def test_every_setting_has_a_check_which_its_default_passes():
    """Defaults are not checked for each request, so they must be right."""
    assert CHECKS.keys() == DEFAULTS.keys()
    usual = Sampling()
    for name, check in CHECKS.items():
        value = getattr(usual, name)
        assert check(name, value) == value


def test_numbers_may_be_integers_and_fractions_of_any_size(llm):
    options = {"max_tokens": 3, "seed": 1}
    half = fresh(llm, temperature=0.5, dry_multiplier=0.5, dry_base=1.75, **options)
    same = {"temperature": Fraction(1, 2), "dry_multiplier": Fraction(1, 2)}

    assert fresh(llm, dry_base=Fraction(7, 4), **same, **options) == half
    huge = {"frequency_penalty": 10**30, "top_k": 10**5000, "repeat_last_n": 10**30}
    assert fresh(llm, **huge, **options) == fresh(llm, **huge | {"frequency_penalty": 1e30},
                                                  **options)  # fmt: skip
    for wrong in (10**400, -(10**400), 10**5000):
        with pytest.raises(SettingError, match="repeat_penalty is "):
            llm.generate(PROMPT, repeat_penalty=wrong)


def test_top_logprobs_has_one_limit_however_logprobs_is_said(llm):
    for logprobs in (True, 1, 0):
        fresh(llm, max_tokens=1, logprobs=logprobs, top_logprobs=5, **GREEDY)
        assert len(llm.timing.logprobs[0].top) == 5
        with pytest.raises(SettingError, match="top_logprobs is 1001") as caught:
            llm.generate(PROMPT, logprobs=logprobs, top_logprobs=1001)
        assert "at most 1000" in caught.value.remedy


def test_what_a_criterion_returns_is_true_or_false(llm):
    def several(ids, scores):
        return np.array([True, False])

    with pytest.raises(LayoutError, match="criterion returned"):
        fresh(llm, stopping_criteria=several)
    assert fresh(llm, stopping_criteria=lambda ids, scores: np.array([True])) == ""
    assert fresh(llm, stopping_criteria=lambda ids, scores: re.search("a", "a")) == ""


# --- Drafts and resumption ------------------------------------------------------------------------

EVERYTHING = {
    "temperature": 1.2, "top_k": 60, "top_p": 0.98, "min_p": 0.01, "typical_p": 0.97,
    "top_n_sigma": 3.0, "xtc_probability": 0.5, "xtc_threshold": 0.05, "dry_multiplier": 0.8,
    "repeat_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1,
    "logit_bias": {9: 1.0}, "min_tokens": 20, "seed": 11,
}  # fmt: skip


def test_drafts_change_no_token_whatever_the_samplers():
    ids = tiny.ids("llama3", 12)
    options = EVERYTHING | {"max_tokens": 40, "logprobs": 2}
    with open_tiny("llama3") as plain, open_tiny("llama3", draft=tiny.path("llama3", "q8_0")) as d:
        d.speculator.controller = Controller(4, fixed=True)
        assert fresh(plain, ids, **options) == fresh(d, ids, **options)

        assert plain.timing.logprobs == d.timing.logprobs
        assert len(plain.timing.logprobs) >= 20
        assert d.timing.speculation.accepted > 0


def test_an_end_within_a_draft_loses_no_log_probability():
    ids = tiny.ids("llama3", 12)
    with open_tiny("llama3", draft=tiny.path("llama3", "q8_0")) as drafted:
        drafted.speculator.controller = Controller(8, fixed=True)
        for count in range(1, 10):
            end = len(ids) + count

            def stop(so_far, _, end=end):
                return len(so_far) >= end

            fresh(drafted, ids, max_tokens=20, logprobs=True, stopping_criteria=stop, **GREEDY)
            assert len(drafted.timing.logprobs) == count
        assert drafted.speculator.controller.speculation.accepted > 0


def test_a_text_that_is_continued_from_its_middle_goes_on_the_same(llm):
    options = {name: value for name, value in EVERYTHING.items() if name != "min_tokens"}
    options["ignore_eos"] = True
    whole = ids_of(llm, **options)

    first = whole[:5]
    fresh(llm, [*PROMPT, *first], max_tokens=7, logprobs=True, **options)
    assert [each.token for each in llm.timing.logprobs] == whole[5:]


# --- Log probabilities ----------------------------------------------------------------------------


def test_log_probabilities_are_those_of_the_models_logits(llm):
    text = fresh(llm, max_tokens=6, logprobs=True, top_logprobs=3, **EVERYTHING)
    given = llm.timing.logprobs
    assert llm.detokenize([each.token for each in given]) == text
    history = list(PROMPT)
    with open_tiny() as other:
        for each in given:
            other.reset()
            logits = other.eval(history)[-1].astype(np.float64)
            largest = max(logits)
            total = largest + math.log(math.fsum(math.exp(x - largest) for x in logits))
            order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:3]
            assert [i for i, _ in each.top] == order
            for i, value in (*each.top, (each.token, each.logprob)):
                assert math.isclose(value, logits[i] - total, abs_tol=1e-9)
            history.append(each.token)


def test_log_probabilities_end_where_a_stop_text_begins(llm):
    """Log probabilities are returned only for tokens that begin before the stop string."""
    other = [i for i in range(llm.tokenizer.n_vocab) if not llm.tokenizer.piece(i).isascii()]
    options = CREATIVE | {
        "max_tokens": 12,
        "logprobs": True,
        "logit_bias": dict.fromkeys(other, -math.inf),
    }
    whole = fresh(llm, **options)
    ids = [each.token for each in llm.timing.logprobs]
    ends = [len(llm.detokenize(ids[: i + 1])) for i in range(len(ids))]
    assert ends[-1] == len(whole)
    cut = 0
    for at in range(1, len(whole) - 2):
        stop = whole[at : at + 3]
        text = fresh(llm, stop=stop, **options)
        assert text == whole[: whole.find(stop)]
        kept = [each.token for each in llm.timing.logprobs]
        assert kept == [i for i, start in zip(ids, [0, *ends], strict=False) if start < len(text)]
        cut += llm.timing.generated_tokens - len(kept)
    assert cut


def test_each_of_several_texts_has_its_log_probabilities(llm):
    options = CREATIVE | {"max_tokens": 4, "logprobs": 1}
    alone = []
    for seed in (4, 5, 6):
        fresh(llm, **options | {"seed": seed})
        alone.append(llm.timing.logprobs)
        assert llm.timings == (llm.timing,)
    fresh(llm, n=3, **options)

    assert [each.logprobs for each in llm.timings] == alone
    assert llm.timings[-1] is llm.timing


def test_without_logprobs_there_are_none(llm):
    fresh(llm, max_tokens=3, **GREEDY)
    assert llm.timing.logprobs == []
    fresh(llm, max_tokens=3, logprobs=2, **GREEDY)
    assert [len(each.top) for each in llm.timing.logprobs] == [2, 2, 2]
    fresh(llm, max_tokens=3, logprobs=0, **GREEDY)
    assert [each.top for each in llm.timing.logprobs] == [(), (), ()]


# --- Sequence breakers of DRY ---------------------------------------------------------------------


def test_breakers_are_the_tokens_that_contain_a_text(llm):
    tokenizer = llm.tokenizer
    found = breakers_of(tokenizer, ["e"])

    assert found.keys() == {i for i in range(tokenizer.n_vocab) if b"e" in tokenizer.piece(i)}
    assert set(found.values()) == {((),)}
    assert breakers_of(tokenizer, ["e"]) is found


def test_a_breaker_may_begin_in_one_token_and_end_in_others(llm):
    """The tokens of the tiny vocabulary are mostly single characters."""
    a, b, c = (llm.tokenize(letter, add_bos=False)[0] for letter in "abc")
    found = breakers_of(llm.tokenizer, ["abc"])

    assert (b, c) in found[a]
    assert c not in found
    assert len(found) < llm.tokenizer.n_vocab / 4


# --- Several texts, and the prompt before them ----------------------------------------------------


def test_several_texts_have_the_seeds_from_the_first_on(llm):
    options = {**CREATIVE, "max_tokens": 8}
    texts = fresh(llm, n=3, **options)

    assert texts == [fresh(llm, **(options | {"seed": options["seed"] + i})) for i in range(3)]
    assert len(set(texts)) == 3
    assert fresh(llm, n=1, **options) == fresh(llm, n=None, **options) == texts[0]
    different = fresh(llm, n=4, **(options | {"seed": -1}))
    assert len(set(different)) > 1
    messages = [{"role": "user", "content": "Hello"}]
    assert llm.chat(messages, n=2, **options)[0] == llm.chat(messages, **options)


def test_several_texts_read_their_prompt_once(llm):
    fresh(llm, n=3, max_tokens=4, **GREEDY)

    assert llm.timing.reused_tokens == len(PROMPT) - 1


def test_the_seeds_of_all_texts_are_checked_before_the_first(llm):
    llm.reset()
    with pytest.raises(SettingError, match="seed"):
        llm.generate(PROMPT, n=2, seed=2**128 - 1, max_tokens=1)
    assert llm.n_tokens == 0


@pytest.mark.parametrize("n", [0, -1, 1001, 1.5, "2", True])
def test_a_number_of_texts_is_one_or_more(llm, n):
    with pytest.raises(SettingError, match="n "):
        llm.generate(PROMPT, n=n)


def test_several_texts_are_not_streamed(llm):
    with pytest.raises(SettingError, match="n is 2 with stream"):
        llm.generate(PROMPT, n=2, stream=True)
    assert list(llm.generate(PROMPT, n=1, stream=True, max_tokens=0)) == []


def test_a_text_echoes_its_prompt(llm):
    """The echo is the given string, or the decoded ids of the prompt."""
    text = fresh(llm, max_tokens=5, **GREEDY)
    begin = llm.detokenize(PROMPT)

    assert fresh(llm, echo=True, max_tokens=5, **GREEDY) == begin + text
    assert fresh(llm, echo=True, n=2, max_tokens=5, **GREEDY) == [begin + text] * 2
    pieces = list(fresh(llm, echo=True, stream=True, max_tokens=5, **GREEDY))
    assert (pieces[0], "".join(pieces)) == (begin, begin + text)
    assert llm.generate("hi", echo=True, max_tokens=0) == "hi"
