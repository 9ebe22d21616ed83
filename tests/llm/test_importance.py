"""Tests of `npurt quantize --imatrix`: importance files and their effect on the blocks."""

import struct

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npurt.errors import ModelFormatError, NpurtError, NumericsError, SettingError
from npurt.llm.convert.importance import fitted, read_importance
from npurt.llm.convert.requantise import requantise
from npurt.llm.file.gguf import GGUF
from npurt.quant.encode import quantize
from npurt.quant.types import BY_NAME
from npurt.quant.weighted import quantize_weighted
from tests.llm import tiny

LLAMA3, QWEN3MOE = tiny.path("llama3", "f32"), tiny.path("qwen3moe", "f32")
UP, DOWN = "blk.0.ffn_up.weight", "blk.0.ffn_down_exps.weight"


def modern(path, entries):
    """Write name -> (sums [matrices, K], counts [matrices]) as llama-imatrix does, with gguf-py."""
    writer = gguf.GGUFWriter(path, "")
    writer.add_type("imatrix")
    writer.add_uint32("imatrix.chunk_count", 3)
    for name, (sums, counts) in entries.items():
        writer.add_tensor(f"{name}.in_sum2", np.asarray(sums, np.float32))
        writer.add_tensor(f"{name}.counts", np.asarray(counts, np.float32)[:, None])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def older(path, entries, end=b"\3\0\0\0\0\0\0\0"):
    """Write name -> (calls, values) in the older format of llama-imatrix."""
    data = struct.pack("<i", len(entries))
    for name, (calls, values) in entries.items():
        text, array = name.encode(), np.asarray(values, "<f4")
        data += struct.pack("<i", len(text)) + text + struct.pack("<ii", calls, array.size)
        data += array.tobytes()
    path.write_bytes(data + end)
    return path


SUMS = np.arange(1, 129, dtype=np.float32)


def test_importances_are_sums_over_counts(tmp_path):
    stack = np.stack((SUMS[:4], SUMS[:4] * 3, SUMS[:4]))
    path = modern(tmp_path / "i.gguf", {UP: (SUMS[None], [4]), DOWN: (stack, [1, 6, 0])})
    found = read_importance(path)
    assert (found[UP] == SUMS / 4).all()
    assert found[DOWN].tolist() == [[1, 2, 3, 4], [0.5, 1, 1.5, 2], [1, 1, 1, 1]]


def test_the_older_form_has_sums_over_calls(tmp_path):
    found = read_importance(older(tmp_path / "i.dat", {UP: (4, SUMS), "x": (0, [1, 2])}))
    assert (found[UP] == SUMS / 4).all()
    assert found["x"].tolist() == [[1, 2]]
    fit = fitted({DOWN: SUMS[None]}, {DOWN: (4, 64, 32)}, tmp_path)
    assert fit[DOWN].shape == (4, 32)


@pytest.mark.parametrize("form", ["modern", "older"])
def test_the_blocks_are_those_of_the_weighted_encoder(tmp_path, form):
    """Only the named tensor changes; the others equal those without the importance file."""
    if form == "modern":
        path = modern(tmp_path / "i.gguf", {UP: (SUMS[None], [2])})
    else:
        path = older(tmp_path / "i.dat", {UP: (2, SUMS)})
    requantise(LLAMA3, tmp_path / "a.gguf", "q4_0", importance=path, progress=False)
    with GGUF(LLAMA3) as before, GGUF(tmp_path / "a.gguf") as after:
        values, fmt = before[UP].dequantize(), BY_NAME["q4_0"]
        assert after[UP].blocks.tobytes() == quantize_weighted(values, fmt, SUMS).tobytes()
        assert after[UP].blocks.tobytes() != quantize(values, fmt).tobytes()
        other = "blk.1.ffn_up.weight"
        assert (after[other].blocks == quantize(before[other].dequantize(), fmt)).all()
        assert after.metadata["quantize.imatrix.file"] == path.name
        assert after.metadata["quantize.imatrix.entries_count"] == 1


def test_each_expert_has_importances_of_its_own(tmp_path):
    with GGUF(QWEN3MOE) as file:
        values = file[DOWN].dequantize()
    experts, _, k = values.shape
    weights = np.random.default_rng(0).uniform(0, 9, (experts, k)).astype(np.float32)
    path = modern(tmp_path / "i.gguf", {DOWN: (weights, np.ones(experts))})
    requantise(QWEN3MOE, tmp_path / "a.gguf", "q4_1", importance=path, progress=False)
    expected = [quantize_weighted(values[e], BY_NAME["q4_1"], weights[e]) for e in range(experts)]
    with GGUF(tmp_path / "a.gguf") as after:
        assert after[DOWN].blocks.tobytes() == np.stack(expected).tobytes()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "bytes must follow"),
        (struct.pack("<i", 1), "bytes must follow"),
        (struct.pack("<ii", 1, -5), "-5 bytes"),
        (struct.pack("<ii", 1, 1) + b"\xff" + struct.pack("<iif", 1, 1, 1), "utf-8"),
        (struct.pack("<ii", 1, 1) + b"a" + struct.pack("<iif", 1, 1, np.nan), "NaN"),
        (struct.pack("<ii", 1, 1) + b"a" + struct.pack("<iif", 1, 1, -1), "negative number"),
        (struct.pack("<ii", 0, 0), "no importance values"),
        (b"GGUF" + bytes(20), "big-endian"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, content, says):
    path = tmp_path / "i.dat"
    path.write_bytes(content)
    with pytest.raises(NpurtError, match=says) as caught:
        requantise(LLAMA3, tmp_path / "a.gguf", "q4_0", importance=path, progress=False)
    assert isinstance(caught.value, ModelFormatError | NumericsError)
    assert caught.value.remedy
    assert not (tmp_path / "a.gguf").exists()


def test_a_file_that_is_missing_or_of_another_model_is_refused(tmp_path):
    out = tmp_path / "a.gguf"
    with pytest.raises(ModelFormatError, match="No such file"):
        requantise(LLAMA3, out, "q4_0", importance=tmp_path / "none")
    other = modern(tmp_path / "o.gguf", {"blk.9.x.weight": (SUMS[None], [1])})
    with pytest.raises(ModelFormatError, match=r"blk\.9\.x\.weight"):
        requantise(LLAMA3, out, "q4_0", importance=other)
    wide = modern(tmp_path / "w.gguf", {UP: (SUMS[None, :96], [1])})
    with pytest.raises(ModelFormatError, match="96 importance values"):
        requantise(LLAMA3, out, "q4_0", importance=wide)
    with pytest.raises(SettingError, match="is a source file"):
        requantise(LLAMA3, wide, "q4_0", importance=wide)


@settings(max_examples=60)
@given(st.binary(max_size=80))
def test_whatever_a_file_holds_it_is_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "importance.dat"
    path.write_bytes(content)
    refusal, found = None, {}
    try:
        found = read_importance(path)
    except NpurtError as error:
        refusal = error
    assert refusal.remedy if refusal else all((v >= 0).all() for v in found.values())
