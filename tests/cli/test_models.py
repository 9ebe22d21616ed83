"""`npurt models`: lists known and local models, and downloads only on request."""

import json

import pytest

from npurt.llm.file.gguf import GGUF
from npurt.llm.measure.memory import memory
from npurt.models import catalogue
from tests.cli.conftest import assert_failed, assert_usage
from tests.llm import tiny
from tests.llm.test_parts import split
from tests.models.hub_server import REPO

NAMES = ["smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"]


@pytest.fixture(autouse=True)
def elsewhere(hub, tmp_path, monkeypatch):
    """Look for models in empty folders only."""
    monkeypatch.chdir(tmp_path)


def listed(npurt, *arguments):
    return json.loads(npurt("models", *arguments, "--json").out)


def test_the_catalogue_is_listed_with_sizes_licences_and_memory(npurt):
    rows = listed(npurt)

    assert [row["name"] for row in rows] == NAMES
    assert rows[0] == {
        "name": "smollm2-135m",
        "file": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "source": "catalogue",
        "path": None,
        "bytes": 98_362_432,
        "license": "Apache-2.0",
        "memory": 190_948_608,
    }
    result = npurt("models")
    lines = result.out.splitlines()
    assert lines[0].split() == ["name", "size", "licence", "memory", "source", "path"]
    assert lines[1].split()[1:] == [
        "0.10", "GB", "Apache-2.0", "0.19", "GB", "catalogue", "not", "fetched",
    ]  # fmt: skip
    assert "pandas-sns" in result.out


@pytest.mark.parametrize("name", NAMES)
def test_the_memory_of_the_catalogue_is_that_of_the_files(real_model, name):
    with GGUF(real_model(name)) as file:
        assert catalogue.CATALOGUE[name].memory == memory(file)


def test_memory_is_weights_and_keys_and_values():
    with GGUF(tiny.path("llama3", "q8_0")) as file:
        layers, heads, width = (
            file.metadata[f"llama.{key}"]
            for key in ("block_count", "attention.head_count_kv", "rope.dimension_count")
        )
        weights = sum(info.nbytes for info in file.tensors.values())

        assert memory(file, 100) == weights + 100 * 2 * 2 * layers * heads * width


def test_files_are_listed_once_with_what_their_headers_say(npurt, tmp_path):
    (tmp_path / "models").mkdir()
    file = tiny.read(tiny.path("llama3", "q8_0")).with_key("general.license", 8, "mit\x1b[2J")
    path = tiny.write(file, tmp_path / "models", "mine.gguf")
    (tmp_path / "models/broken.gguf").write_bytes(b"GGUF")
    (tmp_path / "models/notes.txt").write_bytes(b"GGUF")

    rows = listed(npurt)[3:]

    with GGUF(path) as opened:
        needed = memory(opened)
    assert [(r["file"], r["source"], r["bytes"], r["memory"]) for r in rows] == [
        ("broken.gguf", "file", 4, None),
        ("mine.gguf", "file", path.stat().st_size, needed),
    ]
    out = npurt("models").out
    assert "mit[2J" in out
    assert "\x1b" not in out


def test_a_split_model_is_one_model(npurt, tmp_path):
    (tmp_path / "models").mkdir()
    whole = tiny.path("llama3", "q8_0")
    files = split(whole, tmp_path / "models", tensors=7)

    (row,) = listed(npurt)[3:]

    assert row["path"] == str(files[0])
    assert row["bytes"] == sum(file.stat().st_size for file in files)
    with GGUF(whole) as opened:
        assert row["memory"] == memory(opened)

    files[-1].unlink()
    assert listed(npurt)[3:] == []


