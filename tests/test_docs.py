"""Test the documents: commands parse, links have targets, and code blocks run."""

import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from itertools import takewhile
from pathlib import Path

import pytest

from npurt.cli import VERBS, parser
from npurt.llm.arch.families import ARCHITECTURES
from npurt.models.catalogue import CATALOGUE
from npurt.quant.types import FORMATS
from tests import blocks, extending
from tests.limits import HANG_SECONDS

PROJECT = Path(__file__).resolve().parents[1]
README = PROJECT / "README.md"
SUPPORT = PROJECT / "docs/support.md"
TESTING = PROJECT / "docs/testing.md"
DOCUMENTS = [README, PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").rglob("*.md"))]
# The maximum number of the documents' blocks that the tests do not run, for a stated reason.
MAX_THAT_DO_NOT_RUN = {
    "a board": 32,
    "a checkpoint": 2,
    "a model that fills gaps": 1,
    "an environment that may change": 1,
    "Docker or Podman": 4,
    "the network": 10,
    "a program of yours": 2,
    "a server that runs": 10,  # tests/serve/test_pages.py runs blocks that only send requests
    "clang 19": 1,
    "ten minutes": 1,
    "a reranker": 1,
}


def commands(path):
    """Yield each `npurt` command of a document's blocks, split into words."""
    lines = [x for b in blocks.blocks(path) if b.language == "sh" for x in b.body.splitlines()]
    for line in lines:
        for command in line.partition("#")[0].split(" ; "):
            if command.startswith("npurt "):
                words = shlex.split(command)[1:]
                yield list(takewhile(lambda word: not re.match(r"\d?>|<|\||&", word), words))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(PROJECT)))
def test_every_command_of_a_block_parses(path):
    for command in commands(path):
        try:
            parser().parse_args(command)
        except SystemExit:
            pytest.fail(f"npurt {shlex.join(command)}")


@pytest.mark.parametrize(
    "path", sorted((PROJECT / "docs/boards").glob("*.md")), ids=lambda p: p.name
)
def test_a_text_to_be_compared_with_the_simulators_is_not_drawn(path):
    for command in (each for each in commands(path) if each[0] == "run"):
        assert parser().parse_args(command).temperature == 0


def test_a_service_that_was_stopped_has_not_failed():
    (unit,) = [
        block.body
        for block in blocks.blocks(PROJECT / "docs/server-setup.md")
        if "[Service]" in block.body
    ]

    assert f"SuccessExitStatus={128 + signal.SIGTERM}\n" in unit


def test_a_service_uses_the_npu_and_what_its_page_created_before():
    """The unit's flags parse; commands of the page create the paths that the unit uses."""
    found = blocks.blocks(PROJECT / "docs/server-setup.md")
    (unit,) = [block for block in found if "[Service]" in block.body]
    before = [block.body for block in found if block.language == "sh" and block.line < unit.line]
    created = "\n".join(before)
    (started,) = re.findall(r"^ExecStart=(.+)$", unit.body, re.M)
    program, *words = shlex.split(started)
    args = parser().parse_args(words)

    assert args.device == "rknpu"
    assert f"python3 -m venv {Path(program).parents[1]}" in created
    assert f"{Path(program).with_name('pip')} install" in created
    model = Path(args.model)
    assert f"--folder {model.parent}" in created
    assert model.name in {each.file for each in CATALOGUE.values() if each.file in started}
    assert f"tee {args.api_key_file}" in created
    (user,) = re.findall(r"^User=(.+)$", unit.body, re.M)
    assert re.search(rf"useradd .*{user}$", created, re.M)


def test_a_new_login_finds_the_environment_of_a_board():
    text = (PROJECT / "docs/boards/README.md").read_text()
    made = [block for block in blocks.blocks(PROJECT / "docs/boards/README.md")
            if "~/npurt" in block.body]  # fmt: skip

    assert len(made) == 2
    assert all(">> ~/.profile" in block.body for block in made), text


def test_the_page_of_the_command_line_has_all_verbs():
    assert {command[0] for command in commands(PROJECT / "docs/command-line.md")} >= set(VERBS)


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) < 90


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(PROJECT)))
def test_every_link_leads_somewhere(path):
    text = path.read_text()
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    links += re.findall(r"\b(?:tests|docs|bench|sim|dsp|idl|npurt)/[\w/]+\.\w+", text)
    local = {link for link in links if not link.startswith("http")}
    local -= set(extending.created(text))

    assert [x for x in local if not (path.parent / x).exists() and not (PROJECT / x).exists()] == []


def anchors(path):
    """Return the anchors of a document: its headings, as GitHub writes them in URLs."""
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


