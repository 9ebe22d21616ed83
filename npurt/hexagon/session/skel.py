"""Choose the skel, npurt's code for the DSP, and copy it to a folder in which FastRPC finds it.

The DSP requests the file from the CPU by name, and FastRPC searches the folders of
DSP_LIBRARY_PATH.  npurt puts a private folder with a copy of the skel first, so a file of the same
name elsewhere has no effect, and a running program continues if npurt is upgraded.
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

from npurt.base import late
from npurt.base.files import replacing, unreadable
from npurt.base.once import once
from npurt.doctor.system import System
from npurt.errors import DeviceNotFound, LayoutError
from npurt.hexagon.idl.interface import interface
from npurt.hexagon.session import checksum, installed
from npurt.settings import prepend_dsp_path

FOLDER = Path(__file__).parents[1] / "skel"
ENTRY = "npurt_skel_handle_invoke"
ABANDONED_SECONDS = 86400  # age at which an unlocked folder is removed
_NAME = re.compile(r"libnpurt_skel_v(\d+)\.so")


def available(folder: Path | None = None) -> dict[int, Path]:
    """Return the skels in *folder* by version, the oldest DSP first: 68 -> libnpurt_skel_v68.so."""
    folder = folder or FOLDER
    names = {path: _NAME.fullmatch(path.name) for path in folder.glob("*.so")}
    return dict(sorted((int(m[1]), path) for path, m in names.items() if m))


def choose(arch: int | None, folder: Path | None = None) -> Path:
    """Return the skel for a DSP of version *arch*, or else for the nearest older version.

    If the version is unknown (None), return the oldest skel, which newer DSPs run too.

    Raises:
        DeviceNotFound: No skel runs on the DSP, or *folder* has none.
    """
    skels = available(folder)
    if not skels:
        raise DeviceNotFound(
            f"npurt's code for the DSP is not in {folder or FOLDER}",
            remedy="reinstall npurt; in a checkout run `python -m tools.build`, which compiles it",
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
    """Return the URI of *skel*: file name and entry point, without the session.

    The URI states the version of the interface.  The skel refuses a URI without a version or with a
    newer version.
    """
    return f"file:///{skel.name}?{ENTRY}&_modver=1.0&_idlver={interface().version}"


def code_of(skel: Path, system: System | None = None) -> bytes:
    """Return the bytes of *skel* for the DSP of *system*; None: this machine.

    If libraries that the system has installed for the DSP have a checksum section, the DSP may
    refuse a file without one, so this function adds it.  A signed or damaged file stays as it is.

    Raises:
        DeviceNotFound: *skel* cannot be read.
    """
    try:
        code = skel.read_bytes()
    except OSError as error:
        raise DeviceNotFound(
            f"cannot read {skel}: {error.strerror}",
            remedy=f"{unreadable(skel, error)}; npurt's own are part of its package",
        ) from error
    if _checks_code() if system is None else installed.checks_code(system):
        with contextlib.suppress(LayoutError):
            code = checksum.with_checksum(code)
    return code


@once
def _checks_code() -> bool:
    with late.imports():
        from npurt.doctor.machine import Machine

    return installed.checks_code(Machine(readers=installed.READERS))


def publish(skel: Path) -> None:
    """Copy *skel*, as `code_of` returns it, to the first folder in which the DSP looks for it.

    Raises:
        DeviceNotFound: *skel* cannot be read, or the folder for temporary files has no space for a
            copy.
    """
    code = code_of(skel)
    try:
        with replacing(_private() / skel.name, durable=False) as file:
            file.write(code)
    except OSError as error:
        raise DeviceNotFound(
            f"npurt's code for the DSP cannot be copied to a folder for the DSP: {error}",
            remedy="free some space in the folder for temporary files, or set TMPDIR to a folder "
            "that can be written to",
        ) from error


def withdraw() -> None:
    """Remove the private folder; for a process that ends without exit handlers."""
    with contextlib.suppress(OSError):
        shutil.rmtree(_private())


def _private() -> Path:
    """Return the private folder of this process, which is first in the DSP's search path."""
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
    if os.getpid() == process:  # not in a fork: the folder belongs to the parent
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Hold the lock of a private folder; the system releases the lock when this process ends.

    Raises:
        OSError: Another process has the lock, or *folder* cannot be opened as a folder.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def _sweep(root: Path) -> None:
    """Remove old private folders of processes that were killed."""
    for folder in root.glob("npurt-[0-9]*-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > ABANDONED_SECONDS:
                with in_use(folder):
                    shutil.rmtree(folder, ignore_errors=True)
