"""Run the compiler (the `ziglang` package: clang and LLD), and never leave half a file behind.

Part of `npurt/build.py`: not installed, imports nothing of npurt.  zig keeps its own cache of
objects, by content of source, headers and flags, under build/zig; `Stamp` spares asking it.
"""

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# What every C source of npurt is compiled with.
STRICT = ("-std=c11", "-g0", "-fno-sanitize=undefined", "-Wall", "-Wextra", "-Werror")

Arg = str | Path


class BuildError(Exception):
    """Something cannot be built; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the compiler: a source and its flags."""

    source: Path
    flags: tuple[Arg, ...]


def run(command: Sequence[Arg], **variables: str) -> None:
    """Run *command* with *variables* added to the environment, quiet unless it fails.

    Raises:
        BuildError: It refuses; its words are in the message.
    """
    done = subprocess.run(
        command,
        env={**os.environ, **variables},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise BuildError(f"{' '.join(map(str, command))}\n{done.stdout}")


def zig(tool: str, *args: Arg) -> None:
    """Run one of zig's tools ("cc", "ld.lld"), quiet unless it fails.

    Raises:
        BuildError: It is missing, or refuses; its words are in the message.
    """
    spec = find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise BuildError("there is no compiler\n  remedy: pip install 'npurt[dev]', for ziglang")
    command = [Path(spec.origin).with_name("zig"), tool, *args]
    run(command, ZIG_LOCAL_CACHE_DIR=str(ROOT / "build/zig"))


def compile_c(job: Job, out: Path) -> None:
    """Compile one source.  No path of this machine gets into the object."""
    zig("cc", *job.flags, f"-ffile-prefix-map={ROOT}/=", "-c", job.source.resolve(), "-o", out)


def objects(
    jobs: Sequence[Job], folder: Path, compiler: Callable[[Job, Path], None] = compile_c
) -> list[Path]:
    """Compile *jobs* into *folder*, one for each CPU at a time; return the files in their order."""
    made = [folder / f"{i}-{job.source.stem}.o" for i, job in enumerate(jobs)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compiler, jobs, made))  # waits, and raises the first error
    return made


@contextmanager
def whole(out: Path) -> Iterator[Path]:
    """Yield a name beside *out* to write to: it becomes *out* when the block ends well."""
    partial = out.with_name(f"{out.name}.{os.getpid()}.part")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)


def write(out: Path, text: str) -> None:
    """Make *out* hold *text*, whole or not at all; an equal file keeps its time."""
    if not out.exists() or out.read_text() != text:
        with whole(out) as partial:
            partial.write_text(text)


def digest(files: Iterable[Path]) -> str:
    """Return the SHA-256 of the names below the root and the contents of *files*, sorted."""
    total = hashlib.sha256()
    for path in sorted(files):
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
        total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


class Stamp:
    """Remembers what a product was made from, so that it is made again only after a change."""

    def __init__(self, name: str, inputs: Iterable[Path], settings: str) -> None:
        """*settings*: what else the product depends on, but for build code and compiler."""
        try:
            compiler = version("ziglang")
        except PackageNotFoundError:
            compiler = ""
        code = Path(__file__).parent.glob("build*.py")
        self._path = ROOT / "build/stamps" / f"{name}.json"
        self._key = f"{digest([*inputs, *code])} {compiler} {settings}"

    def made(self) -> list[Path] | None:
        """Return the files made last time, if they are still there and up to date."""
        try:
            key, made = json.loads(self._path.read_text())
            there = key == self._key and all(_sha256(Path(p)) == h for p, h in made.items())
        except (OSError, ValueError, TypeError, AttributeError):
            return None
        return [Path(p) for p in made] if there else None

    def record(self, made: Iterable[Path]) -> None:
        """Remember that the files *made* are of these inputs."""
        write(self._path, json.dumps([self._key, {str(p): _sha256(p) for p in made}]))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
