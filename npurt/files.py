"""Files that are written whole or not at all, files and JSON that anybody may have written."""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Yield a new file, which gets the name *path* at the end; an exception deletes it.

    A reader of *path* finds either the old file or the whole new one, even when several processes
    write it at once, and after a crash.  A symbolic link stays; its target is replaced.

    Args:
        path: File to make or replace.
        durable: Wait until the disk has it; without, a power cut may leave an empty file.

    Raises:
        OSError: The file cannot be written, or *path* is no regular file, such as a device node.
    """
    require_file(path)
    target = Path(os.path.realpath(path))
    partial = target.parent / f".npurt-{os.urandom(8).hex()}"  # fits wherever *path* does
    with contextlib.ExitStack() as undo:
        undo.callback(_remove, partial)
        with open(partial, "xb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(partial, target)
        undo.pop_all()


def require_file(path: Path) -> None:
    """Refuse a *path* that `replacing` could not give to a file, before anything is written.

    Raises:
        OSError: It is no regular file, such as a folder or a device node, or no name of a file.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "its name has a null character", str(path))
    try:
        os.fsencode(path)
    except UnicodeError as error:
        why = "its name cannot be written in the encoding of the locale"
        raise OSError(errno.EINVAL, why, str(path)) from error
    target = Path(os.path.realpath(path))
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file to read it.

    Raises:
        OSError: It cannot be read, or is no regular file: a FIFO would block for ever.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        yield file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def link_or_move(link: Path, target: Path) -> None:
    """Make *link* lead to *target*; where there are no symbolic links, it becomes the file."""
    if link.exists():
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)  # a link that leads nowhere
    try:
        link.symlink_to(os.path.relpath(target, link.parent))
    except OSError:
        os.replace(target, link)


def parsed(text: str | bytes) -> Any:
    """Parse JSON from an untrusted source.

    Raises:
        ValueError: The text is no JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
