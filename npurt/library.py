"""C libraries that come with npurt: declared by their own header, opened late."""

import re
from pathlib import Path
from typing import Any

from cffi import FFI

from npurt.errors import DeviceNotFound


def declare(header: Path) -> Any:
    """Return a parser that knows what *header* declares: the one declaration that C reads, too."""
    text = re.sub(r"^\s*#.*$", "", header.read_text(), flags=re.M).replace("NPURT_API ", "")
    parser = FFI()
    parser.cdef(text)
    return parser


def load(parser: Any, path: Path, what: str) -> Any:
    """Open the library at *path*.

    Args:
        parser: From `declare`.
        path: The file.
        what: What is in it, for the error: "the CPU kernels".

    Raises:
        DeviceNotFound: It is missing, or cannot be loaded.
    """
    try:
        return parser.dlopen(str(path))
    except OSError as error:
        raise DeviceNotFound(
            f"cannot load {what}: {error}",
            remedy="reinstall npurt; in a checkout run `pip install -e .`, which compiles them",
        ) from error
