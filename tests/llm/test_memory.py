"""Tests of memory for untrusted files: it is proportional to the file size, or they are refused."""

import itertools
import json
import struct
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from npurt.errors import ModelFormatError
from npurt.llm.file import header
from npurt.llm.file.header import MAX_KEYS, MAX_TENSORS, read_header
from npurt.llm.file.string_array import StringArray
from npurt.llm.text import tokenizer, vocabulary
from npurt.llm.text.tokenizer import Tokenizer
from tests.llm import gguf_files as raw
from tests.llm import tiny
from tests.llm.gguf_files import File, Tensor

MIB = 1 << 20
SOUND = tiny.path("llama3", "f32")

# --- The header -----------------------------------------------------------------------------------


def strings(count, nbytes):
    """Return an array of *count* strings of *nbytes* digits, all different if *nbytes* suffices."""
    rows = np.zeros(count, [("length", "<u8"), ("text", f"S{nbytes}")] if nbytes else "<u8")
    if nbytes:
        numbers = np.arange(count) % 10 ** min(nbytes, 18)
        rows["length"], rows["text"] = nbytes, np.char.zfill(numbers.astype(str), nbytes)
    return struct.pack("<IQ", raw.STRING, count) + rows.tobytes()


def numbers(kind, count, nbytes):
    return struct.pack("<IQ", kind, count) + bytes(count * nbytes)


ARRAYS = {
    "empty strings": lambda: strings(300_000, 0),
    "strings of two bytes": lambda: strings(300_000, 2),
    "strings of thirty bytes": lambda: strings(100_000, 30),
    "bytes": lambda: numbers(raw.U8, 3_000_000, 1),
    "doubles": lambda: numbers(raw.F64, 400_000, 8),
    "flags": lambda: numbers(raw.BOOL, 3_000_000, 1),
}


