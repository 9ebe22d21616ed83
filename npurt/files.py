"""Files that are written whole or not at all, and JSON that anybody may have written."""

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Yield a new file; it takes the name *path* at the end, or goes if anything was raised.

    Who reads *path* finds what was there before or all of the new file, even when several processes
    write it at once, and after a crash.  A symbolic link stays: what it leads to is replaced.

    Args:
        path: File to make or replace.
        durable: Wait until the disk has it; without, a power cut may leave an empty file.

    Raises:
        OSError: It cannot be written, or *path* is something else than a file, such as a device.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "its name has a null character", str(path))
    target = Path(os.path.realpath(path))
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    partial = target.parent / f".npurt-{secrets.token_hex(8)}"  # fits wherever *path* does
    with contextlib.ExitStack() as undo:
        undo.callback(_remove, partial)
        with open(partial, "xb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(partial, target)
        undo.pop_all()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def parsed(text: str | bytes) -> Any:
    """Return what *text*, which is JSON or not, says.

    Raises:
        ValueError: It is not, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
