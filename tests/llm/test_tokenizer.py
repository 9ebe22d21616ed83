"""Tests of token ids and decoded strings, against llama.cpp's, in tests/data/tokenizer."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import LayoutError, ModelFormatError, SettingError
from npurt.llm.file.gguf import GGUF
from npurt.llm.text.pretokenize import RULES
from npurt.llm.text.tokenizer import MAX_TEXT, Tokenizer
from tests.llm import gguf_files as raw

DATA = Path(__file__).parents[1] / "data/tokenizer"
STRINGS = json.loads((DATA / "strings.json").read_text())
CROSSING = json.loads((DATA / "crossing.json").read_text())
SENTENCEPIECE = json.loads((DATA / "sentencepiece.json").read_text())


def metadata(name):
    with GGUF(DATA / f"{name}.gguf") as file:
        return dict(file.metadata)


def tokenizer(name):
    return Tokenizer.from_gguf(metadata(name))


TINY = {name: tokenizer(name) for name in ("llama-bpe", "qwen2", "qwen35", "sentencepiece")}


def with_rule(pre):
    return Tokenizer.from_gguf(metadata("crossing") | {"tokenizer.ggml.pre": pre})


# --- Ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama-bpe", "qwen2", "qwen35"])
def test_ids_are_llama_cpps(name):
    oracle = json.loads((DATA / f"lcpp_{name}.json").read_text())
    ours = TINY[name]

    assert (ours.n_vocab, ours.add_bos) == (oracle["n"], oracle["add_bos"])
    for text, ids in zip(STRINGS, oracle["res"], strict=True):
        assert ours.encode(text, add_bos=False, special=False) == ids["plain"]
        assert ours.encode(text, add_bos=False) == ids["special"]
        assert ours.encode(text) == ids["bos_special"]
        assert ours.decode(ids["special"]) == text


# Rules that have the same type in llama.cpp's table, and (CASED) rules that it spells differently.
SAME = {
    "lfm2": "llama-bpe", "glm4": "dbrx", "chatglm-bpe": "dbrx", "exaone": "smollm",
    "exaone4": "gpt-2", "granite-docling": "gpt-2",
}  # fmt: skip
CASED = {"gpt-4o", "llama4", "tekken"}


@pytest.mark.parametrize("pre", sorted(RULES.keys() - CASED))
def test_every_rule_cuts_as_llama_cpp_does(pre):
    """The vocabulary has merges across every boundary, so each cut affects the ids."""
    oracle = CROSSING["rules"][SAME.get(pre, pre)]
    if isinstance(oracle, str):  # the name of another rule with the same ids
        oracle = CROSSING["rules"][oracle]
    ours = with_rule(pre)

    assert ours.add_bos == oracle["add_bos"]
    for text, plain, special in zip(
        CROSSING["strings"], oracle["plain"], oracle["special"], strict=True
    ):
        assert ours.encode(text, add_bos=False, special=False) == plain
        if "</s>" not in text:  # a normal token, but markup in llama.cpp
            assert ours.encode(text, add_bos=False) == special


def test_a_normal_token_that_looks_like_markup_is_text():
    ours = with_rule("qwen2")
    looks = metadata("crossing")["tokenizer.ggml.tokens"].index("</s>")

    assert looks in CROSSING["end_of_generation"]
    assert looks not in ours.eog
    assert ours.encode("a</s>", add_bos=False) == ours.encode("a</s>", add_bos=False, special=False)


def test_sentencepiece_ids_and_texts_are_llama_cpps():
    oracle, ours = SENTENCEPIECE, TINY["sentencepiece"]
    for i, text in enumerate(oracle["strings"]):
        assert ours.encode(text, add_bos=False, special=False) == oracle["plain"][i]
        assert ours.encode(text, add_bos=False) == oracle["special"][i]
        assert ours.encode(text) == oracle["bos"][i]
        assert ours.decode(oracle["plain"][i]) == oracle["text"][i]


def test_ends_of_generation_are_those_of_llama_cpp():
    looks = metadata("crossing")["tokenizer.ggml.tokens"].index("</s>")

    assert with_rule("qwen2").eog == set(CROSSING["end_of_generation"]) - {looks}
    assert TINY["sentencepiece"].eog == set(SENTENCEPIECE["end_of_generation"])
    assert TINY["llama-bpe"].eog == {595, 598, 599}  # end_of_text, eom_id, eot_id
    assert TINY["qwen2"].eog == {593, 595}  # endoftext, im_end


@pytest.mark.parametrize("harmony", [False, True])
def test_a_message_does_not_end_a_generation_where_messages_have_channels(harmony):
    """As in llama.cpp, <|end|> is no end if <|call|> exists: it ends each channel of gpt-oss."""
    keys = metadata("qwen2")
    tokens, kinds = list(keys["tokenizer.ggml.tokens"]), keys["tokenizer.ggml.token_type"].tolist()
    tokens[-3:] = ("<|end|>", "<|return|>", "<|call|>" if harmony else "<|message|>")
    kinds[-3:] = [3] * 3  # control
    changed = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": raw.view("i", kinds)}

    eog = Tokenizer.from_gguf(keys | changed).eog

    added = {606, 607} if harmony else {605, 606}
    assert eog == TINY["qwen2"].eog | added


def test_padding_is_never_sampled():
    assert TINY["llama-bpe"].never_sampled == set(range(600, 608))
    assert TINY["sentencepiece"].never_sampled == set()


def test_suppressed_tokens_are_never_sampled():
    keys = metadata("qwen2") | {"tokenizer.ggml.suppress_tokens": raw.view("i", [3, -1, 9999])}
    assert Tokenizer.from_gguf(keys).never_sampled == {3, *range(600, 608)}


markup = st.sampled_from(
    ["<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<s>", "</s>", "<unk>", "<|fim_prefix|>"]
)
# Lone surrogates are excluded, because UTF-8 cannot encode them.
text = st.text(st.characters(exclude_categories=["Cs"]))
texts = st.lists(st.one_of(text, markup, st.sampled_from([" ", "  ", "\n", "'s", "12"]))).map(
    "".join
)


@given(texts)
def test_plain_text_never_becomes_markup(text):
    for name, ours in (*TINY.items(), ("crossing", CROSSING_QWEN)):
        kinds = metadata_kinds[name]
        assert not [i for i in ours.encode(text, add_bos=False, special=False) if kinds[i] == 3]


CROSSING_QWEN = with_rule("qwen2")
metadata_kinds = {name: metadata(name)["tokenizer.ggml.token_type"] for name in (*TINY, "crossing")}


# The first rule only merges, and the second looks up whole words first.
@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe"])
def test_plain_text_does_not_become_markup_that_merges_would_make(pre):
    tokens = ["a", "b", "ab", "abb"]
    keys = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": raw.view("i", [1, 1, 1, 3]),
        "tokenizer.ggml.merges": ["a b", "ab b"],
        "tokenizer.ggml.add_bos_token": False,
    }
    ours = Tokenizer.from_gguf(keys)

    assert ours.encode("abb", special=True) == [3]
    assert ours.encode("abb", special=False) == [0, 1, 1]


def test_markup_that_a_converter_called_user_defined_is_markup():
    tokens = metadata("crossing")["tokenizer.ggml.tokens"]
    assert CROSSING_QWEN.encode("<|fim_prefix|>", add_bos=False) == [tokens.index("<|fim_prefix|>")]
    assert tokens.index("<|fim_prefix|>") not in CROSSING_QWEN.encode(
        "<|fim_prefix|>", add_bos=False, special=False
    )
    # A tool call is text that a model may write and a user may quote.
    assert CROSSING_QWEN.encode("<tool_call>", add_bos=False, special=False) == [
        tokens.index("<tool_call>")
    ]


@given(texts, st.booleans())
def test_bytes_survive_encoding_and_decoding(text, special):
    for name in ("llama-bpe", "qwen2", "qwen35"):
        ids = TINY[name].encode(text, add_bos=False, special=special)
        assert TINY[name].decode_bytes(ids) == text.encode()


@given(texts)
def test_sentencepiece_keeps_text_without_its_own_space_sign(text):
    text = text.replace("▁", "_")
    ours = TINY["sentencepiece"]
    assert ours.decode(ours.encode(text, add_bos=False, special=False)) == text


def test_bos_is_added_as_the_file_or_the_caller_says():
    llama, qwen = TINY["llama-bpe"], TINY["qwen2"]

    assert llama.encode("")[:1] == [llama.bos] == [594]
    assert llama.encode("", add_bos=False) == []
    assert qwen.bos is None
    assert qwen.encode("") == []
    with pytest.raises(SettingError, match="BOS"):
        qwen.encode("", add_bos=True)


def test_decoding_without_markup_leaves_control_tokens_out():
    llama = TINY["llama-bpe"]
    ids = llama.encode("<|eot_id|>Hello")

    assert llama.decode(ids) == "<|begin_of_text|><|eot_id|>Hello"
    assert llama.decode(ids, special=False) == "Hello"


@pytest.mark.parametrize("token", [-1, 608, 1 << 40])
def test_an_id_outside_the_vocabulary_is_refused(token):
    for use in (
        TINY["qwen2"].piece,
        lambda i: TINY["qwen2"].decode([i]),
        TINY["qwen2"].stream().push,
    ):
        with pytest.raises(LayoutError, match=str(token)):
            use(token)


def test_text_that_has_no_utf8_is_refused():
    with pytest.raises(LayoutError, match="character 2"):
        TINY["qwen2"].encode("ab\ud800")


def test_text_too_long_to_be_a_prompt_is_refused():
    with pytest.raises(LayoutError, match=str(MAX_TEXT)):
        TINY["qwen2"].encode("a" * (MAX_TEXT + 1))


# --- Vocabularies that are refused ----------------------------------------------------------------

BPE = metadata("qwen2")
SPM = metadata("sentencepiece")
KINDS = BPE["tokenizer.ggml.token_type"]


def but(keys, **changes):
    return keys | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}


def without(keys, name):
    return {key: value for key, value in keys.items() if key != f"tokenizer.ggml.{name}"}


def twice(tokens):
    return [*tokens[:-1], tokens[0]]


REFUSED = {
    "no model": (without(BPE, "model"), "model"),
    "another model": (but(BPE, model="rwkv"), "'rwkv'"),
    "a model that is a number": (but(BPE, model=1), "model"),
    "no pre": (without(BPE, "pre"), "pre"),
    "another pre": (but(BPE, pre="falcon"), "'falcon'"),
    "no tokens": (without(BPE, "tokens"), "tokens"),
    "no token at all": (but(BPE, tokens=[]), "empty"),
    "tokens that are numbers": (but(BPE, tokens=raw.view("i", range(608))), "strings"),
    "tokens that are one text": (but(BPE, tokens="abc"), "strings"),
    "a token twice": (but(BPE, tokens=twice(BPE["tokenizer.ggml.tokens"])), "twice"),
    "too few kinds": (but(BPE, token_type=KINDS[:-1]), "607"),
    "kinds that are fractions": (but(BPE, token_type=raw.view("f", [0.5] * 608)), "token_type"),
    "an unknown kind": (but(BPE, token_type=raw.view("i", [7] * 608)), "0 to 6"),
    "no merges": (without(BPE, "merges"), "merges"),
    "a merge of unknown tokens": (but(BPE, merges=["zq zq"]), "zq"),
    "a merge to an unknown token": (but(BPE, merges=["Z Z"]), "Z Z"),
    "a merge without a space": (but(BPE, merges=["ab"]), "ab"),
    "a merge with nothing after the space": (but(BPE, merges=["a "]), "a "),
    "an empty merge": (but(BPE, merges=[""]), "merge"),
    "a merge longer than every token": (
        but(
            BPE,
            tokens=[*BPE["tokenizer.ggml.tokens"][:-1], "a" * 90],
            merges=["{0} {0}".format("a" * 90)],
        ),
        "is no token",
    ),
    "a merge that is not UTF-8": (but(BPE, merges=["\udcff a"]), "merge"),
    "an end outside": (but(BPE, eos_token_id=608), "608"),
    "an end below 0": (but(BPE, eos_token_id=-1), "-1"),
    "an end that is text": (but(BPE, eos_token_id="1"), "eos"),
    "a beginning wanted and not named": (but(BPE, add_bos_token=True), "BOS"),
    "add_bos_token that is a number": (but(BPE, add_bos_token=1), "add_bos_token"),
    "no scores": (without(SPM, "scores"), "scores"),
    "too few scores": (but(SPM, scores=raw.view("f", [0] * 3)), "3"),
    "a score that is no number": (but(SPM, scores=raw.view("f", [math.nan] * 700)), "finite"),
    "no unknown token": (but(SPM, unknown_token_id=700), "700"),
    "a piece too long to cut": (
        but(SPM, tokens=[*SPM["tokenizer.ggml.tokens"][:-1], "a" * 10_000]),
        "10000",
    ),
}


@pytest.mark.parametrize(("keys", "says"), REFUSED.values(), ids=REFUSED)
def test_a_broken_vocabulary_is_refused_with_what_is_wrong(keys, says):
    with pytest.raises(ModelFormatError) as caught:
        Tokenizer.from_gguf(keys)

    assert says in caught.value.what
    assert caught.value.remedy


def test_tokens_that_are_empty_or_not_utf8_are_kept_out_of_the_way():
    tokens = list(BPE["tokenizer.ggml.tokens"])
    tokens[600:604] = ["", "\udcff", "Ā\udc80", "日本"]
    kinds = KINDS.tolist()
    kinds[600:604] = [1, 3, 1, 1]
    ours = Tokenizer.from_gguf(but(BPE, tokens=tokens, token_type=raw.view("i", kinds)))

    assert ours.encode("Hello world") == TINY["qwen2"].encode("Hello world")
    assert ours.piece(601) == b"\xff"
    assert ours.piece(602) == "Ā".encode() + b"\x80"
    assert ours.piece(603) == "日本".encode()


@given(
    st.lists(st.text("ab ▁Ġ<>\udcff\0", max_size=4), min_size=1, max_size=12),
    st.lists(st.integers(0, 6), min_size=12, max_size=12),
    st.lists(st.text("ab Ġ", max_size=4), max_size=4),
    st.sampled_from(["llama", "gpt2"]),
)
def test_any_small_vocabulary_is_built_or_refused(tokens, kinds, merges, model):
    keys = {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": raw.view("i", kinds[: len(tokens)]),
        "tokenizer.ggml.scores": raw.view("f", [-i for i in range(len(tokens))]),
        "tokenizer.ggml.merges": merges,
    }
    try:
        ours = Tokenizer.from_gguf(keys)
    except ModelFormatError:
        return
    ids = ours.encode("ab <a>", add_bos=False)
    assert all(0 <= i < len(tokens) for i in ids)
    ours.decode(range(len(tokens)))


# --- A file without kinds -------------------------------------------------------------------------


@pytest.mark.parametrize("name", TINY)
def test_kinds_that_a_file_lacks_follow_from_texts_and_roles(name):
    keys = {key: each for key, each in metadata(name).items() if not key.endswith("token_type")}
    found, known = Tokenizer.from_gguf(keys), TINY[name]
    assert found.control == known.control
    assert found.eog == known.eog
    # Nothing shows which other tokens are user-defined, which is why texts with them are left out.
    kinds, tokens = metadata_kinds[name], list(keys["tokenizer.ggml.tokens"])
    user = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 4]
    texts = [text for text in STRINGS if not any(token in text for token in user)]
    assert len(texts) > len(STRINGS) / 2
    for text in texts:
        for special in (False, True):
            assert found.encode(text, special=special) == known.encode(text, special=special)
