"""`npurt plan` of a remote model downloads only the file's header."""

import json
import re

import pytest

from npurt.errors import DownloadError, ModelFormatError
from npurt.llm.file import remote
from npurt.llm.file.gguf import GGUF
from npurt.llm.file.header import Incomplete, read_header
from npurt.llm.file.remote import RemoteGGUF
from npurt.models.location import look_up
from tests.llm import tiny
from tests.models.hub_server import REPO, Fault, answering

MODEL = tiny.path("llama3", "q8_0").read_bytes()
PAGE = "/pages/llama3.gguf"


@pytest.fixture
def real(hub):
    """Let the hub serve a valid model."""
    hub.repos[REPO] = {"llama3-Q4_K_M.gguf": MODEL}
    hub.pages[PAGE] = MODEL
    return hub


def plan(npurt, *arguments):
    result = npurt("plan", "--quick", "--json", *arguments)
    assert result.code == 0, result
    return json.loads(result.out)


def test_a_repository_and_a_url_are_planned_as_the_file_is(real, npurt):
    here = plan(npurt, tiny.path("llama3", "q8_0"))
    assert here["downloaded"]

    for source in (["-hf", REPO], [f"hf:{REPO}:Q4_K_M"], [real.url + PAGE]):
        found = plan(npurt, *source)

        assert not found["downloaded"]
        for same in (
            "memory",
            "cpu_at_most",
            "devices",
            "speed",
            "hexagon_speed",
            "bytes",
            "forms",
        ):
            assert found[same] == here[same]
        for mine, its in zip(found["tensors"], here["tensors"], strict=True):
            assert mine == its | {"error": None}


def test_only_the_header_is_asked_for(real, npurt, monkeypatch):
    monkeypatch.setattr(remote, "FIRST", 4096)
    with GGUF(tiny.path("llama3", "q8_0")) as file:
        start, divisors = file.data_offset, file.tensors["rope_freqs.weight"]

    plan(npurt, "-hf", REPO)

    ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", r).groups() for r in real.downloads()]
    ranges = [(int(first), int(last) + 1) for first, last in ranges]
    *header, last = ranges
    assert [first for first, _ in header] == [0, *(stop for _, stop in header[:-1])]
    assert header[-1][1] < 2 * start + 4096
    assert last == (divisors.offset, divisors.offset + divisors.nbytes)
    assert sum(stop - first for first, stop in ranges) < len(MODEL)


def test_what_is_here_is_not_asked_for(real, npurt):
    npurt("run", "-hf", REPO, "-p", "a", "-n", 1)
    before = len(real.downloads())

    assert plan(npurt, "-hf", REPO)["downloaded"]
    assert len(real.downloads()) == before


def test_the_table_says_memory_devices_and_speed(real, npurt):
    result = npurt("plan", "-hf", REPO)

    assert result.code == 0, result
    for text in ("memory: ", "cpu: ", "hexagon (v68): ", "rknpu: ", "tokens/s", "header"):
        assert text in result.out
    assert "KL divergence" not in result.out  # nothing is simulated because there are no weights


@pytest.mark.parametrize("flags", [["--graph"], ["--graph", "--json"], ["--dot"]])
def test_the_graph_of_a_remote_model_is_that_of_the_file(real, npurt, flags):
    there = npurt("plan", "-hf", REPO, *flags).out
    assert there == npurt("plan", tiny.path("llama3", "q8_0"), *flags).out


def test_a_tensor_is_read_when_it_is_asked_for(real):
    with GGUF(tiny.path("llama3", "q8_0")) as here:
        there = RemoteGGUF(look_up(f"hf:{REPO}"))
        for name in ("output_norm.weight", "blk.1.ffn_down.weight"):
            assert (there[name].dequantize() == here[name].dequantize()).all()
        assert there.beginning("output.weight", 7) == here.beginning("output.weight", 7)


def test_a_split_model_is_one(hub):
    parts = [
        tiny.read(tiny.path("qwen2", "f32")),
    ]
    whole = parts[0]
    names = [f"big-{i:05}-of-00002.gguf" for i in (1, 2)]
    half = len(whole.tensors) // 2
    contents = tiny.contents(whole)
    kept = [(whole.tensors[:half], contents[:half]), (whole.tensors[half:], contents[half:])]
    for i, (tensors, data) in enumerate(kept):
        keys = [("split.no", 4, i), ("split.count", 4, 2)]
        keys.append(("split.tensors.count", 4, len(whole.tensors)))
        part = tiny.with_data(
            whole.but(keys=[*(whole.keys if i == 0 else []), *keys]), tensors, data
        )
        hub.repos.setdefault("Org/Big", {})[names[i]] = part.encode()

    there = RemoteGGUF(look_up("hf:Org/Big"))

    with GGUF(tiny.path("qwen2", "f32")) as here:
        assert set(there) == set(here)
        last = whole.tensors[-1].name
        assert (there[last].dequantize() == here[last].dequantize()).all()


# --- Refusals -------------------------------------------------------------------------------------


def refused(npurt, *arguments):
    result = npurt("plan", *arguments)
    assert result.code == 1, result
    assert "remedy: " in result.err
    return result.err


def test_a_server_without_ranges_is_refused(hub, npurt):
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(MODEL) + MODEL
    with answering(whole) as url:
        said = refused(npurt, f"{url}/m.gguf")
    assert "only whole files" in said
    assert "npurt models fetch" in said


@pytest.mark.parametrize(("status", "remedy"), [(401, "HF_TOKEN"), (404, "in a browser")])
def test_a_server_that_refuses_is_believed(real, npurt, status, remedy):
    real.faults = [Fault(PAGE, times=99, status=status)]
    said = refused(npurt, real.url + PAGE)
    assert str(status) in said
    assert remedy in said


def test_a_repository_that_needs_a_token_is_refused(real, npurt):
    real.private.add(REPO)
    assert "HF_TOKEN" in refused(npurt, "-hf", REPO)


@pytest.mark.parametrize("keep", [3, 20, 1000, -40_000])
def test_a_truncated_file_is_refused(hub, npurt, keep):
    hub.pages[PAGE] = MODEL[:keep]
    said = refused(npurt, hub.url + PAGE)
    assert "llama3.gguf" in said
    assert "choose another file" in said


def test_an_answer_that_is_cut_is_asked_for_again(real, npurt):
    real.faults = [Fault("/store/", times=2, cut=100)]
    assert plan(npurt, "-hf", REPO)["memory"]["weights"] > 0


def test_a_file_that_changes_is_refused(real, monkeypatch):
    monkeypatch.setattr(remote, "FIRST", 4096)
    (file,) = look_up(real.url + PAGE)
    file.read(0, 10)
    real.pages[PAGE] = MODEL[:-1] + b"x"
    with pytest.raises(DownloadError, match="changed"):
        file.read(10, 20)


def test_a_header_without_end_is_not_read(hub, monkeypatch):
    monkeypatch.setattr(remote, "FIRST", 64)
    monkeypatch.setattr(remote, "MAX_BYTES", 1000)
    hub.pages[PAGE] = MODEL
    with pytest.raises(ModelFormatError, match="more than 1000 bytes"):
        RemoteGGUF(look_up(hub.url + PAGE))


def test_every_beginning_of_a_header_is_whole_or_says_what_it_needs():
    whole = read_header(MODEL)
    for length in range(0, whole.data_offset, 97):
        with pytest.raises(Incomplete) as caught:
            read_header(MODEL[:length], len(MODEL))
        assert length < caught.value.needed <= whole.data_offset
    found = read_header(MODEL[: whole.data_offset], len(MODEL))
    assert found.tensors == whole.tensors
