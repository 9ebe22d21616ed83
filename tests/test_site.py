"""Test the documentation site: the navigation has every page, generated pages are complete."""

import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest
import yaml

import npurt
from npurt import errors, settings
from npurt.cli import VERBS

PROJECT = Path(__file__).resolve().parents[1]
DOCS = PROJECT / "docs"


@pytest.fixture(scope="module")
def hooks():
    """Return a function that imports a module of the site's hooks by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS / "hooks"))
        yield importlib.import_module
    for name in ("markup", "picture", "reference", "shared_lines"):
        sys.modules.pop(name, None)


def in_navigation(entry):
    """Return the pages of an entry of mkdocs.yml's `nav`."""
    if isinstance(entry, str):
        folder = DOCS / entry
        pages = sorted(folder.glob("*.md")) if entry.endswith("/") else [folder]
        return [path.relative_to(DOCS).as_posix() for path in pages]
    below = entry if isinstance(entry, list) else entry.values()
    return [page for each in below for page in in_navigation(each)]


def test_every_page_is_in_the_navigation_once(hooks):
    made = {"index.md", *hooks("reference").pages()}
    kept = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}

    pages = in_navigation(yaml.safe_load((PROJECT / "mkdocs.yml").read_text())["nav"])

    assert (made | kept) - set(pages) == set(), "pages that `nav` of mkdocs.yml lacks"
    assert set(pages) <= made | kept
    assert len(pages) == len(set(pages))


def test_the_reference_has_every_public_name(hooks):
    page = hooks("reference").api()

    assert "::: npurt.matmul\n" in page
    for name in npurt.__all__:
        there = f"::: npurt.{name}\n" in page
        assert there == (not hasattr(errors, name) and name != "__version__"), name


def documented(griffe, hooks):
    """Yield (name, signature's names, documented names) of each function on the API's page."""
    extension = hooks("shared_lines").SharedLines()
    package = griffe.load(
        "npurt", search_paths=[PROJECT], extensions=griffe.load_extensions(extension),
        docstring_parser="google", docstring_options={"warnings": False}, resolve_aliases=True,
    )  # fmt: skip
    names = re.findall(r"^::: npurt\.(.+)$", hooks("reference").api(), re.M)
    homes = [npurt._HOMES.get(name, "")[6:] + f".{name}" for name in names if "." not in name]
    for name in [*(h for h in homes if h[0] != "."), *(n for n in names if "." in n)]:
        found = package[name]
        members = [found]
        if found.is_class:
            members += [m for n, m in found.members.items() if n[0] != "_" and m.is_function]
        for each in members:
            function = each.members.get("__init__") if each.is_class else each
            if function is None or each.docstring is None or not function.is_function:
                continue
            sections = [s for s in each.docstring.parsed if s.kind.value == "parameters"]
            taken = {parameter.name.lstrip("*") for parameter in function.parameters}
            yield each.path, taken, [row.name.lstrip("*") for s in sections for row in s.value]


def test_the_reference_has_a_row_with_its_default_for_each_argument(hooks):
    """mkdocs says "required" of a row whose name the signature does not have."""
    griffe = pytest.importorskip("griffe")

    rows = list(documented(griffe, hooks))

    assert len(rows) > 40
    assert [(path, set(said) - taken) for path, taken, said in rows if set(said) - taken] == []


def test_the_reference_begins_with_the_first_steps(hooks):
    page = hooks("reference").api()

    assert re.findall(r"^::: (npurt\.\w+)$", page, re.M)[:3] == [
        "npurt.pack", "npurt.matmul", "npurt.Llama",
    ]  # fmt: skip


def test_the_help_states_no_inverted_default_and_no_loose_group(hooks):
    page = hooks("reference").command_line()

    assert "(default: True)" not in page
    for verb in ("serve", "run"):
        usage = page.partition(f"usage: npurt {verb} ")[2].partition("\n\n")[0]
        assert re.search(r"[(\[]-m FILE \| -hf REPO", usage), usage
    assert " matmul ..." not in page


