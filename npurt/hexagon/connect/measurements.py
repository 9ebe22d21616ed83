"""Store measurements of a DSP in a JSON file, by board, firmware and FastRPC library.

A missing or damaged file counts as an empty one.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

from npurt.base.files import opened, parsed, replacing
from npurt.hexagon.fastrpc.lib import Library
from npurt.settings import cache_folder

NAME = "hexagon.json"
PLAIN = (str, int, float, bool)  # types of measurements
MAX_BYTES = 1 << 20  # read at most; npurt's file has some hundred bytes


def identity(library: Library, domain: str, root: Path = Path("/")) -> str:
    """Return the key for measurements of *domain*: board, firmware and library.

    Args:
        library: The FastRPC library.
        domain: The DSP, a key of `abi.CDSP`.
        root: The folder of the system's files.
    """
    parts = [domain, _file(Path(library.path))]
    if not library.simulated:
        parts += [_board(root), _firmware(root, domain)]
    return " | ".join(parts)


def _board(root: Path) -> str:
    return _text(root / "sys/firmware/devicetree/base/model")


def _firmware(root: Path, domain: str) -> str:
    """Return name, size and date of the firmware file of *domain*."""
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
    """Return the stored value, or None."""
    return _load().get(identity, {}).get(what)


def remember(identity: str, what: str, value: Any) -> None:
    """Store *value*; do nothing if the folder cannot be written."""
    known = _load()
    known.setdefault(identity, {})[what] = value
    text = json.dumps(known, indent=1)
    with contextlib.suppress(OSError):
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / NAME, durable=False) as file:
            file.write(text.encode())


def _load() -> dict[str, dict[str, Any]]:
    try:
        with opened(cache_folder() / NAME) as file:
            known = parsed(file.read(MAX_BYTES))
    except (OSError, ValueError):
        return {}
    if not isinstance(known, dict) or not all(isinstance(v, dict) for v in known.values()):
        return {}
    return {
        name: {what: value for what, value in values.items() if isinstance(value, PLAIN)}
        for name, values in known.items()
    }
