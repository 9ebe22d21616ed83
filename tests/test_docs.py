"""What the documents say can be done: commands parse, links lead somewhere, the example runs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from npurt.cli import parser
from npurt.llm.arch import ARCHITECTURES
from npurt.quant.types import FORMATS
from tests import extending
from tests.limits import HANG_SECONDS

PROJECT = Path(__file__).resolve().parents[1]
README = PROJECT / "README.md"
TESTING = PROJECT / "docs/testing.md"
ARRAYS = PROJECT / "docs/arrays.md"
LLAMA_CPP = PROJECT / "docs/llama-cpp-python.md"
DOCUMENTS = [README, PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").rglob("*.md"))]
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"


def commands(path):
    """Yield each `npurt` command of a document's blocks, taken apart."""
    text = path.read_text()
    lines = "".join(re.findall(r"^```\w*\n(.+?)^```", text, re.M | re.S)).splitlines()
    lines += re.findall(r"^ {4}(.*)", text, re.M)
    for line in lines:
        for command in line.partition("#")[0].split(" ; "):
            if command.startswith("npurt "):
                yield shlex.split(command)[1:]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(PROJECT)))
def test_every_command_of_a_block_parses(path):
    for command in commands(path):
        try:
            parser().parse_args(command)
        except SystemExit:
            pytest.fail(f"npurt {shlex.join(command)}")


def test_the_readme_has_commands():
    assert len(list(commands(README))) > 10


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(PROJECT)))
def test_every_link_leads_somewhere(path):
    text = path.read_text()
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    links += re.findall(r"\b(?:tests|docs|bench|sim|dsp|idl|npurt)/[\w/]+\.\w+", text)
    local = {link for link in links if not link.startswith("http")}
    local -= set(extending.created(text))

    assert [x for x in local if not (path.parent / x).exists() and not (PROJECT / x).exists()] == []


def anchors(path):
    """Return what a link may name in a document: its headings, as GitHub writes them in URLs."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(PROJECT)))
def test_every_link_to_a_section_finds_it(path):
    links = re.findall(r"\]\(((?!http)[^)#]*)#([^)]+)\)", path.read_text())

    assert [
        (file, name)
        for file, name in links
        if name not in anchors(path.parent / file if file else path)
    ] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(PROJECT)))
def test_every_file_of_npurt_that_is_named_exists(path):
    text = path.read_text()
    names = re.findall(r"`((?:[a-z]\w*/)+\w+\.(?:py|c|h|inc|md))`", text)
    folders = PROJECT, PROJECT / "npurt", path.parent
    of_linux = ("drivers/", "arch/", "src/", "linux/", "include/")

    assert [
        name
        for name in names
        if not name.startswith(of_linux) and not any((f / name).exists() for f in folders)
    ] == []


def row_of_the_readme(name):
    """Return the second cell of a row of the support matrix."""
    (cell,) = re.findall(rf"^\| {name} \| (.+) \|$", README.read_text(), re.M)
    return cell


def test_the_readme_lists_all_architectures_and_tensor_types():
    architectures = re.findall(r"`([\w-]+)`", row_of_the_readme("architectures"))
    types = row_of_the_readme("tensor types").lower().split()

    assert sorted(architectures) == sorted(ARCHITECTURES)
    assert sorted(types) == sorted(form.name for form in FORMATS)


def test_what_ci_runs_is_what_the_documents_say():
    rows = re.findall(r"^\| `make (\w+)[^|]*\|[^|]*\| (yes|no) \|$", TESTING.read_text(), re.M)
    commands = re.findall(r"^[^#\n]*\bmake (\w+)", (PROJECT / ".ci/run").read_text(), re.M)

    assert {name for name, said in rows if said == "yes"} == set(commands)
    assert {name for name, _ in rows} == {"test", "sanitize", "foreign", "kernel", "soak"}


def test_the_example_of_the_readme_runs(real_model):
    (example,) = re.findall(r"```python\n(.+?)```", README.read_text(), re.S)
    assert example.count(MODEL) == 1
    code = re.sub(rf'"[^"]*{MODEL}"', repr(str(real_model("smollm2-135m"))), example)

    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        cwd=PROJECT,
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert "offload: 100.0 % of MACs on cpu" in result.stdout


def test_the_example_for_llama_cpp_python_runs(real_model):
    (example,) = re.findall(r"```python\n(.+?)```", LLAMA_CPP.read_text(), re.S)
    assert example.count(MODEL) == 1
    code = re.sub(rf'"[^"]*{MODEL}"', repr(str(real_model("smollm2-135m"))), example)

    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        cwd=PROJECT,
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("Q: Name the planets. A: ")


def test_the_example_of_weights_in_numpy_runs():
    (example,) = re.findall(r"^```python\n(.+?)^```", ARRAYS.read_text(), re.M | re.S)

    result = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=HANG_SECONDS
    )

    assert (result.returncode, result.stderr) == (0, "")
    said = [line.partition("  # prints ")[2] for line in example.splitlines()]
    assert result.stdout.splitlines() == [line for line in said if line]


def test_the_example_of_an_architecture_is_its_file():
    text = (PROJECT / "docs/extending/architecture.md").read_text()
    (example,) = re.findall(r"^```python\n(.+?)^```", text, re.M | re.S)

    assert (PROJECT / "npurt/llm/arch/smollm3.py").read_text().endswith(f"\n\n{example}")
