"""compat rejects wrong arguments by name, before they change or end a completion."""

import numpy as np
import pytest

from npurt.compat.llama_cpp import Llama, LogitsProcessorList
from npurt.compat.mlx_lm import generate, load
from npurt.compat.mlx_lm.generate import generate_step
from npurt.compat.mlx_lm.sample_utils import make_logits_processors, make_sampler
from npurt.errors import LayoutError, NumericsError, SettingError, UnsupportedOp
from npurt.llm.decode.sampler import Sampling, TokenSampler
from tests.llm import tiny

PATH = str(tiny.path())
GREEDY = {"temperature": 0.0, "max_tokens": 2}
INF, NAN = float("inf"), float("nan")
MESSAGES = [{"role": "user", "content": "Hello"}]
NO_IDS = [b"hello", bytearray(b"hello"), None, 1, [1.5], ["a"]]


@pytest.fixture(scope="module")
def llm():
    with Llama(PATH, verbose=False) as model:
        yield model


@pytest.fixture(scope="module")
def pair():
    model, tokenizer = load(PATH)
    with model:
        yield model, tokenizer


def text(result):
    return result["choices"][0]["text"]


# --- Prompts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", NO_IDS, ids=repr)
def test_a_prompt_is_text_or_token_ids(llm, pair, prompt):
    with pytest.raises(LayoutError, match="token ids are integers"):
        llm(prompt, max_tokens=1)
    with pytest.raises(LayoutError, match="token ids are integers"):
        next(llm.generate(prompt))
    with pytest.raises(LayoutError, match="token ids are integers"):
        llm.eval(prompt)
    with pytest.raises(LayoutError, match="token ids are integers"):
        generate(*pair, prompt, max_tokens=1)
    with pytest.raises(LayoutError, match="token ids are integers"):
        next(generate_step(prompt, pair[0]))


def test_ids_may_come_from_an_iterator(llm, pair):
    ids = llm.tokenize(b"Name the planets")

    assert list(llm.generate(iter(ids), temp=0.0)) == list(llm.generate(ids, temp=0.0))
    of_list, of_iterator = (generate(*pair, p, max_tokens=3) for p in (ids, iter(ids)))
    assert of_list == of_iterator


def test_token_ids_echo_the_text_that_they_are_of(llm):
    ids = llm.tokenize(b"Name the planets")
    assert ids[0] == llm.token_bos()
    wanted = text(llm("Name the planets", echo=True, **GREEDY))

    assert wanted.startswith("Name the planets")
    for prompt in (ids, iter(ids), np.array(ids)):
        assert text(llm(prompt, echo=True, **GREEDY)) == wanted


# --- Penalties and biases ------------------------------------------------------------------------


@pytest.mark.parametrize(("last", "counts"), [(-1, [2, 1]), (64, [2, 1]), (2, [1, 1]), (0, [0, 0])])
def test_penalties_see_the_last_tokens_and_at_minus_one_all(last, counts):
    sampler = TokenSampler(Sampling(frequency_penalty=1.0, repeat_last_n=last))
    changed = sampler.adjusted(np.zeros(6, np.float32), [3, 3, 5])

    assert changed.tolist() == [0, 0, 0, -counts[0], 0, -counts[1]]


@pytest.mark.parametrize("size", [-2, None, "x", 1.5])
def test_the_number_of_last_tokens_is_checked_when_a_model_opens(size):
    with pytest.raises(SettingError, match="last_n_tokens_size"):
        Llama(PATH, last_n_tokens_size=size, verbose=False)


@pytest.mark.parametrize("bias", [{5: NAN}, {5: INF}, {5: 1e300}, {5: None}, {5.7: 100}, {"x": 1},
                                  {None: 1}, {10**400: NAN}, [5], "5"], ids=repr)  # fmt: skip
def test_biases_are_numbers_by_token(llm, bias):
    with pytest.raises(SettingError, match="logit_bias"):
        llm("hi", logit_bias=bias)
    with pytest.raises(SettingError, match="logit_bias"):
        make_logits_processors(logit_bias=bias)


def test_a_bias_may_exclude_a_token_and_name_it_in_digits(llm):
    first = next(llm.generate(llm.tokenize(b"hi"), temp=0.0))
    for bias in ({first: -INF}, {str(first): -INF}, {np.int64(first): np.float32(-INF)},
                 {first: -1e300}):  # fmt: skip
        seen = []
        llm("hi", logit_bias=bias, stopping_criteria=lambda ids, _, s=seen: s.append(ids[-1]),
            **GREEDY)  # fmt: skip
        assert seen[1] != first


