"""Answer the questions of checks from this machine, or from a tree of files in its place."""

import contextlib
import grp
import gzip
import lzma
import mmap
import os
import platform
import pwd
import re
import shutil
import stat
import subprocess
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from npurt.doctor.system import KINDS, Answer, System
from npurt.settings import variable

MAX_TEXT = 1 << 16  # bytes read of a small file
MAX_BYTES = 1 << 26  # bytes searched of a file; firmware has a few MiB
MAX_FOUND = 64  # matches or lines returned
MAX_NAMES = 4096  # names returned of a folder
MAX_RECORDS = 1 << 17  # records read of the kernel's log
UNPACK_SECONDS = 20
PEOPLE = 1000  # first user id of a person; Debian, Fedora: adduser.conf, login.defs


class Machine(System):
    """Answers from files under *root*, and by *probes*.

    Args:
        root: Folder that is used as /.
        access: Returns whether this user may read or write a path, like os.access.
        probes: Functions that run a trial, by the trial's name.
        readers: Functions that return facts about the bytes of a file, by the reader's name.
        machine: Architecture; None means this machine's.
        environment: Returns the value of a variable.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        access: Callable[[Path, int], bool] = os.access,
        probes: Mapping[str, Callable[[], dict[str, Any]]] | None = None,
        readers: Mapping[str, Callable[[Any], dict[str, Any]]] | None = None,
        machine: str | None = None,
        environment: Callable[[str], str] = variable,
    ) -> None:
        self._root = root
        self._access = access
        self._probes = probes or {}
        self._readers = readers or {}
        self._machine = machine or platform.machine()
        self._environment = environment

    def ask(self, kind: str, *words: str) -> Answer:
        """Answer one question; a file that cannot be read counts as missing."""
        answers: dict[str, Callable[..., Answer]] = {
            "machine": lambda: self._machine,
            "environment": self._environment,
            "text": self._text,
            "names": self._names,
            "node": self._node,
            "matches": self._matches,
            "read": self._read,
            "runs": self._runs,
            "log": self._log,
            "probe": lambda name: self._probes[name]() if name in self._probes else {},
        }
        try:
            return answers[kind](*words)
        except OSError:
            return KINDS[kind][0]

    def _path(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def _text(self, path: str) -> str:
        with self._path(path).open("rb") as file:
            data = file.read(MAX_TEXT)
        return data.decode(errors="replace").replace("\0", "\n").strip()

    def _names(self, path: str) -> list[str]:
        return sorted(os.listdir(self._path(path)))[:MAX_NAMES]

    def _node(self, path: str) -> dict[str, Any]:
        here = self._path(path)
        status = here.stat()
        return {
            "mode": stat.filemode(status.st_mode),
            "owner": _name(pwd.getpwuid, status.st_uid),
            "group": _name(grp.getgrgid, status.st_gid),
            "read": self._access(here, os.R_OK),
            "write": self._access(here, os.W_OK),
        }

    def _matches(self, path: str, pattern: str) -> list[str]:
        expression = re.compile(pattern.encode())
        found: set[str] = set()
        with _content(self._path(path)) as data:
            for match in expression.finditer(data):
                found.add(match.group().decode(errors="replace"))
                if len(found) == MAX_FOUND:
                    break
        return sorted(found)

    def _read(self, reader: str, path: str) -> dict[str, Any] | None:
        if reader not in self._readers:
            return None
        with _content(self._path(path)) as data:
            return self._readers[reader](data)

    def _runs(self, name: str) -> bool:
        return any(
            number.isdecimal() and self.ask("text", f"/proc/{number}/comm") == name
            for number in self._names("/proc")
        )

    def _log(self, pattern: str) -> list[str]:
        expression = re.compile(pattern)
        lines = (line for line in _kernel_log(self._path("/dev/kmsg")) if expression.search(line))
        return list(lines)[-MAX_FOUND:]


def _name(look_up: Callable[[int], Any], number: int) -> str:
    """Return the name of a system user or group, or "user" for a person."""
    if number >= PEOPLE:
        return "user"
    try:
        return str(look_up(number)[0])
    except KeyError:
        return str(number)


@contextlib.contextmanager
def _content(path: Path) -> Iterator[Any]:
    """Yield the bytes of a file, decompressed if its suffix is .xz, .gz or .zst."""
    if path.suffix == ".xz":
        with lzma.open(path) as file:
            try:
                yield file.read(MAX_BYTES)
            except (lzma.LZMAError, EOFError) as error:
                raise OSError(f"{path} is damaged") from error
    elif path.suffix == ".gz":
        with gzip.open(path) as packed:
            try:
                yield packed.read(MAX_BYTES)
            except (EOFError, zlib.error) as error:  # gzip reports other damage as OSError
                raise OSError(f"{path} is damaged") from error
    elif path.suffix == ".zst":
        yield _unzstd(path)
    elif path.stat().st_size:
        with path.open("rb") as file:
            size = min(path.stat().st_size, MAX_BYTES)
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
                yield data
    else:
        yield b""


def _unzstd(path: Path) -> bytes:
    """Decompress a file with the program zstd: Python before 3.14 has no zstd module."""
    program = shutil.which("zstd")
    if program is None:
        raise OSError("the program zstd is not installed")
    try:
        done = subprocess.run(
            [program, "-dcq", path], capture_output=True, timeout=UNPACK_SECONDS, check=True
        )
    except subprocess.SubprocessError as error:
        raise OSError(f"zstd could not unpack {path}") from error
    return done.stdout[:MAX_BYTES]


def _kernel_log(path: Path) -> Iterator[str]:
    """Yield the messages of the kernel; none if this user may not read them.

    A record is "priority,number,time,flags;message", followed by continuation lines.
    Source: Linux, Documentation/ABI/testing/dev-kmsg.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    with contextlib.closing(os.fdopen(fd, "rb", buffering=0)) as file:
        for _ in range(MAX_RECORDS):
            try:
                records = file.read(1 << 20)  # /dev/kmsg returns one record a read
            except BrokenPipeError:  # the kernel overwrote the record
                continue
            if not records:
                return
            for record in records.decode(errors="replace").splitlines():
                message = record.partition(";")[2]
                if message and not record.startswith(" "):
                    yield message
