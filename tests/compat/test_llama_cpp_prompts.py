"""llama-cpp-python's results for prompts: log probabilities, scores, and infilling."""

import numpy as np
import pytest

from npurt.compat.llama_cpp import Llama
from npurt.errors import SettingError, UnsupportedOp
from tests.compat.questions import GREEDY, PATH, PROMPT
from tests.llm import tiny

# --- Log probabilities of a prompt ----------------------------------------------------------------


def logs(rows):
    """Return the log probabilities of logits, computed in float64."""
    rows = rows.astype(np.float64)
    return (
        rows
        - np.log(np.exp(rows - rows.max(1, keepdims=True)).sum(1, keepdims=True))
        - rows.max(1, keepdims=True)
    )


@pytest.mark.parametrize("repeat", [1, 12])  # prompts below and above 64 tokens
def test_the_tokens_of_a_prompt_have_log_probabilities(llm, own, repeat):
    prompt = PROMPT * repeat
    ids = own.tokenize(prompt)
    assert ids[0] == own.tokenizer.bos
    assert (len(ids) > 64) == (repeat > 1)
    own.reset()
    exact = logs(own.eval(ids))
    choice = llm(prompt, max_tokens=3, logprobs=2, echo=True, **GREEDY)["choices"][0]
    given = choice["logprobs"]
    alone = llm(prompt, max_tokens=3, logprobs=2, **GREEDY)["choices"][0]["logprobs"]

    count = len(ids) - 1  # without BOS
    assert "".join(given["tokens"]) == choice["text"]
    assert given["text_offset"] == np.cumsum([0, *map(len, given["tokens"][:-1])]).tolist()
    assert given["token_logprobs"][0] is given["top_logprobs"][0] is None
    wanted = [exact[i, ids[i + 1]] for i in range(1, count)]
    assert np.allclose(given["token_logprobs"][1:count], wanted, atol=1e-9)
    for i in range(1, count):
        best = {
            own.tokenizer.piece(int(t)).decode(errors="replace") for t in exact[i].argsort()[-2:]
        }
        assert given["top_logprobs"][i].keys() == best | {given["tokens"][i]}
    for name, values in alone.items():
        assert given[name][count:] == values
    chunks = llm(prompt, max_tokens=3, logprobs=2, echo=True, stream=True, **GREEDY)
    parts = [chunk["choices"][0] for chunk in chunks]
    assert "".join(part["text"] for part in parts) == choice["text"]
    for name, values in given.items():
        assert [value for part in parts for value in part["logprobs"][name]] == values


def test_a_prompt_without_bos_has_all_its_tokens(llm, own):
    ids = own.tokenize(PROMPT)[1:]
    given = llm(ids, max_tokens=1, logprobs=1, echo=True, **GREEDY)["choices"][0]["logprobs"]
    assert len(given["tokens"]) == len(ids) + 1
    own.reset()
    exact = logs(own.eval(ids))
    assert np.isclose(given["token_logprobs"][1], exact[0, ids[1]], atol=1e-9)
    bos = llm("", max_tokens=1, logprobs=1, echo=True, **GREEDY)["choices"][0]["logprobs"]
    assert len(bos["tokens"]) == 1


# --- A gap ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def coder(tmp_path_factory):
    """Return a model file with tokens for prefix, suffix and middle."""
    return tiny.coder(tmp_path_factory.mktemp("coder"))


@pytest.mark.parametrize("suffix_first", [False, True])
def test_a_suffix_stands_after_the_gap(coder, suffix_first):
    with Llama(str(coder), spm_infill=suffix_first, verbose=False) as model:
        done = model("def f(", suffix="): pass", max_tokens=4, **GREEDY)
        before, after = (model.tokenize(t, add_bos=False) for t in (b"def f(", b"): pass"))
        parts = [300, *before], [301, *after]
        first, second = reversed(parts) if suffix_first else parts
        wanted = [model.token_bos(), *first, *second, 302]
        assert model.input_ids.tolist()[: len(wanted)] == wanted
        assert done["usage"]["prompt_tokens"] == len(wanted)
        text = done["choices"][0]["text"]
        assert text == model(wanted, max_tokens=4, **GREEDY)["choices"][0]["text"]
        echoed = model("def f(", suffix="): pass", max_tokens=4, echo=True, **GREEDY)
        assert echoed["choices"][0]["text"] == "def f(" + text
        assert model("a", suffix="", max_tokens=1)["usage"]["completion_tokens"] <= 1
        for wrong in (5, b"x"):
            with pytest.raises(SettingError, match="suffix is"):
                model("a", suffix=wrong)
        with pytest.raises(SettingError, match="suffix is"):
            model([1], suffix="b")
        with pytest.raises(UnsupportedOp, match="logprobs with echo and suffix"):
            model("a", suffix="b", logprobs=1, echo=True)


def test_a_model_that_cannot_fill_in_says_so(llm):
    with pytest.raises(UnsupportedOp, match="no tokens for prefix") as caught:
        llm("a", suffix="b")
    assert "omit suffix" in caught.value.remedy


# --- Scores ---------------------------------------------------------------------------------------


def test_scores_are_the_logits_of_all_tokens(own):
    with Llama(PATH, logits_all=True, verbose=False) as model:
        for part in ([1, 5], [9], []):
            model.eval(part)
        own.reset()
        rows = own.eval([1, 5, 9])
        assert np.array_equal(model.scores, rows)
        assert np.array_equal(model.eval_logits, rows)
        for idx in (0, 1, 2, None):
            best = int(np.argmax(rows[-1 if idx is None else idx]))
            assert model.sample(temp=0.0, idx=idx) == best
        with pytest.raises(UnsupportedOp, match="idx=3"):
            model.sample(idx=3)
        state = model.save_state()
        assert np.array_equal(state.scores, rows)
        model.reset()
        assert model.scores.shape == (0, model.n_vocab())
        model.load_state(state)
        model.eval([7])
        assert np.array_equal(model.scores[:3], rows)
        assert len(model.scores) == 4
        model([1, 5], max_tokens=2)
        with pytest.raises(SettingError, match="for 0 of 3 tokens"):
            model.scores  # noqa: B018


def test_scores_are_kept_where_they_are_wanted(llm):
    llm.reset()
    llm.eval([1, 5])
    with pytest.raises(SettingError, match="for 1 of 2 tokens") as caught:
        llm.scores  # noqa: B018
    assert "logits_all=True" in caught.value.remedy
