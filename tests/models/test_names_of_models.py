"""Test that the API finds a model in every form that the command line accepts."""

import subprocess
import sys
from pathlib import Path

import pytest

import npurt
from npurt.cli import main
from npurt.compat import mlx_lm
from npurt.compat.llama_cpp import Llama as LlamaCpp
from npurt.errors import ModelFormatError, NpurtError, SettingError
from npurt.models import catalogue
from tests.llm import tiny
from tests.models.hub_server import REPO, sha256

NAME = "Tiny-Q8_0"
PARTS = "Tiny-00001-of-00002", "Tiny-00002-of-00002"


def opened(kind, model, **options):
    """Open *model* with an interface of npurt; return the file that was opened."""
    if kind == "mlx":
        llm, _ = mlx_lm.load(model, **options)
    elif kind == "vocabulary":
        return Path(LlamaCpp(model, vocab_only=True, **options).model_path)
    elif kind == "llama.cpp":
        with LlamaCpp(model, verbose=False, **options) as llm:
            return llm._llm.path
    elif kind == "draft":
        with npurt.Llama(tiny.path(), draft=model, progress=False, **options) as llm:
            assert llm.speculator
        return None
    elif kind == "engine":
        with npurt.Engine(model, progress=False, **options) as engine:
            return engine.llm.path
    else:
        llm = npurt.GGUF(model) if kind == "GGUF" else npurt.Llama(model, progress=False, **options)
    llm.close()
    return llm.path


KINDS = ["Llama", "GGUF", "engine", "draft", "llama.cpp", "vocabulary", "mlx"]


@pytest.fixture
def stored(hub, monkeypatch, tmp_path):
    """Put the tiny model on the hub, under a URL, in the catalogue and in the folder of models."""
    content = tiny.path().read_bytes()
    hub.repos[REPO] = {f"{NAME}.gguf": content}
    hub.pages["/pages/other.gguf"] = content
    model = catalogue.Model("tiny.gguf", len(content), sha256(content), (), "")
    monkeypatch.setattr(catalogue, "CATALOGUE", {"tiny": model})
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("tiny", "Third.Q8_0"):
        (folder / f"{name}.gguf").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    return hub


@pytest.mark.parametrize("kind", KINDS)
def test_the_api_opens_every_form_of_a_model(kind, stored):
    forms = {
        "tiny": "tiny.gguf",  # a name of the catalogue
        f"hf:{REPO}:Q8_0": f"{NAME}.gguf",
        f"{stored.url}/pages/other.gguf": "other.gguf",
        "Third.Q8_0": "Third.Q8_0.gguf",  # the stem of a file in the folder of models
        "models/Third.Q8_0": "Third.Q8_0.gguf",  # the stem of a path
        "other": "other.gguf",  # the stem of a file that was downloaded before
        NAME: f"{NAME}.gguf",
    }
    for form, file in forms.items():
        found = opened(kind, form)
        assert kind in ("draft", "vocabulary") or found.name == file, form


def test_every_verb_opens_a_stem(stored, capsys):
    for verb in (["run", "-p", "x", "-n", "1", "--raw"], ["plan"]):
        assert main([*verb, "-m", "Third.Q8_0"]) == 0, capsys.readouterr().err


def test_a_path_object_is_never_a_name_of_a_hub(stored, tmp_path):
    assert opened("Llama", tmp_path / "models" / "tiny.gguf").name == "tiny.gguf"
    assert opened("Llama", Path("tiny")).name == "tiny.gguf"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        ("nothing", "tiny"),
        ("llama3.2:1b", "tiny"),
        ("Org/Tiny-GGUF", "hf:Org/Tiny-GGUF"),
        ("hf:nothing", "USER/REPO"),
    ],
)
def test_a_model_that_is_nowhere_is_refused_with_the_forms(kind, model, remedy, stored):
    if kind == "mlx" and model == REPO:
        assert opened(kind, model).name == f"{NAME}.gguf"  # a repository, as in mlx-lm
        return
    with pytest.raises(NpurtError) as caught:
        opened(kind, model)

    assert isinstance(caught.value, ModelFormatError | SettingError)
    assert remedy in caught.value.remedy
    assert stored.downloads() == []


def test_a_stem_of_a_split_model_finds_its_first_part(stored, tmp_path):
    for part in PARTS:
        (tmp_path / "models" / f"{part}.gguf").write_bytes(b"GGUF")

    assert npurt.models.locate("Tiny").name == f"{PARTS[0]}.gguf"
    assert npurt.models.locate(PARTS[0]).name == f"{PARTS[0]}.gguf"
    assert npurt.models.locate("models/Tiny").name == f"{PARTS[0]}.gguf"


def test_models_is_there_after_import_npurt():
    code = "import npurt; print(npurt.models.locate.__name__, 'models' in dir(npurt))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.stdout == "locate True\n", done.stderr
