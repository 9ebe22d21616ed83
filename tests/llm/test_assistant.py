"""Tests of draft models: which tokens they propose, how many, and with which probabilities."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npurt
from npurt.errors import ModelFormatError
from npurt.llm.spec.assistant import MAY_DIFFER, Assistant, shared
from npurt.llm.spec.controller import Controller
from npurt.llm.spec.drafter import likeliest
from npurt.llm.spec.truncated_head import TruncatedHead
from tests.llm import gguf_files as raw
from tests.llm import tiny, variants
from tests.llm.conftest import drafted

OPTIONS = {"n_ctx": 64, "n_threads": 2, "progress": False}
IDS = tiny.ids("qwen3")
ROWS = 608  # rows of the tiny models' vocabulary; the last eight are padding
UNUSED = 5  # the type of a padding token
TRAINED = tiny.MODELS / "spec/spec-draft-qwen3-q8_0.gguf"  # gives some tokens a high probability


@pytest.fixture(scope="module")
def target():
    with npurt.Llama(tiny.path("qwen3", "q8_0"), **OPTIONS) as llm:
        yield llm


def padded(folder, rows):
    """Write a model with a vocabulary padded to *rows* by the likeliest tokens; return its path."""
    file = tiny.read(tiny.path("qwen3", "f32"))
    arrays = variants.values(file)
    for name in ("token_embd.weight", "output.weight"):
        if name in arrays:
            more = np.random.default_rng(0).standard_normal((max(rows - ROWS, 0), 128))
            arrays[name] = np.concatenate([arrays[name][:rows], 9 * more])
    file = variants.with_values(file, arrays)
    for key, kind, pad in (("tokens", raw.STRING, "[PAD{}]"), ("token_type", raw.I32, UNUSED)):
        values = variants.key_of(file, f"tokenizer.ggml.{key}")[1][:rows]
        values += [pad.format(i) if kind == raw.STRING else pad for i in range(len(values), rows)]
        file = file.with_key(f"tokenizer.ggml.{key}", raw.ARRAY, (kind, values))
    return tiny.write(file, folder, f"{rows}.gguf")


def text(llm, prompt=IDS[:20], count=20):
    llm.reset()
    llm.generate(prompt, max_tokens=count, temperature=0)
    return llm.history


@pytest.mark.parametrize("rows", [602, ROWS + MAY_DIFFER])
def test_vocabularies_may_be_padded_differently(target, tmp_path, rows):
    """A token that only the draft has is never proposed."""
    path = padded(tmp_path, rows)
    with npurt.Llama(target.path, draft=path, **OPTIONS) as both:
        both.speculator.controller = Controller(4, fixed=True)

        assert text(both) == text(target)
        assert both.speculator.controller.speculation.drafted > 0


def test_more_padding_than_that_is_another_vocabulary(target, tmp_path):
    path = padded(tmp_path, ROWS + MAY_DIFFER + 1)

    with pytest.raises(ModelFormatError, match=r"vocabularies have 737 and 608 tokens\n") as caught:
        npurt.Llama(target.path, draft=path, **OPTIONS)
    assert "same family" in caught.value.remedy


def test_nothing_is_drafted_after_a_token_that_the_draft_does_not_know(target, tmp_path):
    with npurt.Llama(padded(tmp_path, 602), **OPTIONS) as small:
        drafter = Assistant(small.context, target.model)

        assert drafted(drafter, [1, 2, 603, 4], 3) == []
        drafter.prepare([1, 2, 603, 4], 9)
        assert len(drafted(drafter, [1, 2, 3, 4], 3)) == 3


def test_draft_tokens_end_with_the_drafts_context(target):
    with npurt.Llama(target.path, **OPTIONS) as small:
        drafter = Assistant(small.context, target.model)

        lengths = [len(drafted(drafter, IDS[:n], 10)) for n in (54, 62, 64, 65, 90)]

    assert lengths == [10, 3, 1, 0, 0]


def test_a_draft_token_has_its_probability(target):
    """The probability is the draft model's softmax over the tokens that it may propose."""
    with npurt.Llama(TRAINED, **OPTIONS) as small:
        drafter = Assistant(small.context, target.model)
        for start in range(0, 60, 4):
            history = IDS[start : start + 8]
            head = partial(small.model.head, "output")
            columns = TruncatedHead(small.model, head).columns(history)
            tokens, chances = zip(*drafter.draft(history, 6), strict=True)
            small.reset()
            logits = small.eval([*history, *tokens])[7:-1, :columns].astype(np.float64)

            assert list(tokens) == logits.argmax(axis=1).tolist()
            expected = np.exp(logits.max(axis=1)) / np.exp(logits).sum(axis=1)
            np.testing.assert_allclose(chances, expected, rtol=1e-4)


@pytest.mark.parametrize(
    "logits", [[np.nan, 1], [np.inf, 1], [np.inf, np.inf], [-np.inf, -np.inf], [-np.inf, np.nan]]
)
def test_what_a_broken_draft_says_is_not_likely(logits):
    assert likeliest(np.array(logits, np.float32))[1] == 0


def test_logits_far_apart_are_no_fault():
    assert likeliest(np.array([-3e38, 3e38], np.float32)) == (1, 1)


@given(st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)))
def test_shared_is_the_length_of_the_common_prefix(beginning, a, b):
    a, b = (*beginning, *a), (*beginning, *b)
    equal = [n for n in range(min(len(a), len(b)) + 1) if a[:n] == b[:n]]
    assert shared(a, list(b)) == max(equal)