def peak(work):
    """Return the peak number of bytes that Python and numpy allocate during *work*."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_array_costs_no_more_than_it_takes_in_the_file(kind):
    array = ARRAYS[kind]()
    data = File().with_key("x", raw.ARRAY, array).encode()

    assert peak(lambda: read_header(data)) < len(array) + MIB


def test_the_tables_of_a_header_cost_no_more_than_40_mib():
    """The test uses an eighth of the tensors and keys that a header may have."""
    tensors = [Tensor(f"{i}", (1,), 0, 32 * i) for i in range(MAX_TENSORS // 8)]
    keys = [(f"{i}", raw.F64, i / 7) for i in range(MAX_KEYS // 8)]
    data = File(keys=keys, tensors=tensors, data=bytes(4 * MAX_TENSORS)).encode()

    assert peak(lambda: read_header(data)) < 40 * MIB / 8


def test_texts_cost_four_times_their_size_at_most(monkeypatch):
    """With one character outside the basic plane, Python uses four bytes for each character."""
    monkeypatch.setattr(header, "MAX_TEXT", 1 << 20)
    text = "😀" + "a" * ((1 << 20) - 5)
    keys = [("t", raw.STRING, text[:-1000])]
    data = File(keys=keys, tensors=[]).encode()

    assert read_header(data).metadata["t"] == text[:-1000]
    assert peak(lambda: read_header(data)) < 5 * len(data) + MIB
    for keys in ([("t", raw.STRING, text + "a")], [("t", raw.STRING, text), ("u", raw.U8, 1)]):
        with pytest.raises(ModelFormatError, match="more than 1048576 bytes"):
            read_header(File(keys=keys, tensors=[]).encode())


def test_more_keys_or_tensors_than_any_model_has_are_refused():
    many = [(f"k{i}", raw.U8, 1) for i in range(MAX_KEYS + 1)]
    with pytest.raises(ModelFormatError, match="4097 keys"):
        read_header(File(keys=many).encode())
    with pytest.raises(ModelFormatError, match="65537 tensors"):
        read_header(File(n_tensors=MAX_TENSORS + 1, data=bytes(4 * MIB)).encode())


# --- Vocabularies ---------------------------------------------------------------------------------

LETTERS = "".join(map(chr, range(0x21, 0x7F)))


def words(count):
    """Return *count* different words: all letters, then all pairs of letters, and so on."""
    longer = (itertools.product(LETTERS, repeat=length) for length in itertools.count(1))
    return list(itertools.islice(map("".join, itertools.chain.from_iterable(longer)), count))


def keys(tokens, merges=(), kinds=None):
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": StringArray.of(tokens),
        "tokenizer.ggml.token_type": raw.view("i", kinds or [1] * len(tokens)),
        "tokenizer.ggml.merges": StringArray.of(merges),
    }


def pieces(tokens, merges):
    """Return the keys of a SentencePiece vocabulary, for tokens that many merges can make."""
    scores = raw.view("f", range(len(tokens)))
    return keys(tokens, merges) | {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.unknown_token_id": 0,
    }


WORDS = words(300)
ALL_A = ["a" * n for n in range(1, 40)]
LIMITS = {
    "tokens": (vocabulary, "MAX_TOKENS", 299, keys(WORDS), "300 tokens"),
    "their text": (vocabulary, "MAX_TEXT", 505, keys(WORDS), "506 bytes"),
    "merges": (tokenizer, "MAX_MERGES", 2, keys(WORDS, ["! !", '! "', "! #"]), "above 2"),
    "merges for so few tokens": (
        *(tokenizer, "MERGES_PER_TOKEN", 1),
        *(keys([*LETTERS, "!!"], ["! !"] * 96), "95 tokens have 96 merges"),
    ),
    "text of merges": (tokenizer, "MAX_MERGE_TEXT", 5, keys(WORDS, ["! !", '! "']), "6 bytes"),
    "ways to make a piece": (tokenizer, "MERGES_PER_TOKEN", 18, pieces(ALL_A, ()), "39 tokens"),
    "markup": (tokenizer, "MAX_MARKUP", 299, keys(WORDS, (), [3] * 300), "300 markup tokens"),
    "text of markup": (
        *(tokenizer, "MAX_MARKUP_TEXT", 505),
        *(keys(WORDS, (), [4] * 300), "have 506 bytes"),
    ),
}


@pytest.mark.parametrize("case", LIMITS.values(), ids=LIMITS)
def test_what_no_tokenizer_has_is_refused(case, monkeypatch):
    """One more than the limit; and what is just within is taken."""
    module, name, maximum, given, says = case
    monkeypatch.setattr(module, name, maximum + 1)
    Tokenizer.from_gguf(given)

    monkeypatch.setattr(module, name, maximum)
    with pytest.raises(ModelFormatError) as caught:
        Tokenizer.from_gguf(given)
    assert says in caught.value.what
    assert caught.value.remedy


def test_limits_are_well_above_what_models_have():
    """The models are Gemma, gpt-oss, GLM-4.5 and Llasa.

    Llasa has the markup tokens <|s_0|> to <|s_65535|> for speech.
    """
    assert vocabulary.MAX_TOKENS >= 4 * 262_144
    assert tokenizer.MAX_MERGES >= 4 * 446_189
    assert 3 * max(446_189 / 201_088, 318_088 / 151_552) <= tokenizer.MERGES_PER_TOKEN
    assert tokenizer.MAX_MARKUP >= 2 * 65_536
    assert 2 * len("".join(f"<|s_{i}|>" for i in range(65_536))) <= tokenizer.MAX_MARKUP_TEXT


def test_suppressed_tokens_cost_no_list_of_their_own():
    many = keys(WORDS) | {"tokenizer.ggml.suppress_tokens": raw.view("B", b"\7" * 1_000_000)}

    tokens = many["tokenizer.ggml.tokens"]
    assert peak(lambda: vocabulary.Vocabulary.read(many, tokens)) < 4 * MIB
    assert Tokenizer.from_gguf(many).never_sampled == {7}


# --- Whole processes ------------------------------------------------------------------------------

CHILD = """
import json, sys
import npurt
from npurt.llm.file.gguf import GGUF
from npurt.llm.text.tokenizer import Tokenizer

def peak():
    with open("/proc/self/status") as status:
        return int(status.read().split("VmHWM:")[1].split()[0]) << 10

