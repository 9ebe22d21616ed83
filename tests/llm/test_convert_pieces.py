"""Tests of `npurt convert` on tokenizers that merge pieces: tokenizer.model or tokenizer.json.

Oracle: the ids of the sentencepiece library, which trained the models of these tests.
"""

import json
import shutil
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npurt.errors import ModelFormatError, NpurtError
from npurt.llm.convert.folder import convert
from npurt.llm.convert.tokenizer.sentencepiece import read_model
from npurt.llm.convert.tokenizer.vocabulary import vocabulary_of
from npurt.llm.decode.llama import Llama
from npurt.llm.file.gguf import GGUF
from npurt.llm.file.header import read_header
from npurt.llm.file.writer import encoded, header
from npurt.llm.text.tokenizer import Tokenizer
from npurt.llm.text.vocabulary import TokenType
from tests.llm import tiny
from tests.llm.checkpoints import change, folder_of, refused

DATA = tiny.MODELS.parent / "tokenizer"
STRINGS = json.loads((DATA / "strings.json").read_text())
KNOWN = json.loads((DATA / "spm.json").read_text())
MARKUP = ("<s>", "</s>", "<unk>", "<pad>", "<mask>", "<end_of_turn>", "<start_of_turn>")
ROWS = 640
EVERY = [(name, form) for name in ("llama", "gemma") for form in ("model", "json", "both")]


def folder(name, form, target):
    """Write tokenizer *name* to *target* as tokenizer.model, .json or both; return *target*."""
    target.mkdir(exist_ok=True)
    if form != "json":
        shutil.copy(DATA / f"spm-{name}.model", target / "tokenizer.model")
    if form != "model":
        (target / "tokenizer.json").write_text(json.dumps(KNOWN[name]["tokenizer.json"]))
    (target / "tokenizer_config.json").write_text("{}")
    return target


def keys(name, form, target):
    return vocabulary_of(folder(name, form, target), name, ROWS)


def written(found):
    """Write a file with the given keys and return its tokenizer."""
    data = header(encoded(key, value) for key, value in found.items())
    return Tokenizer.from_gguf(read_header(data).metadata)


@pytest.mark.parametrize(("name", "form"), EVERY)
def test_ids_are_those_of_the_library(tmp_path, name, form):
    ours = written(keys(name, form, tmp_path))
    for text, ids in zip(STRINGS, KNOWN[name]["ids"], strict=True):
        if not any(mark in text for mark in MARKUP):
            assert ours.encode(text, add_bos=False) == ids, text


def test_what_a_model_says_of_itself_becomes_keys(tmp_path):
    llama, gemma = (keys(name, "model", tmp_path / name) for name in ("llama", "gemma"))

    assert llama["tokenizer.ggml.model"] == gemma["tokenizer.ggml.model"] == "llama"
    assert llama["tokenizer.ggml.add_space_prefix"] is True
    assert gemma["tokenizer.ggml.add_space_prefix"] is False
    assert llama["tokenizer.ggml.add_bos_token"] is gemma["tokenizer.ggml.add_bos_token"] is True
    assert llama["tokenizer.ggml.add_eos_token"] is False
    ids = [
        gemma[f"tokenizer.ggml.{role}_token_id"] for role in ("padding", "eos", "bos", "unknown")
    ]
    assert ids == [0, 1, 2, 3]
    kinds = gemma["tokenizer.ggml.token_type"]
    assert kinds[[0, 3, 4, 11, 599]].tolist() == [
        TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED, TokenType.BYTE,
        TokenType.NORMAL,
    ]  # fmt: skip
    assert gemma["tokenizer.ggml.tokens"][600] == "[PAD600]"
    assert kinds[600] == TokenType.UNUSED
    assert llama["tokenizer.ggml.scores"][259:263].tolist() == [0, -1, -2, -3]


def test_the_forms_agree_on_what_is_merged_first(tmp_path):
    """Scores made from the merges in tokenizer.json have the order of those in tokenizer.model."""
    made = [keys("llama", form, tmp_path / form) for form in ("model", "json")]
    scores = [each["tokenizer.ggml.scores"] for each in made]
    merged = [i for i in range(259, 600) if len(made[0]["tokenizer.ggml.tokens"][i]) > 1]
    assert made[0]["tokenizer.ggml.tokens"] == made[1]["tokenizer.ggml.tokens"]
    orders = [sorted(merged, key=lambda i, each=each: -each[i]) for each in scores]
    assert orders[0] == orders[1]


def test_added_tokens_count_wherever_they_stand(tmp_path):
    target = folder("llama", "model", tmp_path)
    (target / "added_tokens.json").write_text('{"<a>": 600, "<b>": 601}')
    added = {
        "601": {"content": "<|c|>"},
        "602": {"content": "▁▁d", "special": False},
        "0": {"content": "<unk>", "special": True},
    }
    change(target, "tokenizer_config.json", added_tokens_decoder=added, add_prefix_space=False)

    found = vocabulary_of(target, "llama", ROWS)

    assert found["tokenizer.ggml.tokens"][600:603] == ["<a>", "<|c|>", "  d"]
    kinds = found["tokenizer.ggml.token_type"]
    assert kinds[600:603].tolist() == [
        TokenType.USER_DEFINED,
        TokenType.CONTROL,
        TokenType.USER_DEFINED,
    ]
    assert kinds[0] == TokenType.UNKNOWN
    assert found["tokenizer.ggml.add_space_prefix"] is False
    assert written(found).encode("  d<|c|>", add_bos=False) == [602, 601]