def test_models_of_a_hub_and_of_urls_are_listed_as_m_takes_them(npurt, hub):
    model = tiny.path("llama3", "q8_0").read_bytes()
    hub.repos[REPO] = {"q/llama3-Q4_K_M.gguf": model}
    hub.pages["/pages/a.gguf"] = model
    fetched = npurt("models", "fetch", f"hf:{REPO}", f"{hub.url}/pages/a.gguf")
    assert fetched.code == 0, fetched

    rows = listed(npurt)[3:]

    assert [(row["source"], row["bytes"]) for row in rows] == [
        ("URL", len(model)),
        ("hub", len(model)),
    ]
    assert [row["path"] for row in rows] == fetched.out.split()[::-1]
    assert rows[1]["name"] == f"hf:{REPO}/q/llama3-Q4_K_M.gguf"
    for row in rows:
        assert npurt("run", "-m", row["name"], "-p", "a", "--raw", "-n", 1, "-c", 16).code == 0


def test_a_folder_of_ones_own_is_all_that_is_looked_into(npurt, tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/here.gguf").write_bytes(b"GGUF")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/there.gguf").write_bytes(b"GGUF")

    assert [row["file"] for row in listed(npurt, "--folder", tmp_path / "mine")[3:]] == [
        "there.gguf"
    ]
    monkeypatch.setenv("NPURT_MODELS", str(tmp_path / "mine"))
    assert [row["file"] for row in listed(npurt)[3:]] == ["there.gguf", "here.gguf"]


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"XDG_CACHE_HOME": "x"}, "x/npurt/models"),
        ({"NPURT_CACHE": "y"}, "y/models"),
        ({"NPURT_CACHE": "y", "NPURT_MODELS": "z"}, "z"),
        ({"HOME": "h"}, "h/.cache/npurt/models"),
    ],
)
def test_models_are_kept_in_the_cache_of_the_user(npurt, monkeypatch, variables, folder):
    for name in ("NPURT_MODELS", "NPURT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert f" into {folder}?" in npurt("models", "fetch").err


def test_a_model_in_the_folder_of_earlier_versions_is_found(npurt, tmp_path, monkeypatch):
    model = tiny.path("llama3", "q8_0")
    small = catalogue.Model("small.gguf", model.stat().st_size, "", (), "")
    monkeypatch.setattr(catalogue, "CATALOGUE", {"small": small})
    (tmp_path / "models").mkdir()
    (tmp_path / "models/small.gguf").symlink_to(model)

    assert npurt("run", "-m", "small", "-p", "a", "--raw", "-n", 1, "-c", 16).code == 0


# --- Downloads ------------------------------------------------------------------------------------


@pytest.fixture
def fetched(monkeypatch):
    """Replace downloads; return the names that were requested."""
    names = []

    def fetch(name, folder, **options):
        names.append(name)
        return folder / name

    monkeypatch.setattr(catalogue, "fetch", fetch)
    return names


@pytest.mark.parametrize("answer", [b"", b"n\n", b"\n", b"maybe\n"])
def test_the_whole_catalogue_is_not_fetched_without_a_yes(npurt, fetched, answer):
    result = npurt("models", "fetch", stdin=answer)

    assert result.code == 2
    assert "1.71 GB" in result.err
    assert "--yes" in result.err
    assert fetched == []


@pytest.mark.parametrize(("flags", "answer"), [(("--yes",), b""), ((), b"y\n"), ((), b"YES\n")])
def test_the_whole_catalogue_is_fetched_with_a_yes(npurt, fetched, flags, answer):
    assert npurt("models", "fetch", *flags, stdin=answer).code == 0
    assert fetched == NAMES


def test_a_model_that_is_named_is_fetched_without_a_question(npurt, fetched):
    assert npurt("models", "fetch", NAMES[1]).code == 0
    assert fetched == NAMES[1:2]


def test_a_model_that_is_there_is_not_fetched_again(npurt, real_model):
    path = real_model("smollm2-135m")

    for flags, out in ((), f"{path}\n"), (("--json",), json.dumps([str(path)]) + "\n"):
        result = npurt("models", "fetch", "smollm2-135m", "--folder", path.parent, *flags)
        assert (result.code, result.out) == (0, out)


def test_a_model_that_nobody_knows_cannot_be_fetched(npurt, tmp_path):
    assert_failed(npurt("models", "fetch", "gpt-5", "--folder", tmp_path), "gpt-5", code=2)


def test_listing_takes_no_names(npurt):
    assert_usage(npurt("models", "list", "smollm2-135m"))
