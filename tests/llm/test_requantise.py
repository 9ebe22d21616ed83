"""Tests of `npurt quantize`: it changes no metadata, converts matrices, and errors are bounded."""

import struct
from collections import namedtuple
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npurt
from npurt.errors import ModelFormatError, NpurtError, NumericsError, SettingError
from npurt.llm.convert import types
from npurt.llm.convert.mixture import MIXED
from npurt.llm.convert.requantise import requantise
from npurt.llm.convert.types import FILE_TYPES, type_of
from npurt.llm.decode.llama import Llama
from npurt.llm.file import writer
from npurt.llm.file.gguf import GGUF
from npurt.llm.file.header import read_header
from npurt.llm.file.writer import NewTensor, encoded, header, write
from npurt.quant.encode import quantize
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME
from tests.llm import tiny

F32 = tiny.path("llama3", "f32")  # widths are multiples of 32, not of 256
Usage = namedtuple("Usage", "total used free")
WIDE = tiny.path("llama3-256", "q8_0")  # widths are multiples of 256


# --- The writer -----------------------------------------------------------------------------------

VALUES = st.one_of(
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.floats(width=32, allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]))),
    st.lists(st.integers(-(2**31), 2**31 - 1)).map(lambda v: np.array(v, np.int32)),
    st.lists(st.booleans()).map(lambda v: np.array(v, bool)),
)


@given(st.dictionaries(st.text(min_size=1).filter(lambda k: k.isprintable()), VALUES, max_size=8))
def test_metadata_is_read_as_it_was_written(metadata):
    metadata.pop("general.alignment", None)
    found = read_header(header(encoded(k, v) for k, v in metadata.items())).metadata
    assert list(found) == list(metadata)
    for key, value in metadata.items():
        if isinstance(value, list):
            assert list(found[key]) == value
        elif isinstance(value, np.ndarray):
            assert np.asarray(found[key]).dtype == value.dtype
            assert found[key].tolist() == value.tolist()
        else:
            assert type(found[key]) is type(value)
            assert found[key] == value


def test_the_bytes_of_a_small_file_are_those_of_the_specification(tmp_path):
    values = np.array([1.0, -2.0], np.float32)
    tensor = NewTensor("t", (2,), BY_NAME["f32"], lambda: [values])

    write(tmp_path / "a.gguf", {"k": encoded("k", 7)}, [tensor], progress=False)

    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)
    head += struct.pack("<Q", 1) + b"k" + struct.pack("<II", 4, 7)
    head += struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 1, 2, 0, 0)
    data = struct.pack("<2f", 1, -2)
    assert (tmp_path / "a.gguf").read_bytes() == head.ljust(96, b"\0") + data.ljust(32, b"\0")


def test_gguf_py_reads_what_was_written(tmp_path):
    requantise(F32, tmp_path / "a.gguf", "q8_0", progress=False)
    theirs = gguf.GGUFReader(tmp_path / "a.gguf")
    with GGUF(tmp_path / "a.gguf") as ours:
        assert [t.name for t in theirs.tensors] == list(ours)
        for tensor in theirs.tensors:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert (values.reshape(ours[tensor.name].shape) == ours[tensor.name].dequantize()).all()


# --- Types ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "wanted", "tied", "found"),
    [
        ("blk.0.attn_q.weight", (64, 256), "q4_k", True, "q4_k"),
        ("blk.0.attn_q.weight", (64, 896), "q4_k", True, "q5_0"),
        ("blk.0.attn_q.weight", (64, 896), "q5_k", True, "q5_1"),
        ("blk.0.attn_q.weight", (64, 896), "q6_k", True, "q8_0"),
        ("blk.0.attn_q.weight", (64, 40), "q4_k", True, "f16"),
        ("blk.0.attn_q.weight", (64, 40), "q8_0", True, "f16"),
        ("blk.0.attn_q.bias", (64,), "q4_0", True, "f32"),
        ("blk.0.attn_norm.weight", (64,), "f16", True, "f32"),
        ("blk.0.ffn_gate_inp.weight", (8, 256), "q8_0", True, "f32"),
        ("blk.0.shortconv.conv.weight", (256, 32), "q8_0", True, "f32"),
        ("blk.0.ffn_down_exps.bias", (8, 256), "q8_0", True, "f32"),
        ("output.weight", (64, 256), "q4_0", False, "q6_k"),
        ("output.weight", (64, 128), "q4_0", False, "q8_0"),
        ("output.weight", (64, 256), "q8_0", False, "q8_0"),
        ("token_embd.weight", (64, 256), "q4_0", False, "q4_0"),
        ("token_embd.weight", (64, 256), "q4_0", True, "q6_k"),
        ("token_embd.weight", (64, 256), "bf16", True, "bf16"),
    ],
)
def test_the_type_of_a_tensor(name, shape, wanted, tied, found):
    assert type_of(name, shape, wanted, tied=tied).name == found


