"""What was measured of a DSP, kept between processes: one small JSON file, by what it depends on.

Nothing in it is needed: a file that is missing or damaged is one that says nothing.
"""

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from npurt.hexagon.lib import Library
from npurt.settings import cache_folder

NAME = "hexagon.json"


def identity(library: Library, domain: str, root: Path = Path("/")) -> str:
    """Return what measurements of *domain* depend on: board, firmware, library.

    Args:
        root: Where the system's files are.
    """
    parts = [domain, _file(Path(library.path))]
    if not library.simulated:
        parts += [_board(root), _firmware(root, domain)]
    return " | ".join(parts)


def _board(root: Path) -> str:
    return _text(root / "sys/firmware/devicetree/base/model")


def _firmware(root: Path, domain: str) -> str:
    """Return name, size and date of the file that the DSP was started from."""
    for processor in sorted((root / "sys/class/remoteproc").glob("*")):
        if _text(processor / "name") == domain:
            name = _text(processor / "firmware")
            return f"{name} {_file(root / 'lib/firmware' / name)}"
    return "unknown firmware"


def _text(path: Path) -> str:
    try:
        return path.read_text().strip("\0\n ")
    except (OSError, UnicodeDecodeError):
        return "unknown"


def _file(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "unknown"
    return f"{path} {status.st_size} {status.st_mtime_ns}"


def recall(identity: str, what: str) -> Any:
    """Return what is known, or None."""
    return _load().get(identity, {}).get(what)


def remember(identity: str, what: str, value: Any) -> None:
    """Keep *value*; where the folder cannot be written, nothing is kept."""
    known = _load()
    known.setdefault(identity, {})[what] = value
    text = json.dumps(known, indent=1)
    folder = cache_folder()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=NAME) as file:
            file.write(text)
            file.flush()
            os.replace(file.name, folder / NAME)
            file.delete = False


def _load() -> dict[str, dict[str, Any]]:
    try:
        known = json.loads((cache_folder() / NAME).read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(known, dict) or not all(isinstance(v, dict) for v in known.values()):
        return {}
    return known
