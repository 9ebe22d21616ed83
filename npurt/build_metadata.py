"""Give the package index the addresses of the project, and a README whose links work there.

Part of the build: not installed; hatchling finds `MetadataHook`.  The project has no address of its
own: a release names the repository that builds it, which GitHub's runners tell by variables.  A
build anywhere else names none.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

if __package__ != "npurt":  # run by hatchling, which knows the path of this file alone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from npurt.version import __version__

ROOT = Path(__file__).resolve().parents[1]


class MetadataHook(MetadataHookInterface):
    """Fills in `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add both to *metadata*."""
        server, name = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
        repository = f"{server}/{name}" if server and name else ""
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, repository)}
        metadata["urls"] = urls(repository)


def urls(repository: str) -> dict[str, str]:
    """Return the addresses of the project at *repository*; none when that is empty."""
    if not repository:
        return {}
    files = f"{repository}/blob/v{__version__}"
    return {
        "Source": repository,
        "Documentation": f"{files}/docs/architecture.md",
        "Changelog": f"{files}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def absolute(text: str, repository: str) -> str:
    """Return *text*, Markdown, with its links to files as links to those of this version."""
    if not repository:
        return text
    base = f"{repository}/blob/v{__version__}/"
    return re.sub(r"\]\((?!https?:|#)", f"]({base}", text)
