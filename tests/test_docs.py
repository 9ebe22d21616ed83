"""What the documents say can be done: commands parse, links lead somewhere, the example runs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from npurt.cli import parser
from tests.limits import HANG_SECONDS

PROJECT = Path(__file__).resolve().parents[1]
README = PROJECT / "README.md"
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
    local = [link for link in links if not link.startswith("http")]

    assert [x for x in local if not (path.parent / x).exists() and not (PROJECT / x).exists()] == []


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


def test_the_example_of_an_architecture_is_its_file():
    text = (PROJECT / "docs/extending/architecture.md").read_text()
    (example,) = re.findall(r"^```python\n(.+?)^```", text, re.M | re.S)

    assert (PROJECT / "npurt/llm/arch/smollm3.py").read_text().endswith(f"\n\n{example}")
