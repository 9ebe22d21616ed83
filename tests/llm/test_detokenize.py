"""Tests of decoding token by token: the text is that of all tokens, in whole characters."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.llm.file.gguf import GGUF
from npurt.llm.text.tokenizer import Tokenizer

DATA = Path(__file__).parents[1] / "data/tokenizer"


def tokenizer(name):
    with GGUF(DATA / f"{name}.gguf") as file:
        return Tokenizer.from_gguf(file.metadata)


ALL = {name: tokenizer(name) for name in ("llama-bpe", "qwen2", "sentencepiece")}
names = st.sampled_from(list(ALL))
ids = st.lists(st.integers(0, 599), max_size=30)  # every vocabulary has 600 tokens


def grown(stream, tokens):
    return [stream.push(token) for token in tokens] + [stream.finish()]


@given(names, ids, st.booleans())
def test_a_stream_grows_to_what_decode_gives(name, tokens, special):
    ours = ALL[name]
    assert "".join(grown(ours.stream(special=special), tokens)) == ours.decode(
        tokens, special=special
    )


@given(names, st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_stream_of_good_text_never_shows_half_a_character(name, text):
    ours = ALL[name]
    text = text.replace("▁", "_")
    pieces = grown(ours.stream(), ours.encode(text, add_bos=False, special=False))

    assert "".join(pieces) == text
    assert pieces[-1] == ""
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_in_three_tokens_appears_with_the_last():
    ours = ALL["qwen2"]
    tokens = ours.encode("語", add_bos=False)

    assert len(tokens) == 3
    assert grown(ours.stream(), tokens) == ["", "", "語", ""]


def test_a_character_that_is_never_completed_is_replaced():
    ours = ALL["qwen2"]
    first, second, _ = ours.encode("語", add_bos=False)
    letter = ours.encode("a", add_bos=False)

    assert grown(ours.stream(), [first, second]) == ["", "", "\ufffd"]
    assert grown(ours.stream(), [first, *letter]) == ["", "\ufffda", ""]


@pytest.mark.parametrize("continued", [False, True])
def test_a_text_that_began_before_keeps_its_first_space(continued):
    ours = ALL["sentencepiece"]
    tokens = ours.encode("it", add_bos=False)

    text = "".join(grown(ours.stream(continued=continued), tokens))

    assert text == (" it" if continued else "it")


def test_a_space_that_sentencepiece_added_is_stripped_after_hidden_markup():
    ours = ALL["sentencepiece"]
    tokens = ours.encode("it is")

    assert tokens[0] == ours.bos
    assert "".join(grown(ours.stream(special=False), tokens)) == "it is"
    assert ours.decode(tokens) == "<s> it is"