def load(path):
    with npurt.Llama(path, "cpu", n_ctx=32, n_threads=1, progress=False) as llm:
        return llm.tokenize("<1> hello")

load(sys.argv[1])
before = peak()
try:
    {work}
    said = "ran"
except npurt.NpurtError as error:
    said = f"{{type(error).__name__}}: {{error.what}}"
print(json.dumps([said, peak() - before]))
"""


def in_a_process(path, work):
    """Run *work* on a file in a new process; return its outcome and the increase of peak memory."""
    command = [sys.executable, "-c", CHILD.format(work=work), str(SOUND), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)


def bomb(kind):
    """Return a tiny model's file with very many strings or keys, or with long strings."""
    file = tiny.read(SOUND)
    tokens = next(value for key, _, value in file.keys if key == "tokenizer.ggml.tokens")[1]
    if kind == "junk":
        return file.with_key("junk", raw.ARRAY, strings(1_000_000, 2))
    if kind == "tokens":
        kinds = numbers(raw.I32, 500_000, 4)
        many = file.with_key("tokenizer.ggml.tokens", raw.ARRAY, strings(500_000, 6))
        return many.with_key("tokenizer.ggml.token_type", raw.ARRAY, kinds)
    if kind == "merges":
        return file.with_key("tokenizer.ggml.merges", raw.ARRAY, strings(700_000, 3))
    if kind == "special":
        long = [f"<{i}>" * 3000 for i in range(len(tokens))]
        kinds = np.full(len(tokens), 3, "<i4").tobytes()
        header = struct.pack("<IQ", raw.I32, len(tokens))
        file = file.with_key("tokenizer.ggml.merges", raw.ARRAY, (raw.STRING, []))
        many = file.with_key("tokenizer.ggml.tokens", raw.ARRAY, (raw.STRING, long))
        return many.with_key("tokenizer.ggml.token_type", raw.ARRAY, header + kinds)
    return file.but(keys=[*file.keys, *((f"k{i}", raw.U8, 1) for i in range(60_000))])


BOMBS = {
    "junk": "ran",
    "tokens": "ModelFormatError: model.gguf: the vocabulary has 500000 tokens, "
    "but the embedding has 608",
    "merges": "ModelFormatError: model.gguf: 608 tokens have 700000 merges or more",
    "special": "ModelFormatError: model.gguf: 608 markup tokens",
    "keys": "ModelFormatError: model.gguf: 60027 keys",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_file_of_very_many_or_long_strings_costs_its_size_a_few_times_at_most(kind, tmp_path):
    """The copies are the mapped pages, the parsed arrays, and the strings of a tokenizer."""
    path = tiny.write(bomb(kind), tmp_path)

    said, cost = in_a_process(path, "load(sys.argv[2])")

    assert said.startswith(BOMBS[kind])
    copies = 3 if kind == "special" else 2
    assert cost < copies * path.stat().st_size + 8 * MIB


def test_a_vocabulary_costs_what_the_tokenizer_says(tmp_path):
    """The bound is 300 bytes a token and 250 bytes a merge, with 8 MiB for the interpreter."""
    tokens = words(100_000)
    merges = [f"{word[:-1]} {word[-1]}" for word in tokens if len(word) > 1]
    file = File(
        keys=[
            ("tokenizer.ggml.model", raw.STRING, "gpt2"),
            ("tokenizer.ggml.pre", raw.STRING, "qwen2"),
            ("tokenizer.ggml.tokens", raw.ARRAY, (raw.STRING, tokens)),
            ("tokenizer.ggml.token_type", raw.ARRAY, (raw.I32, [1] * len(tokens))),
            ("tokenizer.ggml.merges", raw.ARRAY, (raw.STRING, merges)),
        ],
        tensors=[],
    )
    path = tiny.write(file, tmp_path)

    said, cost = in_a_process(path, "Tokenizer.from_gguf(GGUF(sys.argv[2]).metadata)")

    assert said == "ran"
    assert cost < 300 * len(tokens) + 250 * len(merges) + 2 * path.stat().st_size + 8 * MIB
