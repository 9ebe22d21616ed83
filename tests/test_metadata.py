"""Test the metadata that a package index gets."""

import re
import tomllib
from pathlib import Path

import pytest
import trove_classifiers
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import npurt
from tools.build import metadata_hook

PROJECT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
REPOSITORY = "https://git.example/someone/npurt"
FILES = f"{REPOSITORY}/blob/v{npurt.__version__}/"


@pytest.fixture
def metadata(monkeypatch):
    """Return a function that reads the metadata as a build on *server*'s runner does."""

    def read(server="https://git.example", name="someone/npurt"):
        monkeypatch.setenv("GITHUB_SERVER_URL", server)
        monkeypatch.setenv("GITHUB_REPOSITORY", name)
        return ProjectMetadata(str(PROJECT), PluginManager())

    return read


def test_the_version_has_one_home(metadata):
    homes = [
        path.name
        for path in (PROJECT / "npurt").rglob("*.py")
        if re.search(r"^__version__ *=", path.read_text(), flags=re.M)
        and not path.is_relative_to(
            PROJECT / "npurt/compat"
        )  # versions of other projects' interfaces
    ]

    assert homes == ["version.py"]
    assert metadata().version == npurt.__version__


def test_the_changelog_begins_with_this_version():
    first = re.search(r"^## (\S+)", (PROJECT / "CHANGELOG.md").read_text(), flags=re.M)

    assert first
    assert first[1] == npurt.__version__


def test_the_author_is_who_the_licence_says(metadata):
    holder = re.search(r"Copyright \(c\) \d+ (.+)", (PROJECT / "LICENSE").read_text())

    assert holder
    assert [author["name"] for author in metadata().core.authors] == [holder[1]]
    assert metadata().core.license_expression == PYPROJECT["license"] == "MIT"


def test_classifiers_are_ones_that_the_index_knows(metadata):
    chosen = metadata().core.classifiers

    assert set(chosen) <= trove_classifiers.classifiers
    assert not any(
        name.startswith("License ::") for name in chosen
    )  # PEP 639: the field `license` has it


def test_addresses_are_those_of_the_repository_that_releases(metadata):
    assert metadata().core.urls == {
        "Source": REPOSITORY,
        "Documentation": f"{FILES}docs/architecture.md",
        "Changelog": f"{FILES}CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    }


def test_links_of_the_readme_lead_to_files_of_the_version(metadata):
    links = re.findall(r"\]\(([^)]*)\)", metadata().core.readme)
    ours = [link for link in links if link.startswith(FILES)]

    assert len(ours) > 10
    for link in ours:
        assert (PROJECT / link.removeprefix(FILES).partition("#")[0]).exists(), link
    assert all(link.startswith(("https://", "http://", "#")) for link in links)


def test_only_links_to_files_change():
    text = "[a](docs/a.md#b) [c](https://c) [d](#d) `x[1](y)`"

    assert metadata_hook.absolute(text, "") == text
    assert metadata_hook.absolute(text.partition(" `")[0], REPOSITORY) == (
        f"[a]({FILES}docs/a.md#b) [c](https://c) [d](#d)"
    )


def test_a_build_elsewhere_names_no_address(metadata):
    found = metadata("", "").core

    assert found.urls == {}
    assert found.readme == (PROJECT / "README.md").read_text()


def test_every_extra_is_used():
    """An extra that no file of npurt imports would only be downloaded."""
    sources = [path.read_text() for path in (PROJECT / "npurt").rglob("*.py")]
    extras = dict(PYPROJECT["optional-dependencies"])
    del extras["dev"], extras["docs"]

    for name, requirements in extras.items():
        for requirement in requirements:
            package = canonicalize_name(Requirement(requirement).name)
            module = package.replace("-", "_")
            used = re.compile(rf'"{package}|^ *(import|from) {module}\b', re.M)
            assert any(used.search(text) for text in sources), (
                f"extra {name}: nothing uses {package}"
            )


def test_every_dependency_is_imported():
    sources = "\n".join(path.read_text() for path in (PROJECT / "npurt").rglob("*.py"))

    for requirement in PYPROJECT["dependencies"]:
        package = Requirement(requirement).name
        module = {"markdown-it-py": "markdown_it"}.get(package, package)
        assert re.search(rf"^\s*(from|import) {module}\b", sources, flags=re.M), package
