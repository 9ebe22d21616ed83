"""Add the project's URLs, and a README with absolute links, to the metadata of a package.

Part of the build: not installed; hatchling finds `MetadataHook`.  The source contains no project
URL.  A release names the repository that builds it, from environment variables of GitHub's runners.
Other builds name no repository.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

if __package__ != "tools.build":  # hatchling runs this file by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from npurt.version import __version__

ROOT = Path(__file__).resolve().parents[2]


class MetadataHook(MetadataHookInterface):
    """Fills in `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add `readme` and `urls` to *metadata*."""
        server, name = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
        repository = f"{server}/{name}" if server and name else ""
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, repository)}
        metadata["urls"] = urls(repository)


def urls(repository: str) -> dict[str, str]:
    """Return the project's URLs below *repository*; none if *repository* is empty."""
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
    """Return the Markdown *text*; make relative links absolute links to files of this version."""
    if not repository:
        return text
    base = f"{repository}/blob/v{__version__}/"
    return re.sub(r"\]\((?!https?:|#)", f"]({base}", text)
