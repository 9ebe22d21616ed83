"""Test the command that installs the packages of an extra."""

import re
import shlex
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from npurt.base import extras

PROJECT = Path(__file__).resolve().parents[2]
# An extra of npurt by name means the index, which has no npurt: "pip install npurt[server]".
OF_THE_INDEX = re.compile(r"\bnpurt\[")


def wanted(extra):
    given = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    found = set()
    for each in given["optional-dependencies"][extra]:
        nested = re.fullmatch(r"npurt\[(.+)\]", each)
        found |= set().union(*map(wanted, nested[1].split(","))) if nested else {each}
    return found


@pytest.mark.parametrize("extra", ["plot", "server", "structured"])
def test_the_command_installs_the_packages_of_the_extra(extra):
    words = shlex.split(extras.command(extra))

    assert words[:2] == ["pip", "install"]
    assert set(words[2:]) == wanted(extra)


def test_the_command_of_a_checkout_that_is_not_installed_names_the_checkout(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", missing)

    assert extras.command("server") == "pip install '.[server]' in the checkout of npurt"


def test_nothing_that_a_user_reads_installs_npurt_from_an_index():
    texts = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *PROJECT.glob("docs/**/*.md")]
    texts += [*PROJECT.glob("npurt/**/*.py"), *PROJECT.glob("examples/**/*.py")]
    plain = re.compile(r"\b(?:pip|pipx|uv)\b[^\n`]* install (?:-\S+ )*npurt\b")

    found = [
        f"{path.relative_to(PROJECT)}: {line.strip()}"
        for path in texts
        for line in path.read_text().splitlines()
        if (OF_THE_INDEX.search(line) and "fullmatch" not in line) or plain.search(line)
    ]
    assert found == []
