"""Hooks of mkdocs: generate pages from README.md and the code, and convert links out of docs/.

The generated pages are not in the repository.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).resolve().parents[1]
PROJECT = DOCS.parent
sys.path[:0] = [str(PROJECT), str(DOCS / "hooks")]

import markup  # noqa: E402 - beside this file, which mkdocs loads by its path
import reference  # noqa: E402

from npurt.version import __version__  # noqa: E402


def on_config(config: Any) -> None:
    """Replace each folder in the navigation by the pages of the folder."""
    config.nav = [_with_pages(entry) for entry in config.nav]


def _with_pages(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {name: _with_pages(value) for name, value in entry.items()}
    if isinstance(entry, list):
        return [_with_pages(each) for each in entry]
    if not entry.endswith("/"):
        return entry
    pages = sorted(p.relative_to(DOCS).as_posix() for p in (DOCS / entry).glob("*.md"))
    return sorted(pages, key=lambda page: not page.endswith("README.md"))  # the index first


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    made = {"index.md": markup.seen_from_docs(readme), **reference.pages()}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to folders and to files outside docs/ to the repository, where it is known.

    A release knows it by the variables of GitHub's runners.  Without it only the words are left.
    """
    server, name = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
    folder = (DOCS / page.file.src_uri).parent

    def link(found: re.Match[str]) -> str:
        mark, words, target, section = found.groups()
        path = (folder / target).resolve()
        if path.is_relative_to(DOCS) and not path.is_dir():
            return found[0]
        if not path.exists() or not (server and name):
            return found[0] if not path.exists() else words
        at = path.relative_to(PROJECT).as_posix()
        return f"{mark}[{words}]({server}/{name}/blob/v{__version__}/{at}{section or ''})"

    return markup.LINK.sub(link, markup.with_lists(markup.with_reasons(markdown)))
