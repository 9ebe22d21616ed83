"""Tests of saved states: they load with identical results, and other files are refused."""

import hashlib
import os
import stat
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npurt
from npurt.errors import LayoutError, SettingError, StateFormatError
from npurt.llm.state import state_file
from tests.llm import tiny, variants
from tests.llm.conftest import OPTIONS


@given(st.integers(0, 100), st.integers(0, 20))
def test_a_saved_state_is_gone_on_from(pair, tmp_path_factory, length, more):
    llm, straight, ids = pair
    path = tmp_path_factory.mktemp("state") / "state"
    llm.reset()
    llm.eval(ids[:length])
    llm.save_state(path)
    wanted = llm.eval(ids[100 : 105 + more])

    straight.reset()
    straight.eval(ids[3:9])
    straight.load_state(path)

    assert straight.history == tuple(ids[:length])
    np.testing.assert_array_equal(straight.eval(ids[100 : 105 + more]), wanted)
    straight.rollback(more)
    assert straight.history == tuple(ids[:length]) + tuple(ids[100:105])


@pytest.fixture
def saved(hybrid, tmp_path):
    """Return a model and the file of its state after 30 tokens."""
    hybrid.eval(tiny.ids("qwen35", 30))
    hybrid.save_state(tmp_path / "state")
    return hybrid, tmp_path / "state"


def sealed(data):
    """Return *data* with its checksum appended."""
    return data + hashlib.sha256(data).digest()


def refused(llm, path, match):
    before = llm.history
    with pytest.raises(StateFormatError, match=match) as caught:
        llm.load_state(path)
    assert caught.value.remedy
    assert llm.history == before


def header(data, **changes):
    """Return *data* with fields of its header changed."""
    fields = dict(zip(("magic", "version", "form", "length", "own", "identity"),
                      state_file.HEADER.unpack_from(data), strict=True))  # fmt: skip
    return state_file.HEADER.pack(*(fields | changes).values()) + data[state_file.HEADER.size :]


