"""Every command that opens a model accepts one from a hub or a URL."""

import errno
import json

import pytest

from tests.llm import tiny
from tests.models.hub_server import REPO

MODEL = tiny.path("llama3", "q8_0").read_bytes()


@pytest.fixture
def real(hub):
    """Let the hub serve a valid model."""
    hub.repos[REPO] = {"llama3-Q4_K_M.gguf": MODEL}
    hub.pages["/pages/llama3.gguf"] = MODEL
    return hub


@pytest.mark.parametrize("option", ["-hf", "--hf-repo", "-m"])
def test_run_takes_a_repository(real, npurt, option):
    repo = f"hf:{REPO}" if option == "-m" else REPO
    here = npurt("run", "-m", tiny.path("llama3", "q8_0"), "-p", "a", "-n", 4, "--temp", 0)

    result = npurt("run", option, repo, "-p", "a", "-n", 4, "--temp", 0)

    assert result.code == 0, result
    assert result.out == here.out


@pytest.mark.parametrize(
    "command",
    [
        ("chat",),
        ("bench", "-p", 8, "-n", 0, "-r", 1),
        ("plan", "--graph"),
        ("embed", "-p", "x"),
        ("perplexity", "-c", 16, "-f", __file__, "--chunks", 1),
    ],
    ids=lambda command: command[0],
)
def test_every_verb_that_takes_a_model_takes_a_repository(real, npurt, command):
    real.repos[REPO] = {"llama3-Q4_K_M.gguf": tiny.path("qwen2", "q8_0").read_bytes()}
    verb, *rest = command

    result = npurt(verb, "-hf", REPO, *rest)

    assert result.code == 0, result
    assert len(real.downloads()) == 1


def test_run_takes_a_url_and_a_draft_of_a_repository(real, npurt):
    result = npurt(
        "run", "-m", f"{real.url}/pages/llama3.gguf", "-hfd", REPO, "-p", "a", "-n", 4, "--json"
    )

    assert result.code == 0, result
    assert json.loads(result.out)["timing"]["speculation"]


def test_a_repository_that_does_not_exist_is_one_error(real, npurt):
    result = npurt("run", "-hf", "Org/None", "-p", "a")

    assert result.code == 1
    assert "Org/None" in result.err
    assert "remedy" in result.err


def test_an_error_of_the_system_is_not_one_of_the_output(npurt, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("npurt.cli.verbs.devices.run", fail)

    result = npurt("devices")

    assert result.code == 1
    assert "Too many open files" in result.err
    assert "output" not in result.err
    assert "remedy" in result.err
