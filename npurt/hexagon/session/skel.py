"""Skels, npurt's code for the DSP: choose the file for a DSP, and put it where the DSP looks.

The DSP asks the CPU for the file by name, and FastRPC looks it up in the folders of
DSP_LIBRARY_PATH.  A private copy per process keeps out whatever else is in the user's folders, and
survives an upgrade of npurt under a running program.
"""

import atexit
import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from npurt.errors import DeviceNotFound
from npurt.files import replacing
from npurt.hexagon.idl.interface import interface
from npurt.once import once
from npurt.settings import prepend_dsp_path

FOLDER = Path(__file__).parents[1] / "skel"
ENTRY = "npurt_skel_handle_invoke"
ABANDONED_SECONDS = 86400  # after which a folder that no process has locked is removed
_NAME = re.compile(r"libnpurt_skel_v(\d+)\.so")


def available(folder: Path | None = None) -> dict[int, Path]:
    """Return the skels in *folder*, oldest DSP first: 68 -> .../libnpurt_skel_v68.so."""
    folder = folder or FOLDER
    names = {path: _NAME.fullmatch(path.name) for path in folder.glob("*.so")}
    return dict(sorted((int(m[1]), path) for path, m in names.items() if m))


def choose(arch: int | None, folder: Path | None = None) -> Path:
    """Return the skel for a DSP of version *arch*, or else for the nearest older version.

    A DSP that does not tell its version (None) gets the oldest skel: newer DSPs run it too.

    Raises:
        DeviceNotFound: There is none.
    """
    skels = available(folder)
    if not skels:
        raise DeviceNotFound(
            f"npurt's code for the DSP is not in {folder or FOLDER}",
            remedy="reinstall npurt; in a checkout run `python npurt/build.py`, which compiles it",
        )
    oldest = next(iter(skels))
    fitting = [version for version in skels if version <= (arch or oldest)]
    if not fitting:
        raise DeviceNotFound(
            f"this DSP is a v{arch}, and npurt has code for v{oldest} and newer",
            remedy="use device 'cpu'",
        )
    return skels[fitting[-1]]


def module(skel: Path) -> str:
    """Return the URI of *skel* and its entry point, without the session.

    The URI states the version of the interface.  The skel refuses a URI without a version, and one
    with a newer version.
    """
    return f"file:///{skel.name}?{ENTRY}&_modver=1.0&_idlver={interface().version}"


def publish(skel: Path) -> None:
    """Copy *skel* to the first folder in which the DSP looks for it.

    Raises:
        DeviceNotFound: It cannot be read, or there is no room for it in the folder for temporary
            files.
    """
    try:
        code = skel.read_bytes()
    except OSError as error:
        raise DeviceNotFound(
            f"cannot read {skel}: {error.strerror}",
            remedy="check the path; reinstall npurt if the file is one of npurt's own",
        ) from error
    try:
        with replacing(_private() / skel.name, durable=False) as file:
            file.write(code)
    except OSError as error:
        raise DeviceNotFound(
            f"npurt's code for the DSP cannot be put where the DSP finds it: {error}",
            remedy="free some space in the folder for temporary files, or set TMPDIR to one that "
            "can be written to",
        ) from error


def withdraw() -> None:
    """Remove what `publish` made, in a process that ends without exit handlers."""
    with contextlib.suppress(OSError):
        shutil.rmtree(_private())


def _private() -> Path:
    """Return this process's own folder, at the head of the DSP's search path."""
    return _folder(os.getpid())


@once
def _folder(process: int) -> Path:
    _sweep(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=f"npurt-{process}-"))  # mode 0700
    held = contextlib.ExitStack()
    try:
        held.enter_context(in_use(folder))
    except OSError:
        folder.rmdir()
        raise
    held.callback(_discard, process, folder)
    atexit.register(held.close)
    prepend_dsp_path(str(folder))
    return folder


def _discard(process: int, folder: Path) -> None:
    if os.getpid() == process:  # in a fork it is the parent's
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Hold the lock of a private folder; the system releases it when this process ends.

    Raises:
        OSError: Another process has it, or *folder* is none of ours.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def _sweep(root: Path) -> None:
    """Remove the folders of processes that were killed."""
    for folder in root.glob("npurt-[0-9]*-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > ABANDONED_SECONDS:
                with in_use(folder):
                    shutil.rmtree(folder, ignore_errors=True)