@pytest.mark.parametrize("penalty", [NAN, INF, -INF, 1e300, "x", [1]], ids=repr)
@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
def test_penalties_are_finite_numbers(llm, name, penalty):
    with pytest.raises(SettingError, match=name):
        llm("hi", **{name: penalty})
    with pytest.raises(SettingError, match="penalty"):
        make_logits_processors(**{name: penalty})
    with pytest.raises(SettingError, match="penalty"):
        make_logits_processors(repetition_penalty=penalty)


def test_no_penalty_may_be_none(llm):
    wanted = llm("hi", presence_penalty=1.0, **GREEDY)
    got = llm("hi", presence_penalty=1.0, frequency_penalty=None, **GREEDY)
    assert text(got) == text(wanted)


# --- Functions of the caller ---------------------------------------------------------------------


@pytest.mark.parametrize("factor", [NAN, INF, -INF])
def test_logits_that_a_processor_spoils_are_not_the_models_fault(llm, pair, factor):
    def spoil(_, logits):
        return np.full_like(logits, factor)

    for options in (GREEDY, {"temperature": 1.0}):
        with pytest.raises(NumericsError, match="logits_processor") as caught:
            llm("hi", logits_processor=spoil, **options)
        assert "--verify" not in caught.value.remedy
    with pytest.raises(NumericsError, match="logits_processor"):
        generate(*pair, "hi", logits_processors=[spoil], max_tokens=1)


def test_biases_that_exclude_all_tokens_are_named(llm):
    with pytest.raises(NumericsError, match="logit_bias"):
        llm("hi", logit_bias=dict.fromkeys(range(llm.n_vocab()), -INF))


@pytest.mark.parametrize("returned", ["x", None, [[1.0], [1.0, 2.0]], {}], ids=repr)
def test_a_processor_returns_logits(llm, pair, returned):
    with pytest.raises(LayoutError, match="logits processor returned"):
        llm("hi", logits_processor=lambda *_: returned)
    with pytest.raises(LayoutError, match="logits processor returned"):
        generate(*pair, "hi", logits_processors=[lambda *_: returned], max_tokens=1)


@pytest.mark.parametrize("given", [5, [5], "x", LogitsProcessorList([5])], ids=repr)
def test_functions_can_be_called(llm, pair, given):
    for name in ("logits_processor", "stopping_criteria"):
        with pytest.raises(SettingError, match=name):
            llm("hi", **{name: given})
    with pytest.raises(SettingError, match="logits_processors"):
        generate(*pair, "hi", logits_processors=given)
    with pytest.raises(SettingError, match="sampler"):
        generate(*pair, "hi", sampler=5)


def test_stopping_criteria_may_be_a_list(llm):
    result = llm("hi", stopping_criteria=[lambda *_: False, lambda *_: True], **GREEDY)
    assert (text(result), result["choices"][0]["finish_reason"]) == ("", "stop")


@pytest.mark.parametrize("chosen", [np.array([1.5]), np.array(["x"]), None, [10**9]], ids=repr)
def test_a_sampler_returns_an_id(pair, chosen):
    with pytest.raises(LayoutError, match="the sampler returned"):
        generate(*pair, "hi", sampler=lambda _: chosen, max_tokens=1)


# --- Other arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"response_format": "text"}, {"response_format": 5},
                                     {"stop": 5}, {"stop": [5]}], ids=repr)  # fmt: skip
def test_options_of_a_chat_are_refused_by_name(llm, options):
    with pytest.raises(SettingError, match=r"response_format|stop"):
        llm.create_chat_completion(MESSAGES, max_tokens=1, **options)


@pytest.mark.parametrize("given", [[], "f16", ([],), np.zeros(2)], ids=repr)
def test_the_type_of_a_cache_is_a_number(given):
    for name in ("type_k", "type_v"):
        with pytest.raises(UnsupportedOp, match=name):
            Llama(PATH, verbose=False, **{name: given})


@pytest.mark.parametrize("given", [5, [], b"chatml"], ids=repr)
def test_a_chat_format_is_a_name(given):
    with pytest.raises(SettingError, match="chat_format"):
        Llama(PATH, verbose=False, chat_format=given)


@pytest.mark.parametrize("name", ["temp", "top_p", "min_p", "min_tokens_to_keep", "top_k",
                                  "xtc_probability", "xtc_threshold"])  # fmt: skip
@pytest.mark.parametrize("given", ["x", [], NAN, None], ids=repr)
def test_options_of_a_sampler_are_numbers(name, given):
    with pytest.raises(SettingError, match=name):
        make_sampler(**({"temp": 1.0} | {name: given}))


@pytest.mark.parametrize("given", ["x", -1, 1.5])
@pytest.mark.parametrize("name", ["repetition", "presence", "frequency"])
def test_the_number_of_recent_tokens_is_checked(name, given):
    with pytest.raises(SettingError, match="context_size"):
        make_logits_processors(**{f"{name}_penalty": 1.5, f"{name}_context_size": given})
