"""Tests of models in several files: results equal those of a single file, or they are refused."""

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npurt
from npurt.base.gguf_parts import MAX_PARTS, model_name, part_names
from npurt.errors import ModelFormatError
from npurt.llm.file.gguf import GGUF
from tests.llm import gguf_files as raw
from tests.llm import tiny

# --- Names ----------------------------------------------------------------------------------------


def test_the_parts_of_a_model_are_named_from_any_one_of_them():
    names = ["a/m-00001-of-00003.gguf", "a/m-00002-of-00003.gguf", "a/m-00003-of-00003.gguf"]

    assert [part_names(name) for name in names] == [names] * 3
    assert {model_name(name) for name in names} == {"a/m.gguf"}


@pytest.mark.parametrize(
    "name",
    [
        "m.gguf",
        "m-1-of-3.gguf",
        "m-00004-of-00003.gguf",
        "m-00000-of-00003.gguf",
        f"m-00001-of-{MAX_PARTS + 1:05}.gguf",
        "m-00001-of-00002.bin",
        "-00001-of-00002.gguf",
    ],
)
def test_a_name_that_is_no_part_is_alone(name):
    assert part_names(name) == [name]


@given(st.text(min_size=1), st.integers(1, 20), st.data())
def test_a_part_is_in_its_place_among_the_parts(model, count, data):
    number = data.draw(st.integers(1, count))
    name = f"{model}-{number:05}-of-{count:05}.gguf"

    assert len(part_names(name)) == count
    assert part_names(name)[number - 1] == name
    assert model_name(name) == f"{model}.gguf"


# --- Files ----------------------------------------------------------------------------------------


def split(source, folder, tensors, small_first=False):
    """Write *source* in parts of at most *tensors* tensors with gguf-py; return their paths."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(
        folder / "m.gguf", "", split_max_tensors=tensors, small_first_shard=small_first
    )
    for name, field in reader.fields.items():
        if name.startswith("GGUF."):
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.kv_data[0][name] = gguf.gguf_writer.GGUFValue(field.contents(), kind, element)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("*.gguf"))


def logits(path, ids):
    with npurt.Llama(path, "cpu", n_ctx=64, n_threads=1, progress=False) as llm:
        return llm.eval(ids)


@pytest.fixture
def parts(tmp_path):
    return split(tiny.path("llama3", "q8_0"), tmp_path, tensors=7)


@pytest.mark.parametrize("small_first", [False, True])
def test_a_model_in_parts_gives_the_logits_of_the_whole_bit_for_bit(tmp_path, small_first):
    whole = tiny.path("llama3", "q8_0")
    ids = tiny.ids("llama3", 12)

    files = split(whole, tmp_path, tensors=7, small_first=small_first)

    assert len(files) > 2
    np.testing.assert_array_equal(logits(files[0], ids), logits(whole, ids))


def test_every_tensor_of_every_part_is_read_where_it_lies(parts):
    with GGUF(tiny.path("llama3", "q8_0")) as whole, GGUF(parts[0]) as file:
        assert sorted(file) == sorted(whole)
        assert file.path == parts[0]
        assert {info.part for info in file.tensors.values()} == set(range(len(parts)))
        for name in whole:
            assert file[name].blocks.tobytes() == whole[name].blocks.tobytes()
            assert file.beginning(name, 8) == whole.beginning(name, 8)
            file.release(name)
            assert file[name].blocks.tobytes() == whole[name].blocks.tobytes()


def refusal(path):
    with pytest.raises(ModelFormatError) as caught:
        GGUF(path)
    return caught.value


def test_missing_parts_are_named(parts):
    parts[1].unlink()
    parts[2].unlink()

    error = refusal(parts[0])

    assert parts[1].name in error.what
    assert parts[2].name in error.what
    assert str(parts[0].parent) in error.remedy


def test_a_part_that_is_not_the_first_names_the_first(parts):
    assert parts[0].name in refusal(parts[1]).remedy


def test_a_first_part_of_another_name_is_refused(parts):
    renamed = parts[0].rename(parts[0].with_name("model.gguf"))

    assert f"{len(parts)} parts" in refusal(renamed).what


def test_a_part_under_the_name_of_another_is_refused(parts):
    parts[2].write_bytes(parts[1].read_bytes())

    error = refusal(parts[0])

    assert parts[2].name in error.what
    assert "split.no is 1, not 2" in error.what


def test_a_damaged_part_is_named(parts):
    parts[1].write_bytes(parts[1].read_bytes()[:-500])

    assert parts[1].name in refusal(parts[0]).what


@pytest.fixture
def two(tmp_path):
    """Return a function that writes two parts of a small model, with the given changes."""

    def write(first=(), second=(), names=("a.weight", "b.weight")):
        for number, changes in enumerate((first, second)):
            keys = {"split.no": number, "split.count": 2, "split.tensors.count": 2} | dict(changes)
            tensor = raw.Tensor(names[number], (32, 2), 0, 0)
            file = raw.File(tensors=[tensor], data=bytes(256))
            for key, content in keys.items():
                file = file.with_key(key, raw.U16, content)
            (tmp_path / f"m-{number + 1:05}-of-00002.gguf").write_bytes(file.encode())
        return tmp_path / "m-00001-of-00002.gguf"

    return write


def test_two_sound_parts_are_read(two):
    with GGUF(two()) as file:
        assert list(file) == ["a.weight", "b.weight"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"second": {"split.count": 3}}, "split.count is 3, not 2"),
        ({"second": {"split.no": 0}}, "split.no is 0, not 1"),
        ({"second": {"split.tensors.count": 7}}, "split.tensors.count is 7, not 2"),
        ({"first": {"split.count": 3}}, "3 parts"),
        ({"first": {"split.count": 60_000}}, "60000 parts"),
        ({"first": {"split.no": 1}}, "not the first"),
        (
            {"first": {"split.tensors.count": 3}, "second": {"split.tensors.count": 3}},
            "2 tensors, but its metadata specify 3",
        ),
        ({"names": ("a.weight", "a.weight")}, "'a.weight' is in an earlier part"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(two, changes, says):
    error = refusal(two(**changes))

    assert says in error.what
    assert error.remedy


def test_a_number_of_parts_that_is_text_is_refused(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(raw.File().with_key("split.count", raw.STRING, "3").encode())

    assert "split.count" in refusal(path).what