def test_a_file_that_holds_no_state_is_refused(saved, tmp_path):
    llm, path = saved
    refused(llm, tmp_path / "nothing", "No such file")
    refused(llm, tmp_path, "Is a directory")
    for content in (b"", b"npurt", b"GGUF" * 40, bytes(200)):
        path.write_bytes(content)
        refused(llm, path, "is not a saved state")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"version": 1}, "has version 1"),
        ({"form": 2}, "states of the unknown format 2"),
        ({"form": 1}, "does not have the expected"),
        ({"identity": bytes(32)}, "another model"),
        ({"length": 29}, "does not have the expected"),
        ({"length": 161}, "holds 161 tokens, but the context holds only 160"),
        ({"length": 2**64 - 1}, "holds 18446744073709551615 tokens"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(saved, changes, match):
    llm, path = saved
    path.write_bytes(sealed(header(path.read_bytes()[:-32], **changes)))

    refused(llm, path, match)


@given(st.data())
def test_a_damaged_file_is_refused(tmp_path_factory, data):
    llm, path, sound = damaged_by(tmp_path_factory)
    at = data.draw(st.integers(0, len(sound) - 1))
    flipped = bytearray(sound)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(data.draw(st.sampled_from([bytes(flipped), sound[:at], sound + b"x"])))

    refused(llm, path, None)


CACHE = {}


def damaged_by(factory):
    """Return a model, and the path and the bytes of a valid file; make them at the first call."""
    if not CACHE:
        llm = npurt.Llama(tiny.path("qwen35", "f32"), **OPTIONS)
        path = factory.mktemp("damaged") / "state"
        llm.eval(tiny.ids("qwen35", 3))
        llm.save_state(path)
        CACHE["all"] = llm, path, path.read_bytes()
    return CACHE["all"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_state_that_holds_no_numbers_is_refused(saved, value):
    llm, path = saved
    data = bytearray(path.read_bytes()[:-32])
    data[-4:] = struct.pack("<f", value)
    path.write_bytes(sealed(bytes(data)))

    refused(llm, path, "NaN or infinity")


@pytest.mark.parametrize("token", [-1, 608])
def test_tokens_outside_the_vocabulary_are_refused(saved, token):
    llm, path = saved
    data = bytearray(path.read_bytes()[:-32])
    data[state_file.HEADER.size :][:4] = b""
    struct.pack_into("<i", data, state_file.HEADER.size, token)
    path.write_bytes(sealed(bytes(data)))

    refused(llm, path, "outside the vocabulary")


def test_a_state_of_another_model_or_type_of_cache_is_refused(saved, tmp_path):
    _, path = saved
    with npurt.Llama(tiny.path("qwen35", "q8_0"), **OPTIONS) as other:
        refused(other, path, "another model")
    with npurt.Llama(tiny.path("qwen35", "f32"), kv_type="f32", **OPTIONS) as other:
        refused(other, path, "another model or kv_type")
    file = tiny.read(tiny.path("qwen35", "f32"))
    file = tiny.with_tensor(file, "blk.0.ssm_norm.weight", np.ones(32))
    with npurt.Llama(tiny.write(file, tmp_path), **OPTIONS) as other:
        refused(other, path, "another model")


@pytest.mark.parametrize("changed", ["blk.0.ffn_down.weight", "blk.3.attn_v.weight"])
def test_a_state_of_a_model_that_was_trained_further_is_refused(saved, tmp_path, changed):
    """Further training often leaves norms and embeddings unchanged."""
    file = tiny.read(tiny.path("qwen35", "f32"))
    weight = variants.values(file)[changed]
    with npurt.Llama(
        tiny.write(tiny.with_tensor(file, changed, 1.01 * weight), tmp_path), **OPTIONS
    ) as other:
        refused(other, saved[1], "another model")


def test_a_file_is_written_whole_or_not_at_all(saved, monkeypatch):
    llm, path = saved
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    llm.eval([1, 2, 3])
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StateFormatError, match="No space left"):
        llm.save_state(path)

    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("path", [None, 5, b"state", ["state"], "", "/", "a\0b", "a\0b/c"])
def test_what_is_no_path_is_refused(hybrid, path):
    for call in (hybrid.save_state, hybrid.load_state):
        with pytest.raises(StateFormatError) as caught:
            call(path)
        assert caught.value.remedy


def test_a_pipe_is_no_saved_state(hybrid, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused(hybrid, tmp_path / "pipe", "it is not a regular file")


@pytest.mark.parametrize("snapshot", [None, 5, (1, 2)])
def test_what_is_no_snapshot_is_refused(hybrid, snapshot):
    with pytest.raises(LayoutError, match="is no snapshot"):
        hybrid.restore(snapshot)


def test_a_folder_that_is_not_there_is_named(hybrid, tmp_path):
    with pytest.raises(StateFormatError, match="No such file"):
        hybrid.save_state(tmp_path / "nowhere" / "state")


def test_a_saved_state_has_the_rights_of_any_new_file(saved, tmp_path):
    """The file does not have the rights of a temporary file, which only its owner may read."""
    plain = tmp_path / "plain"
    plain.touch()

    assert stat.S_IMODE(saved[1].stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_the_first_bytes_of_a_file_say_what_it_is(saved):
    llm, path = saved
    data = path.read_bytes()

    assert data[:16] == b"npurtsta\x03\x00\x00\x00\x00\x00\x00\x00"
    assert struct.unpack_from("<QQ", data, 16) == (30, 30)
    ids = np.frombuffer(data, "<i4", 30, state_file.HEADER.size)
    assert ids.tolist() == list(llm.history)


def test_a_closed_model_remembers_nothing(hybrid):
    hybrid.eval([1, 2, 3])
    hybrid.close()
    with pytest.raises(SettingError, match="closed"):
        hybrid.rollback(1)