def test_the_numbers_of_types_are_those_of_gguf_py():
    names = {"q5_k": "MOSTLY_Q5_K_S", "q4_k": "MOSTLY_Q4_K_S", "f32": "ALL_F32",
             "mxfp4": "MOSTLY_MXFP4_MOE"}  # fmt: skip
    for name, number in FILE_TYPES.items():
        assert gguf.LlamaFileType[names.get(name, f"MOSTLY_{name.upper()}")] == number


# --- Files ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.* quantised already")
@pytest.mark.parametrize("kind", [kind for kind in FILE_TYPES if kind not in MIXED])
def test_every_tensor_is_what_the_encoder_gives(tmp_path, kind):
    source = WIDE if kind in ("q4_k", "q5_k", "q6_k") else F32
    requantise(source, tmp_path / "a.gguf", kind.upper(), progress=False)

    with GGUF(source) as before, GGUF(tmp_path / "a.gguf") as after:
        assert list(after) == list(before)
        for name in before:
            values = before[name].dequantize()
            fmt = type_of(name, values.shape, kind, tied="output.weight" not in before)
            assert after[name].format is fmt
            assert after[name].shape == before[name].shape
            if before[name].format is fmt:
                assert after[name].blocks.tobytes() == before[name].blocks.tobytes()
            else:
                assert after[name].blocks.tobytes() == quantize(values, fmt).tobytes()
        changed = {"general.file_type", "general.quantization_version"}
        assert after.metadata["general.file_type"] == FILE_TYPES[kind]
        for key in before.metadata.keys() - changed:
            assert after.encoded(key) == before.encoded(key)


@pytest.mark.filterwarnings("ignore:.* quantised already")
@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q6_k"])
def test_products_are_those_of_weights_that_npurt_packs(tmp_path, kind):
    requantise(tiny.path("llama3-256", "q8_0"), tmp_path / "a.gguf", kind, progress=False)
    name = "blk.0.ffn_up.weight"
    with GGUF(tiny.path("llama3-256", "q8_0")) as before, GGUF(tmp_path / "a.gguf") as after:
        values, weight = before[name].dequantize(), after[name]
    x = np.random.default_rng(0).standard_normal((3, values.shape[1])).astype(np.float32)
    packed = npurt.pack(values.T, kind)
    assert (npurt.matmul(x, weight.T) == npurt.matmul(x, packed)).all()


@pytest.mark.parametrize("step", [1, 700, 1 << 22])
def test_the_size_of_pieces_changes_nothing(tmp_path, monkeypatch, step):
    monkeypatch.setattr(types, "STEP", step)
    requantise(F32, tmp_path / "a.gguf", "q4_0", progress=False)
    with GGUF(F32) as before, GGUF(tmp_path / "a.gguf") as after:
        name = "blk.0.ffn_down.weight"
        expected = quantize(before[name].dequantize(), BY_NAME["q4_0"])
        assert after[name].blocks.tobytes() == expected.tobytes()


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3))
def test_values_stay_within_half_a_step(seed, size):
    """The bound for Q8_0 is half of amax / 127, and 127 times the error of the float16 scale.

    The error of the scale is 2^-11 of the scale, or 2^-25, half of the least float16.
    """
    rng = np.random.default_rng(seed)
    values = (size * rng.standard_normal((3, 64))).astype(np.float32)
    tensor = types.new_tensor("w", (3, 64), BY_NAME["q8_0"], lambda: [QTensor(values, "f32")])

    blocks = np.concatenate([np.asarray(b) for b in tensor.blocks()])

    decoded = QTensor(blocks, "q8_0").dequantize().reshape(3, 2, 32)
    steps = abs(values).reshape(3, 2, 32).max(axis=-1, keepdims=True) / 127
    error = abs(decoded - values.reshape(3, 2, 32))
    rounded = np.maximum(steps * 2.0**-11, 2.0**-25)
    assert (error <= 1.0001 * (steps / 2 + 127 * rounded)).all()


def test_the_new_model_runs_and_is_close(tmp_path):
    requantise(F32, tmp_path / "a.gguf", "q8_0", progress=False)
    ids = tiny.ids("llama3", 40)
    with Llama(tmp_path / "a.gguf", "numpy") as llm:
        found = llm.eval(ids)
    exact = tiny.array("llama3", "hf_f32_prefill")[:40]
    assert ((found - exact) ** 2).sum() < 1e-2 * (exact**2).sum()
    with Llama(tiny.path("llama3", "q8_0"), "numpy") as llm:  # quantised by llama.cpp
        assert np.allclose(found, llm.eval(ids), atol=1e-4)


def test_experts_are_quantised_and_their_router_is_not(tmp_path):
    requantise(tiny.path("qwen3moe", "f32"), tmp_path / "a.gguf", "q4_0", progress=False)
    with GGUF(tmp_path / "a.gguf") as file:
        assert file["blk.0.ffn_down_exps.weight"].dtype == "q4_0"
        assert file["blk.0.ffn_gate_inp.weight"].dtype == "f32"
    with Llama(tmp_path / "a.gguf", "numpy") as llm:
        assert np.isfinite(llm.eval(tiny.ids("qwen3moe", 8))).all()


