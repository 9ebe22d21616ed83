"""Tests of Ollama's verbs: list, ls, ps, show, pull and rm; and of a file of options."""

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.cli.conftest import assert_failed, assert_usage
from tests.llm import tiny

MODEL = tiny.path("llama3", "q8_0")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder of models with one file, which is the only one on the machine."""
    monkeypatch.setenv("NPURT_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("npurt.models.location.HERE", tmp_path / "models")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "models").mkdir()
    shutil.copy(MODEL, tmp_path / "models" / "tiny.gguf")
    return tmp_path / "models"


def hub_model(folder, revisions=("a",)):
    """Store a model as huggingface_hub does; return its blob and its links."""
    repo = folder.parent / "hub" / "models--someone--tiny-GGUF"
    (repo / "blobs").mkdir(parents=True)
    blob = repo / "blobs" / "0123"
    shutil.copy(MODEL, blob)
    links = []
    for revision in revisions:
        link = repo / "snapshots" / (revision * 40) / "tiny-Q8_0.gguf"
        link.parent.mkdir(parents=True)
        link.symlink_to("../../blobs/0123")
        links.append(link)
    return blob, links


@pytest.mark.parametrize("verb", ["list", "ls"])
def test_the_models_of_the_machine_are_listed(npurt, folder, verb):
    hub_model(folder)
    lines = npurt(verb).out.splitlines()
    assert lines[0].split() == ["name", "size", "modified", "path"]
    assert [line.split()[0] for line in lines[1:]] == [
        str(folder / "tiny.gguf"), "hf:someone/tiny-GGUF/tiny-Q8_0.gguf",
    ]  # fmt: skip
    rows = json.loads(npurt(verb, "--json").out)
    assert rows[0]["bytes"] == MODEL.stat().st_size


def test_a_machine_without_models_says_how_to_get_one(npurt, folder):
    (folder / "tiny.gguf").unlink()
    assert "npurt pull NAME" in npurt("list").err


def test_a_model_is_described(npurt, folder):
    hub_model(folder)
    for name in ("hf:someone/tiny-GGUF", "hf.co/someone/tiny-GGUF", folder / "tiny.gguf", MODEL):
        facts = json.loads(npurt("show", name, "--json").out)
        assert facts["architecture"] == "llama"
        assert facts["bytes"] == MODEL.stat().st_size
        assert facts["context_length"] == 512
    assert "architecture           llama\n" in npurt("show", MODEL).out


def test_an_unknown_model_names_the_known_ones(npurt, folder):
    for verb in ("show", "rm"):
        assert_failed(npurt(verb, "phi"), "no model phi", str(folder / "tiny.gguf"), code=2)
    assert (folder / "tiny.gguf").exists()


def test_a_model_is_deleted_with_its_blob(npurt, folder):
    blob, links = hub_model(folder, ("a", "b"))
    result = npurt("rm", "hf:someone/tiny-GGUF", folder / "tiny.gguf")
    assert result.code == 0
    assert "freed" in result.out
    assert not blob.exists()
    assert not (folder / "tiny.gguf").exists()
    assert "hf:someone" not in npurt("list").out
    assert MODEL.exists()
    assert links


def test_nothing_is_deleted_if_one_name_is_unknown(npurt, folder):
    assert npurt("rm", folder / "tiny.gguf", "phi").code == 2
    assert (folder / "tiny.gguf").exists()


def test_pull_fetches_by_every_name(npurt, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("npurt.models.location.locate", lambda name: asked.append(name) or name)
    monkeypatch.setattr(
        "npurt.models.catalogue.fetch", lambda name, folder: asked.append((name, folder)) or name
    )
    names = ["smollm2-135m", "smollm2:135m"]  # the second as Ollama's users write it
    assert npurt("pull", "hf.co/a/b:Q8_0", "--folder", tmp_path, *names).code == 0
    assert asked == ["hf:a/b:Q8_0", *[("smollm2-135m", tmp_path)] * 2]


def test_pull_of_a_tag_that_no_model_has_fails(npurt, tmp_path):
    result = npurt("pull", "llama3.2:1b", "--folder", tmp_path)
    assert result.code == 1
    assert "no model of that name" in result.err
    assert result.out == ""


@pytest.mark.parametrize(
    "words",
    [("fetch", "--folder", "D", "smollm2-135m"), ("--folder", "D", "fetch", "smollm2-135m"),
     ("fetch", "smollm2-135m", "--folder", "D")],
)  # fmt: skip
def test_options_may_stand_between_the_words_of_models(npurt, monkeypatch, tmp_path, words):
    asked = []
    monkeypatch.setattr(
        "npurt.models.catalogue.fetch", lambda name, folder: asked.append((name, folder)) or name
    )
    words = [tmp_path if word == "D" else word for word in words]
    assert npurt("models", *words).code == 0
    assert asked == [("smollm2-135m", tmp_path)]


class Answer(BaseHTTPRequestHandler):
    body = b""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("body", "code"), [(b'{"models": [{"name": "tiny", "size": 5000000000}]}', 0), (b"<html>", 1)]
)
def test_the_loaded_models_of_a_server_are_listed(npurt, monkeypatch, body, code):
    monkeypatch.setattr(Answer, "body", body)
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        result = npurt("ps", "--url", f"http://127.0.0.1:{server.server_port}")
        thread.join()
    assert result.code == code
    assert ("tiny  5.00 GB" in result.out) == (code == 0)
    if code:
        assert "npurt serve" in result.err


# --- A file of options ----------------------------------------------------------------------------


def test_a_file_has_options(npurt, tmp_path):
    options = tmp_path / "my options"
    options.write_text(f"# a preset\n-m '{MODEL}' --temp 0\n-n 4  # tokens\n")
    plain = npurt("run", "-m", MODEL, "--temp", 0, "-n", 4, "-p", "Hello")
    assert npurt("run", f"@{options}", "-p", "Hello").out == plain.out
    two = npurt("run", f"@{options}", "-p", "Hello", "-n", 2)  # takes precedence
    assert len(two.out) < len(plain.out)


@pytest.mark.parametrize(("text", "said"), [(None, "No such file"), ("-p 'x", "closing")])
def test_a_wrong_file_of_options_is_refused(npurt, tmp_path, text, said):
    if text:
        (tmp_path / "o").write_text(text)
    assert_failed(npurt("run", f"@{tmp_path / 'o'}"), said, code=2)


def test_an_at_sign_elsewhere_is_text(npurt):
    assert_usage(npurt("run", "-p", "@x"), "one of the arguments -m/--model")