def test_a_whole_checkpoint_gets_its_tokenizer(tmp_path):
    target = folder_of("gemma3", tmp_path / "m")
    (target / "tokenizer.json").unlink()
    folder("gemma", "model", target)
    convert(target, tmp_path / "a.gguf", "f16", progress=False)
    with GGUF(tmp_path / "a.gguf") as file:
        ours = Tokenizer.from_gguf(file.metadata)
    text = next(text for text in STRINGS if text.startswith("Hello"))
    assert ours.encode(text, add_bos=False) == KNOWN["gemma"]["ids"][STRINGS.index(text)]
    with Llama(tmp_path / "a.gguf", "numpy", n_ctx=32) as llm:
        assert isinstance(llm.generate("the", max_tokens=2), str)


# --- Refusals -------------------------------------------------------------------------------------


def field(number, value):
    """Return a field of a message: an int, a float or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value % (1 << 64))
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value):
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


BPE = field(3, 2)


def model(*pieces, trainer=BPE, normalizer=b""):
    parts = [field(1, b"".join(field(i + 1, v) for i, v in enumerate(each))) for each in pieces]
    return b"".join(parts) + field(2, trainer) + field(3, normalizer)


UNK = (b"<unk>", 0.0, 2)


def test_a_model_written_by_hand_is_read(tmp_path):
    path = tmp_path / "tokenizer.model"
    trainer = BPE + field(43, -1) + field(41, 2) + field(99, b"x") + field(98, 1.0)
    path.write_bytes(model(UNK, (b"a", -0.5), (b"\xe2\x96\x81", -1.5, 3), trainer=trainer))
    found = read_model(path)
    assert (found.texts, found.scores) == (["<unk>", "a", "▁"], [0.0, -0.5, -1.5])
    assert found.kinds == [TokenType.UNKNOWN, TokenType.NORMAL, TokenType.CONTROL]
    assert found.ids == {"unk": 0, "bos": 2, "eos": 2}
    assert found.space_before


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no pieces"),
        (model(UNK, trainer=field(3, 1)), "model type 1"),
        (model(UNK, trainer=b""), "model type 1"),  # 1 is the default
        (model(UNK, normalizer=field(2, b"\0\0")), "normalises characters"),
        (model((b"\xff", 0.0)), "utf-8"),
        (model((b"a", float("nan"))), "score nan"),
        (model((b"a", 0.0, 7)), "type 7"),
        (model((3, 0.0)), "number 3"),
        (model((b"a", b"abcde")), "buffer of 4 bytes"),
        (model(UNK)[:-3], "follow"),
        (b"\x0a\xff", "end within"),
        (b"\x0b", "wire type 3"),
        (b"\xff" * 11, "64 bits"),
    ],
)
def test_a_damaged_model_is_refused(tmp_path, content, says):
    target = folder("llama", "model", tmp_path)
    (target / "tokenizer.model").write_bytes(content)
    with pytest.raises(ModelFormatError, match=says) as caught:
        vocabulary_of(target, "llama", ROWS)
    assert caught.value.remedy


GOOD = (DATA / "spm-llama.model").read_bytes()


@st.composite
def flipped(draw):
    """Return the bytes of a good file with one bit changed."""
    data = bytearray(GOOD)
    data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)


@settings(max_examples=100)
@given(st.binary(max_size=60) | flipped())
def test_whatever_a_model_holds_it_is_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "tokenizer.model"
    path.write_bytes(content)
    refusal = None
    try:
        found = read_model(path)
    except ModelFormatError as error:
        refusal = error
    if refusal:
        assert refusal.remedy
        return
    assert len(found.texts) == len(found.scores) == len(found.kinds) > 0
    assert np.isfinite(found.scores).all()


def edited(**values):
    described = json.loads(json.dumps(KNOWN["llama"]["tokenizer.json"]))
    described["model"] |= values.pop("model", {})
    return described | values


MERGES = KNOWN["llama"]["tokenizer.json"]["model"]["merges"]


@pytest.mark.parametrize(
    ("described", "says"),
    [
        (edited(normalizer={"type": "NFKC"}), "NFKC"),
        (edited(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False}), "ByteLevel"),
        (edited(pre_tokenizer={"type": "Metaspace", "replacement": "▁"}), "Metaspace"),
        (edited(model={"merges": MERGES[:-1]}), "does not merge"),
        (edited(model={"merges": [*MERGES[1:], MERGES[0], MERGES[1]]}), "at two ranks"),
        (edited(model={"merges": ["a b c"]}), "has a missing or wrong value"),
        (edited(model={"vocab": {"a": 1}}), "not 0, 1, 2"),
        (edited(added_tokens=[{"id": 1 << 40, "content": "x"}]), "id 1099511627776"),
        (edited(added_tokens=[{"id": 700, "content": "x"}]), "ids up to 700"),
    ],
)
def test_a_list_of_merges_that_gguf_cannot_say_is_refused(tmp_path, described, says):
    target = folder("llama", "json", tmp_path)
    (target / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(NpurtError, match=says) as caught:
        vocabulary_of(target, "llama", ROWS)
    assert caught.value.remedy


def test_a_model_that_is_no_file_is_refused_at_once(tmp_path):
    target = folder_of("qwen2", tmp_path / "m")
    (target / "tokenizer.json").unlink()
    (target / "tokenizer.model").mkdir()
    refused(target, tmp_path / "a.gguf", r"tokenizer\.model")