def test_the_reference_has_all_methods_of_a_model_that_users_call(hooks):
    page = hooks("reference").api()

    options = page.partition("::: npurt.Llama\n")[2].partition(":::")[0]
    shown = yaml.safe_load(options)["options"]
    assert shown["inherited_members"]
    hidden = re.compile(shown["filters"][1].removeprefix("!"))
    for name in ("generate", "chat", "tokenize", "eval", "rewind", "snapshot", "report", "trace"):
        assert inspect.isfunction(getattr(npurt.Llama, name))  # an editor finds it
        assert not hidden.search(name)
    assert hidden.search("marks_calls")  # users do not call it


def test_the_reference_has_the_help_of_every_verb(hooks, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")

    page = hooks("reference").command_line()

    for name in VERBS:
        assert f"\n## npurt {name}\n" in page
    assert "\n## npurt regcmd run\n" in page
    assert "usage: npurt run " in page
    assert max(map(len, page.splitlines())) in range(60, 101)  # for any terminal


def test_the_reference_has_every_environment_variable(hooks):
    page = hooks("reference").environment()

    for name in (*(each.name for each in settings.SETTINGS), settings.SIM_FASTRPC):
        assert f"\n| `{name}` |" in page
    assert "| `NPURT_DEADLINE` | `60` | seconds that one call to an NPU may take |" in page


def test_the_reference_has_every_error_with_its_messages(hooks):
    page = hooks("reference").error_tree()

    sections = {part.partition("\n")[0]: part for part in page.split("\n## ")[1:]}
    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and kind.__module__ == errors.__name__
    }
    assert set(sections) == kinds
    assert (
        r"| a deadline of … seconds is not possible | unset …, or set it to the seconds that "
        "a call may take, such as … |" in sections["SettingError"]
    )
    assert "Exit status of the command line: 2." in sections["UnknownDevice"]
    assert page.count("\n| ") > 200


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("1. a\n\n   b\n2. c", "1. a\n\n    b\n\n2. c"),  # an item after a second paragraph
        ("- a\n  b\n- c", "- a\n    b\n- c"),
        ("text:\n- a", "text:\n\n- a"),
        (
            "1. a\n\n   ```sh\n   - x\n\n   y\n   ```",
            "1. a\n\n    ```sh\n    - x\n\n    y\n    ```",
        ),
        ("```sh\n- x\n  y\n```", "```sh\n- x\n  y\n```"),  # a block of code stays as it is
        ("1. a\n\nb\n\n  c", "1. a\n\nb\n\n  c"),
    ],
)
def test_lists_are_written_as_mkdocs_reads_them(hooks, written, wanted):
    assert hooks("markup").with_lists(written) == wanted


def test_what_a_block_needs_is_its_title(hooks):
    text = '   ```sh needs="a board"\n   npurt\n   ```\n```sh\n```'

    assert hooks("markup").with_reasons(text) == text.replace('needs="', 'title="needs ')


def test_the_readme_is_the_first_page_of_the_site(hooks):
    text = "[a](docs/a.md#b) [c](https://c) [d](#d) ![e](docs/e.svg) [f](bench/F.md) [g](docs)"

    assert hooks("markup").seen_from_docs(text) == (
        "[a](a.md#b) [c](https://c) [d](#d) ![e](e.svg) [f](../bench/F.md) [g](.)"
    )


def test_the_picture_shows_what_the_command_prints(hooks, real_model):
    picture = hooks("picture")
    shown, printed = picture.PICTURE.read_text(), picture.output(real_model("smollm2-135m"))

    def lines(drawn):
        """Return each line without numbers; rows are sorted by time."""
        return sorted(re.sub(r"[\d.]+(e-\d+)?|\s+", " ", line) for line in drawn.splitlines())

    assert lines(picture.draw(printed)) == lines(shown)
    assert "red, blue, and yellow" in shown.replace(picture.BLANK, " ")
    assert len(shown) < 4096
