"""Test every command that documents, decisions and results cite in a sentence.

tests/test_docs.py runs the commands of code blocks.  Here programs are asked for their help, and
the flags that a text names must be there.
"""

import contextlib
import io
import re
import runpy
import shlex
import sys
import warnings
from pathlib import Path

import pytest

from npurt.cli import VERBS, parser
from tests.llm import tiny
from tests.test_docs import DOCUMENTS

PROJECT = Path(__file__).resolve().parents[1]
TEXTS = [*DOCUMENTS, PROJECT / "bench/RESULTS.md", PROJECT / "CHANGELOG.md"]
PROGRAM = re.compile(
    r"python3? (?:-m )?((?:bench|examples|tests|container|docs/hooks|npurt)[\w./]*)"
)
NO_HELP = {  # programs without arguments, or with files only: they are imported
    "docs/hooks/picture.py",
    "-m",
    "tools.build",
    "tests.blocks",
    "tests.serve.screenshot",
}
# A verb that is named without its arguments is complete as a citation.
INCOMPLETE = ("required", "expected one argument")


def cited():
    """Yield each command between backticks or in a docstring of bench/, with its text's path."""
    for path in TEXTS:
        for code in re.findall(r"`([^`\n]+)`", path.read_text()):
            yield path, code
    for path in sorted((PROJECT / "bench").glob("*.py")):
        for line in (path.read_text().split('"""')[1]).splitlines():
            if line.startswith("    python "):
                yield path, line.strip()


CITED = list(cited())
PROGRAMS = sorted(
    {found[1].rstrip(".") for _, code in CITED if (found := PROGRAM.search(code))}
    | {path.relative_to(PROJECT).as_posix() for path in (PROJECT / "bench").glob("*.py")}
)


def run(program, *arguments, name="__main__"):
    """Run a program in this process; return its output."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [program, *arguments])
        patch.syspath_prepend(str((PROJECT / program).parent))
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            if program.endswith(".py"):
                runpy.run_path(str(PROJECT / program), run_name=name)
            else:
                with warnings.catch_warnings():  # other tests may have imported the module
                    warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning)
                    runpy.run_module(program, run_name=name, alter_sys=True)
    return out.getvalue()


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_cited_program_has_the_flags_that_texts_name(program):
    if program in NO_HELP:
        run(program, name="imported")
        return
    said = run(program, "--help")

    assert said.startswith("usage: ")
    missing = [
        (path.name, flag)
        for path, code in CITED
        if (found := PROGRAM.search(code)) and found[1].rstrip(".") == program
        for flag in re.findall(r"(?<=\s)--?[a-z][\w-]*", code[found.end() :])
        if not re.search(rf"{flag}\b", said)
    ]
    assert missing == []


def verbs():
    """Yield the words of each `npurt VERB` that a text cites."""
    for path, code in CITED:
        plain = re.sub(r"^(?:[A-Z_]+=\S+ )*", "", code)
        found = re.match(r"npurt (\w+)", plain)
        if found and found[1] in VERBS and not re.search(r"\.\.\.|\[| @", plain):
            yield path, shlex.split(plain)[1:]


@pytest.mark.parametrize("verb", VERBS)
def test_a_cited_verb_parses(verb):
    wrong, top = [], parser([verb])
    for path, words in verbs():
        if words[0] != verb:
            continue
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                top.parse_args(["fastrpc" if word == "NAME" else word for word in words])
        except SystemExit as error:
            if error.code and not any(each in said.getvalue() for each in INCOMPLETE):
                wrong.append((path.name, shlex.join(words), said.getvalue().splitlines()[-1]))
    assert wrong == []


def test_cited_targets_and_scripts_exist():
    makefile = (PROJECT / "Makefile").read_text()
    targets = {name for _, code in CITED for name in re.findall(r"^make ([a-z]+)", code)}
    scripts = {name for _, code in CITED for name in re.findall(r"^(\.ci/\w+)", code)}

    assert targets >= {"demo", "test", "docs", "wheels"}
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, re.M)] == []
    assert [name for name in scripts if not (PROJECT / name).exists()] == []


def test_the_cache_maintenance_of_a_model_can_be_counted():
    """bench/hexagon_sync.py uses functions of npurt that no other program uses."""
    said = run("bench/hexagon_sync.py", str(tiny.path("qwen3", "q8_0")), "--prompt", "4")

    assert re.fullmatch(
        r'{"step": "prefill of 4", "calls": \d+, .+}\n{"step": "token", "calls": \d+, .+}\n', said
    )
    assert '"calls": 0' not in said
