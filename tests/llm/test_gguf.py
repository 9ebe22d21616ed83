"""Tests of GGUF files: their contents are read; damaged or malicious files only raise errors."""

import errno
import mmap
import os
import struct

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import LayoutError, ModelFormatError
from npurt.llm.file.gguf import GGUF
from npurt.llm.file.header import read_header
from npurt.quant.types import FORMATS
from tests.llm import gguf_files as raw
from tests.llm.gguf_files import File, Tensor

FILE = File()
SOUND = FILE.encode()
NUMBERS = {
    raw.U8: np.uint8,
    raw.I8: np.int8,
    raw.U16: np.uint16,
    raw.I16: np.int16,
    raw.U32: np.uint32,
    raw.I32: np.int32,
    raw.U64: np.uint64,
    raw.I64: np.int64,
    raw.F32: np.float32,
    raw.F64: np.float64,
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(SOUND)
    return path


# --- Contents of valid files ----------------------------------------------------------------------


def test_a_sound_file_is_read_to_its_last_value(path):
    with GGUF(path) as file:
        assert file.architecture == "llama"
        assert file.metadata["llama.block_count"] == 2
        assert file.metadata["tokenizer.ggml.tokens"] == ["a", "", "bc", "Ġ"]
        assert file.metadata["tokenizer.ggml.scores"].tolist() == [0.0, -1.0]
        assert file.metadata["tokenizer.ggml.add_bos_token"] is True
        assert list(file) == ["a.weight", "b.weight"]
        assert len(file) == 2
        assert repr(file) == "GGUF(model.gguf, 2 tensors)"
        assert file.path == path
        assert file.data_offset == len(SOUND) - len(FILE.data)


def test_a_tensor_is_a_view_of_the_bytes_at_its_offset(path):
    with GGUF(path) as file:
        tensor = file["a.weight"]
        info = file.tensors["a.weight"]

        assert tensor.shape == info.shape == (2, 32)
        assert tensor.blocks.tobytes() == FILE.data[:256]
        assert SOUND[info.offset : info.offset + info.nbytes] == FILE.data[:256]
        assert not tensor.blocks.flags.writeable
        assert file["b.weight"].shape == (3, 64)


def test_a_missing_tensor_is_named(path):
    with GGUF(path) as file:
        assert "c.weight" not in file
        assert file.get("c.weight") is None
        assert file.get("a.weight") is not None
        with pytest.raises(ModelFormatError, match=r"c\.weight"):
            file["c.weight"]


def test_views_outlive_the_file(path):
    file = GGUF(path)
    tensor = file["a.weight"]

    file.close()
    file.close()

    assert tensor.blocks.tobytes() == FILE.data[:256]
    with pytest.raises(LayoutError, match="closed"):
        file["a.weight"]


def test_a_released_tensor_reads_the_same(tmp_path):
    rows = 4096
    data = np.arange(32 * rows, dtype="<f4").tobytes()
    path = tmp_path / "large.gguf"
    path.write_bytes(FILE.but(tensors=[Tensor(dims=(32, rows))], data=data).encode())
    with GGUF(path) as file:
        before = file["a.weight"].blocks.tobytes()
        file.release("a.weight")

        assert file["a.weight"].blocks.tobytes() == before == data


def test_releasing_a_tensor_smaller_than_a_page_does_nothing(path):
    with GGUF(path) as file:
        file.release("a.weight")
        assert file["a.weight"].blocks.tobytes() == FILE.data[:256]


@pytest.mark.parametrize("version", [2, 3])
def test_versions_2_and_3_are_read(version):
    assert read_header(FILE.but(version=version).encode()).metadata["llama.block_count"] == 2


def test_strings_that_are_not_utf8_keep_their_bytes():
    odd = b"\xff\xfe\xe2\x82"
    file = FILE.with_key("tokenizer.ggml.tokens", raw.ARRAY, (raw.STRING, [odd, b"ok"]))
    tokens = read_header(file.encode()).metadata["tokenizer.ggml.tokens"]

    assert [t.encode("utf-8", "surrogateescape") for t in tokens] == [odd, b"ok"]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = st.one_of(
    st.tuples(st.just(raw.BOOL), st.booleans()),
    st.tuples(st.just(raw.STRING), texts),
    *(
        st.integers(np.iinfo(dtype).min, np.iinfo(dtype).max).map(lambda v, k=kind: (k, v))
        for kind, dtype in NUMBERS.items()
        if np.issubdtype(dtype, np.integer)
    ),
    st.floats(width=32, allow_nan=False).map(lambda v: (raw.F32, v)),
    st.floats(allow_nan=False).map(lambda v: (raw.F64, v)),
)
kinds = st.sampled_from([*NUMBERS, raw.BOOL, raw.STRING])


def elements(kind):
    return st.lists(scalars.filter(lambda s: s[0] == kind).map(lambda s: s[1]), max_size=4)


arrays = st.sampled_from([raw.U8, raw.I32, raw.F32, raw.F64, raw.BOOL, raw.STRING]).flatmap(
    lambda kind: st.tuples(st.just(kind), elements(kind).filter(bool))
)


@given(
    st.dictionaries(texts.filter(bool), st.one_of(scalars, arrays), max_size=6),
    st.lists(st.sampled_from(FORMATS), max_size=4),
    st.sampled_from([32, 64, 256]),
)
def test_a_file_that_gguf_py_writes_is_read_as_gguf_py_reads_it(tmp_path_factory, keys, fs, align):
    path = tmp_path_factory.mktemp("written") / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(align)
    for key, (kind, content) in keys.items():
        if isinstance(content, list):
            writer.add_key_value(
                f"x.{key}", content, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(kind)
            )
        else:
            writer.add_key_value(f"x.{key}", content, gguf.GGUFValueType(kind))
    for i, fmt in enumerate(fs):
        data = np.random.default_rng(i).integers(0, 256, (i + 1, fmt.row_bytes(512)), np.uint8)
        writer.add_tensor(f"t{i}", data, raw_dtype=gguf.GGMLQuantizationType(fmt.number))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    theirs = gguf.GGUFReader(path)

    with GGUF(path) as ours:
        expected = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
        assert {k: np.asarray(v).tolist() for k, v in ours.metadata.items()} == {
            k: np.asarray(v).tolist() for k, v in expected.items()
        }
        assert list(ours.tensors) == [t.name for t in theirs.tensors]
        for tensor in theirs.tensors:
            info = ours.tensors[tensor.name]
            assert info.offset == tensor.data_offset
            assert info.nbytes == tensor.n_bytes
            assert info.shape == tuple(tensor.shape.tolist())[::-1]
            assert info.format.number == tensor.tensor_type
            assert ours[tensor.name].blocks.tobytes() == tensor.data.tobytes()


# --- Refusals -------------------------------------------------------------------------------------


def bad(**changes):
    return FILE.but(**changes).encode()


def bad_key(key, kind, content):
    return FILE.with_key(key, kind, content).encode()


def bad_tensor(**changes):
    return FILE.but(tensors=[Tensor(**changes)]).encode()


HUGE = 2**64 - 1
U64 = struct.Struct("<Q").pack
REFUSED = {
    "nothing": (b"", "magic"),
    "another format": (b"PK\x03\x04" + SOUND[4:], "PK"),
    "version 1": (bad(version=1), "version 1"),
    "version 4": (bad(version=4), "version 4"),
    "big-endian": (bad(version=3 << 24), "big-endian"),
    "more tensors than bytes": (bad(n_tensors=HUGE), "tensors do not fit"),
    "more keys than bytes": (bad(n_keys=HUGE), "keys do not fit"),
    "one key too many": (bad(n_keys=len(FILE.keys) + 1), ""),
    "a key that is not UTF-8": (bad_key(b"\xff", raw.U32, 1), "UTF-8"),
    "a key twice": (bad(keys=[*FILE.keys, FILE.keys[0]]), "twice"),
    "a key of huge length": (
        bad(keys=[("k", raw.STRING, "v")], tensors=[])[:24] + U64(HUGE) + bytes(9),
        "bytes",
    ),
    "an unknown value type": (bad_key("x", 13, b""), "type 13"),
    "a huge value type": (bad_key("x", HUGE >> 32, b""), "type"),
    "a string of huge length": (bad_key("x", raw.ARRAY, struct.pack("<IQ", 8, 1) + U64(HUGE)), ""),
    "an array of huge count": (bad_key("x", raw.ARRAY, struct.pack("<IQ", raw.F64, HUGE)), "x"),
    "strings of huge count": (bad_key("x", raw.ARRAY, struct.pack("<IQ", 8, HUGE)), "strings"),
    "an array of unknown type": (bad_key("x", raw.ARRAY, struct.pack("<IQ", 13, 1)), "type 13"),
    "arrays in an array": (
        bad_key("x", raw.ARRAY, struct.pack("<IQ", raw.ARRAY, 1) * 10_000),
        "array of type 9",
    ),
    "a boolean of 2": (bad_key("x", raw.BOOL, b"\x02"), "neither 0 nor 1"),
    "a boolean of 2 in an array": (bad_key("x", raw.ARRAY, (raw.BOOL, [0, 2])), "neither 0 nor 1"),
    "alignment 0": (bad_key("general.alignment", raw.U32, 0), "alignment"),
    "alignment 4": (bad_key("general.alignment", raw.U32, 4), "alignment"),
    "alignment 48": (bad_key("general.alignment", raw.U32, 48), "alignment"),
    "alignment as text": (bad_key("general.alignment", raw.STRING, "32"), "alignment"),
    "alignment as boolean": (bad_key("general.alignment", raw.BOOL, 1), "alignment"),
    "alignment past the file": (bad_key("general.alignment", raw.U32, 1 << 31), "past"),
    "a tensor name that is not UTF-8": (bad_tensor(name=b"\xc3"), "UTF-8"),
    "no dimensions": (bad_tensor(dims=()), "0 dimensions"),
    "five dimensions": (bad_tensor(dims=(1, 1, 1, 1, 1)), "5 dimensions"),
    "four billion dimensions": (bad_tensor(n_dims=2**32 - 1), "dimensions"),
    "a dimension of 0": (bad_tensor(dims=(32, 0)), "shape"),
    "dimensions whose product overflows": (bad_tensor(dims=(2**32, 2**32)), "past"),
    "dimensions whose product is 2^64": (bad_tensor(dims=(HUGE - 31, HUGE)), "past"),
    "K that is no multiple of the block": (bad_tensor(dims=(48, 2), kind=8), "q8_0 blocks"),
    "an unknown tensor type": (bad_tensor(kind=4), "type 4"),
    "a tensor type from the future": (bad_tensor(kind=99), "type 99"),
    "a misaligned offset": (bad_tensor(offset=8), "misaligned"),
    "an offset past the file": (bad_tensor(offset=1 << 20), "past"),
    "a huge offset": (bad_tensor(offset=HUGE - 31), "past"),
    "overlapping tensors": (
        bad(tensors=[Tensor("a", (32, 2), 0, 0), Tensor("b", (32, 2), 0, 224)]),
        "overlaps",
    ),
    "two tensors in one place": (
        bad(tensors=[Tensor("a", (32, 2), 0, 0), Tensor("b", (32, 2), 0, 0)]),
        "overlaps",
    ),
    "two tensors of one name": (
        bad(tensors=[Tensor("a", (32, 1), 0, 0), Tensor("a", (32, 1), 0, 128)]),
        "same name",
    ),
}


@pytest.mark.parametrize(("data", "says"), REFUSED.values(), ids=REFUSED)
def test_a_broken_file_is_refused_with_what_is_wrong(data, says):
    with pytest.raises(ModelFormatError) as caught:
        read_header(data)

    assert says in caught.value.what
    assert caught.value.remedy


def test_a_file_cut_anywhere_is_refused():
    end = len(SOUND)  # the file ends with the last tensor, without padding
    for cut in range(end):
        with pytest.raises(ModelFormatError):
            read_header(SOUND[:cut])


@given(
    st.lists(
        st.tuples(st.integers(0, len(FILE.header()) - 1), st.integers(0, 255)),
        min_size=1,
        max_size=4,
    )
)
def test_changed_bytes_are_read_or_refused(changes):
    data = bytearray(SOUND)
    for at, byte in changes:
        data[at] = byte
    try:
        header = read_header(bytes(data))
    except ModelFormatError:
        return
    for info in header.tensors.values():
        assert header.data_offset <= info.offset <= info.offset + info.nbytes <= len(data)


words = st.one_of(
    st.integers(0, HUGE), st.sampled_from([0, 1, 2**31, 2**32, 2**63, HUGE]), st.integers(0, 300)
)


@given(st.integers(0, len(FILE.header()) - 8), words)
def test_any_64_bit_number_anywhere_is_read_or_refused(at, word):
    data = SOUND[:at] + U64(word) + SOUND[at + 8 :]
    try:
        header = read_header(data)
    except ModelFormatError:
        return
    for info in header.tensors.values():
        assert info.offset + info.nbytes <= len(data)


@pytest.mark.parametrize("what", ["missing", "folder", "empty", "fifo", "null"])
def test_what_is_no_file_with_content_is_refused(tmp_path, what):
    path = tmp_path / ("a\0b" if what == "null" else what)
    if what == "folder":
        path.mkdir()
    elif what == "empty":
        path.touch()
    elif what == "fifo":
        os.mkfifo(path)

    with pytest.raises(ModelFormatError) as caught:
        GGUF(path)

    assert caught.value.remedy


def test_a_file_for_which_there_is_no_memory_is_not_called_unreadable(path, monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(ModelFormatError, match=f"cannot open {path}: Cannot allocate") as caught:
        GGUF(path)

    assert "smaller model" in caught.value.remedy
    assert "may read" not in caught.value.remedy


def test_a_refused_file_leaves_no_descriptor_open(tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(SOUND[:-1])
    before = os.listdir("/proc/self/fd")

    with pytest.raises(ModelFormatError):
        GGUF(path)

    assert os.listdir("/proc/self/fd") == before


def test_an_architecture_that_is_missing_is_refused_when_asked_for(path):
    keys = [key for key in FILE.keys if key[0] != "general.architecture"]
    path.write_bytes(FILE.but(keys=keys).encode())
    with GGUF(path) as file, pytest.raises(ModelFormatError, match=r"general\.architecture"):
        _ = file.architecture