def row_of_support(name):
    """Return the second cell of a row of the table of what works."""
    (cell,) = re.findall(rf"^\| {name} \| (.+) \|$", SUPPORT.read_text(), re.M)
    return cell


def test_the_table_of_what_works_lists_all_architectures_and_tensor_types():
    rows = row_of_support("architectures") + row_of_support("encoders")
    architectures = re.findall(r"`([\w-]+)`", rows)
    types = row_of_support("tensor types").lower().split()

    assert sorted(architectures) == sorted(ARCHITECTURES)
    assert sorted(types) == sorted(form.name for form in FORMATS)


def test_what_ci_runs_is_what_the_documents_say():
    rows = re.findall(r"^\| `make (\w+)[^|]*\|[^|]*\| (yes|no) \|$", TESTING.read_text(), re.M)
    commands = re.findall(r"^[^#\n]*\bmake (\w+)", (PROJECT / ".ci/run").read_text(), re.M)

    assert {name for name, said in rows if said == "yes"} == set(commands)
    assert {name for name, _ in rows} == set(commands) | {"coverage", "soak"}


def pages_that_run():
    """Return the documents with a block that can run here.

    Separate tests run docs/extending: test_extending.py, test_toy_npu.py, and tests below.
    """
    pages = [path for path in DOCUMENTS if path.parent.name != "extending"]
    return [path for path in pages if any(block.runs for block in blocks.blocks(path))]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(PROJECT)))
def test_every_block_says_what_it_is(path):
    assert [block.wrong for block in blocks.blocks(path) if block.wrong] == []


@pytest.mark.parametrize("path", pages_that_run(), ids=lambda p: str(p.relative_to(PROJECT)))
def test_every_block_of_code_runs(path, tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "tests.blocks", path.relative_to(PROJECT)],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        cwd=PROJECT,
        env=blocks.environment(tmp_path),
    )

    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_blocks_that_do_not_run_are_few_and_say_why():
    needs = Counter(block.needs for path in DOCUMENTS for block in blocks.blocks(path))
    del needs[""]

    assert {
        reason: n for reason, n in needs.items() if n > MAX_THAT_DO_NOT_RUN.get(reason, 0)
    } == {}


PAGE = """
```c title="kernel.c"
int x;
```

```python
x = 2
```

```sh
cat kernel.c
```

```text
int ...;
```

```python
print(x + 1)  # prints 3
```
"""


NOT_RUN = '```sh needs="a board"\nfalse\n```\n\n```text'
BY_ITSELF = "cat kernel.c\n```\n\n```text\nint y;\n```"


def run_page(folder, old, new):
    """Run the page with *new* in place of *old*."""
    (folder / "page.md").write_text(PAGE.replace(old, new, 1))
    (folder / "run").mkdir()
    blocks.run(folder / "page.md", folder / "run")


@pytest.mark.parametrize(
    ("old", "new"), [("", ""), ("```sh\ncat kernel.c\n```\n\n```text", NOT_RUN)]
)
def test_a_page_runs(old, new, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "FOLDER", tmp_path)

    run_page(tmp_path, old, new)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("int ...", "char ...", "page.md:14: the block before it printed"),
        ("prints 3", "prints 4", "page.md:18: printed"),
        ("x = 2", "y = 2", "name 'x' is not defined"),
        ("cat kernel.c", "npurt run -m no-model", "page.md:10: status"),
        ("cat kernel.c", "sudo true", "page.md:10: status 127"),
        ("```sh", "```", "page.md:10: the language must be"),
        ("```sh", '```sh because="x"', "page.md:10: after the language"),
        ("```sh", "```sh kernel.c", "page.md:10: after the language"),
        ("cat kernel.c\n```", BY_ITSELF, "page.md:14: the block"),
    ],
)
def test_a_block_that_is_wrong_is_found(old, new, complaint, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "FOLDER", tmp_path)

    with pytest.raises((AssertionError, NameError), match=re.escape(complaint)):
        run_page(tmp_path, old, new)


def test_the_example_of_an_architecture_is_its_file():
    text = (PROJECT / "docs/extending/architecture.md").read_text()
    (example,) = re.findall(r"^```python\n(.+?)^```", text, re.M | re.S)

    assert (PROJECT / "npurt/llm/arch/families/smollm3.py").read_text().endswith(f"\n\n{example}")


def test_decisions_are_numbered_without_a_gap():
    """Each decision begins with its unique number."""
    found = sorted((PROJECT / "docs" / "decisions").glob("*.md"))

    assert [path.name[:4] for path in found] == [f"{i:03}-" for i in range(1, len(found) + 1)]
    for path in found:
        assert path.read_text().startswith(f"# {int(path.name[:3])}. "), path.name
