"""Test the number of modules that Python loads before npurt works; no time is asserted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import HANG_SECONDS
from tests.llm import tiny

PROJECT = Path(__file__).resolve().parents[1]

# Modules that a start loads in addition to `python -c pass`: npurt's, and the number of others.
# The others are Python's; their number depends on its version, so a fourth more is accepted.
IMPORT = "import npurt"
VERSION = "import npurt.cli; npurt.cli.main(['--version'])"
HELP = "import npurt.cli; npurt.cli.parser()"
FIRST = {"npurt", "npurt.errors", "npurt.version"}
FIRST |= {"npurt.base", "npurt.base.late"}
STARTS = {
    IMPORT: (FIRST, 10),
    VERSION: (
        FIRST
        | {"npurt.cli", "npurt.cli.arguments", "npurt.cli.arguments.parser", "npurt.cli.signals"}
        | {"npurt.settings"},
        42,
    ),
}
SHOW = "\nimport sys, json; print(json.dumps(sorted(sys.modules)))"


def loaded(code):
    """Return the modules that a new Python has after *code*."""
    done = subprocess.run(
        [sys.executable, "-c", code + SHOW],
        capture_output=True, check=True, cwd=PROJECT, text=True, timeout=HANG_SECONDS,
    )  # fmt: skip
    return {*json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.parametrize("start", STARTS)
def test_a_start_loads_few_modules_of_npurt_and_none_of_others(start):
    ours, others = STARTS[start]

    new = loaded(start) - loaded("pass")

    npurts = {name for name in new if name.partition(".")[0] == "npurt"}
    assert npurts == ours
    assert {name.partition(".")[0] for name in new - npurts} <= sys.stdlib_module_names
    assert 0 < len(new - npurts) <= others * 5 / 4


def test_the_verbs_load_no_other_package():
    """Help texts and usage errors need only Python and npurt."""
    new = loaded(HELP) - loaded("pass")

    assert {name.partition(".")[0] for name in new} <= sys.stdlib_module_names | {"npurt"}
    assert {"npurt.cli.verbs.run", "npurt.cli.verbs.regcmd_run"} <= new


def test_a_verb_loads_no_other_verb():
    new = loaded("import npurt.cli; npurt.cli.main(['run', '-m', '/nothing', '-p', 'x'])")

    assert "npurt.cli.verbs.run" in new
    assert not {"npurt.cli.verbs.devices", "npurt.cli.verbs.serve"} & new


def test_a_server_of_one_model_loads_no_engine():
    """The front has neither weights nor kernels; metrics are loaded on request."""
    new = loaded("import npurt.serve.run, npurt.serve.front.served_model")

    assert "npurt.llm.text.tokenizer" in new
    engines = {"npurt.cpu.device", "npurt.cpu.kernels", "npurt.llm.arch", "npurt.serve.router"}
    assert not (engines | {"prometheus_client"}) & new
    assert "numpy" not in new


def test_models_load_nothing_for_grammars():
    """The modules for grammars are loaded with the first grammar."""
    heavy = {"npurt.llm.decode.grammar.gbnf", "npurt.llm.decode.grammar.schemas", "decimal"}
    heavy |= {"difflib", "llguidance"}

    assert not heavy & (loaded(f"{IMPORT}; npurt.Llama, npurt.Grammar") - loaded("pass"))
    assert "npurt.llm.decode.grammar.schemas" in loaded(f"{IMPORT}; npurt.Grammar.json_object()")


def test_opening_a_model_loads_what_a_generation_needs():
    """Opening takes 0.15 ms for each module of npurt, so 20 more modules must be justified."""
    path = str(tiny.path("llama3", "f32"))
    new = loaded(f"{IMPORT}; npurt.Llama({path!r}, 'cpu', progress=False)") - loaded("pass")

    assert not {"concurrent.futures", "jinja2", "logging", "numpy.random", "pycparser"} & new
    assert not {"npurt.hexagon", "npurt.rknpu", "npurt.serve"} & new
    assert 0 < sum(name.partition(".")[0] == "npurt" for name in new) <= 205


def test_what_renders_markdown_is_loaded_by_an_answer_on_a_terminal():
    path = str(tiny.path("llama3", "q8_0"))
    chat = f"import npurt.cli; npurt.cli.main(['chat', '-m', {path!r}, '-n', '2'])"

    new = loaded(f"import io, sys; sys.stdin = io.StringIO('Hello'); {chat}")

    assert "npurt.cli.output.terminal" in new
    assert not {"rich", "markdown_it", "pygments"} & new


def test_the_count_sees_what_is_loaded():
    assert {"numpy", "npurt.quant"} <= loaded(f"{IMPORT}; npurt.QTensor")
