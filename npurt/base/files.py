"""Write files atomically, notice changes of files; read files and JSON from untrusted sources."""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Yield a new file, which is renamed to *path* at the end, or deleted after an exception.

    A reader of *path* finds either the old file or the complete new file, even after a crash or if
    several processes write *path* at once.  If *path* is a symbolic link, its target is replaced.

    Args:
        path: File to make or replace.
        durable: Flush the file to disk; if False, a power failure may leave an empty file.

    Raises:
        OSError: The file cannot be written, or *path* is not a regular file, such as a device node.
    """
    require_file(path)
    target = Path(os.path.realpath(path))
    partial = target.parent / f".npurt-{os.urandom(8).hex()}"  # short enough for any file system
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
    """Raise OSError if `replacing` cannot write *path*.

    Raises:
        OSError: *path* is a folder, a device node or another non-regular file, or is no valid name.
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


class Version(NamedTuple):
    """The version of a file: another file has another inode, and a write changes size or time."""

    device: int
    inode: int
    nbytes: int
    changed_ns: int  # time of the last write

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """Return the version of the file with *status*."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def overwritten(self, path: str) -> bool:
        """Return whether *path* still names this file, and the file was written since.

        A file that was deleted, or replaced by a rename, keeps its content until it is closed.
        """
        try:
            now = os.stat(path)
        except OSError:
            return False
        same = now.st_mtime_ns == self.changed_ns and now.st_size == self.nbytes
        return not same and (now.st_dev, now.st_ino) == self[:2]


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file to read it.

    Raises:
        OSError: The file cannot be read, or is not a regular file: a FIFO would block for ever.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        yield file


SHOWN = 5  # names that a remedy lists


def unreadable(path: str | os.PathLike[str], error: OSError | ValueError) -> str:
    """Return the remedy for *error*, which occurred when *path* was opened to read it."""
    code = error.errno if isinstance(error, OSError) else None
    if code in (errno.ENOENT, errno.ENOTDIR):
        return _what_exists(Path(path))
    if code in (errno.EACCES, errno.EPERM):
        return f"let this user read it: chmod u+r {os.fspath(path)}, or as its owner chmod a+r"
    if code in (errno.EMFILE, errno.ENFILE):
        return "close other programs, or raise the limit: ulimit -n 4096"
    if code == errno.ENOMEM:
        return "close other programs, raise the limit (ulimit -v), or use a smaller model"
    if code == errno.EIO:
        return "copy the file to another disk; if that fails too, download it again"
    return "give the name of a regular file; ls -l shows what this name is"


def _what_exists(path: Path) -> str:
    """Return the remedy for *path*, which does not exist: similar names, or the folder's files."""
    import difflib  # not needed without an error

    folder = path.parent
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        names = []
    if folder != path.parent:
        inner = path.relative_to(folder).parts[0]
        near = difflib.get_close_matches(inner, names, SHOWN)
        found = f"; similar names in it: {', '.join(near)}" if near else ""
        return f"{folder} has no {inner}{found}"
    near = difflib.get_close_matches(path.name, names, SHOWN) or [
        name for name in names if not name.startswith(".")
    ]
    near = [name for name in near if name.endswith(path.suffix)] or near
    more = f" and {len(near) - SHOWN} more" if len(near) > SHOWN else ""
    listed = ", ".join(str(folder / name) for name in near[:SHOWN])
    return f"give a file that exists, such as {listed}{more}" if near else f"{folder} is empty"


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def link_or_move(link: Path, target: Path) -> None:
    """Make *link* a symbolic link to *target*; without symbolic links, move *target* to *link*."""
    if link.exists():
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)  # a dangling link
    try:
        link.symlink_to(os.path.relpath(target, link.parent))
    except OSError:
        os.replace(target, link)


def parsed(text: str | bytes) -> Any:
    """Parse JSON from an untrusted source.

    Raises:
        ValueError: *text* is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