def test_a_split_model_becomes_one_file(tmp_path):
    whole = tiny.read(tiny.path("qwen2", "f32"))
    contents, half = tiny.contents(whole), len(whole.tensors) // 2
    for i, part in enumerate((slice(0, half), slice(half, None))):
        keys = [("split.no", 4, i), ("split.count", 4, 2)]
        keys.append(("split.tensors.count", 4, len(whole.tensors)))
        file = whole.but(keys=[*(whole.keys if i == 0 else []), *keys])
        file = tiny.with_data(file, whole.tensors[part], contents[part])
        tiny.write(file, tmp_path, f"m-0000{i + 1}-of-00002.gguf")

    requantise(tmp_path / "m-00001-of-00002.gguf", tmp_path / "a.gguf", "f32", progress=False)

    with GGUF(tiny.path("qwen2", "f32")) as before, GGUF(tmp_path / "a.gguf") as after:
        assert list(after) == list(before)
        assert not [key for key in after.metadata if key.startswith("split.")]
        assert all(after[n].blocks.tobytes() == before[n].blocks.tobytes() for n in before)


# --- Refusals -------------------------------------------------------------------------------------


def test_the_file_itself_is_not_overwritten(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(F32.read_bytes())
    with pytest.raises(SettingError, match="is a source file"):
        requantise(path, path, "q8_0")
    assert path.read_bytes() == F32.read_bytes()


def test_a_disk_without_room_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(writer.shutil, "disk_usage", lambda path: Usage(1, 1, 1000))
    with pytest.raises(NpurtError, match="MB free"):
        requantise(F32, tmp_path / "a.gguf", "q8_0")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SettingError, match="no folder"):
        requantise(F32, tmp_path / "none/a.gguf", "q8_0")


def test_what_does_not_fit_leaves_the_old_file(tmp_path):
    old = tmp_path / "a.gguf"
    old.write_bytes(b"old")
    file = tiny.with_tensor(
        tiny.read(F32), "blk.0.ffn_up.weight", np.full((352, 128), 1e6, np.float32)
    )
    source = tiny.write(file, tmp_path, "big.gguf")
    with pytest.raises(NumericsError, match=r"blk\.0\.ffn_up\.weight") as caught:
        requantise(source, old, "f16", progress=False)
    assert "bf16" in caught.value.remedy
    assert old.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.gguf", "big.gguf"]


def test_a_damaged_source_is_refused(tmp_path):
    (tmp_path / "b.gguf").write_bytes(F32.read_bytes()[:5000])
    with pytest.raises(ModelFormatError):
        requantise(tmp_path / "b.gguf", tmp_path / "a.gguf", "q8_0")
    assert not Path(tmp_path / "a.gguf").exists()


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused(tmp_path, kind, value):
    values = np.ones((352, 128), np.float32)
    values[77, 5] = value
    file = tiny.with_tensor(tiny.read(F32), "blk.0.ffn_up.weight", values)
    source = tiny.write(file, tmp_path, "nan.gguf")
    with pytest.raises(NumericsError, match=r"row 77 of blk\.0\.ffn_up\.weight") as caught:
        requantise(source, tmp_path / "a.gguf", kind, progress=False)
    assert "f32" not in caught.value.remedy
    assert not (tmp_path / "a.gguf").exists()


def test_blocks_that_are_copied_are_numbers_as_well(tmp_path):
    name = "blk.0.ffn_up.weight"
    with GGUF(WIDE) as file:
        tensors = [NewTensor(n, i.shape, i.format, lambda n=n: [blocks[n]]) for n, i in
                   file.tensors.items()]  # fmt: skip
        blocks = {n: file[n].blocks.copy() for n in file}
        blocks[name]["d"][3, 0] = np.nan
        write(tmp_path / "nan.gguf", {k: file.encoded(k) for k in file.metadata}, tensors)
    with pytest.raises(NumericsError, match=r"row 3 of blk\.0\.ffn_up\.weight"):
        requantise(tmp_path / "nan.gguf", tmp_path / "a.gguf", "q8_0", progress=False)


def test_a_tensor_of_four_axes_is_refused_by_name(tmp_path):
    values = np.zeros((2, 2, 4, 32), np.float32)
    keys = {"general.architecture": encoded("general.architecture", "clip")}
    tensor = NewTensor("v.patch.weight", values.shape, BY_NAME["f32"], lambda: [values])
    write(tmp_path / "b.gguf", keys, [tensor])
    with pytest.raises(ModelFormatError, match=r"v\.patch\.weight has 4 axes") as caught:
        requantise(tmp_path / "b.gguf", tmp_path / "a.gguf", "q8_0", progress=False)
    assert "array" not in str(caught.value)
    assert not (tmp_path / "a.gguf").exists()
