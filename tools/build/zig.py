"""Run the compiler (the `ziglang` package: clang and LLD), and write files atomically.

Part of `tools/build`: not installed.  This module imports no module of npurt.  zig caches
objects by the contents of source, headers and flags, in build/zig.  If nothing changed, `Stamp`
avoids running zig.
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

ROOT = Path(__file__).resolve().parents[2]

# Flags for every C source of npurt.
STRICT = ("-std=c11", "-g0", "-fno-sanitize=undefined", "-Wall", "-Wextra", "-Werror")

Arg = str | Path


class BuildError(Exception):
    """The build failed; the message has the reason and a remedy, or the compiler's output."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the compiler: a source and its flags."""

    source: Path
    flags: tuple[Arg, ...]


def run(command: Sequence[Arg], **variables: str) -> None:
    """Run *command*, with *variables* added to the environment, without showing its output.

    Raises:
        BuildError: *command* failed; the message contains its output.
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
    """Run one of zig's tools ("cc", "ld.lld") without showing its output.

    Raises:
        BuildError: zig is missing, or the tool failed; the message contains its output.
    """
    spec = find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise BuildError(
            "there is no compiler\n"
            "  remedy: pip install '.[dev]' in the checkout, which installs ziglang"
        )
    command = [Path(spec.origin).with_name("zig"), tool, *args]
    run(command, ZIG_LOCAL_CACHE_DIR=str(ROOT / "build/zig"))


def compile_c(job: Job, out: Path) -> None:
    """Compile one source into *out*, an object without paths of this machine."""
    zig("cc", *job.flags, f"-ffile-prefix-map={ROOT}/=", "-c", job.source.resolve(), "-o", out)


def objects(
    jobs: Sequence[Job], folder: Path, compiler: Callable[[Job, Path], None] = compile_c
) -> list[Path]:
    """Compile *jobs* into *folder*, in parallel on all CPUs; return the objects in order."""
    made = [folder / f"{i}-{job.source.stem}.o" for i, job in enumerate(jobs)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compiler, jobs, made))  # waits for all jobs, and raises the first error
    return made


@contextmanager
def whole(out: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, which is renamed to *out* if the block succeeds."""
    partial = out.with_name(f"{out.name}.{os.getpid()}.part")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)


def write(out: Path, text: str) -> None:
    """Write *text* to *out* atomically; a file with this text keeps its modification time."""
    if not out.exists() or out.read_text() != text:
        with whole(out) as partial:
            partial.write_text(text)


def digest(files: Iterable[Path]) -> str:
    """Return the SHA-256 of the names (relative to the root) and contents of *files*, sorted."""
    total = hashlib.sha256()
    for path in sorted(files):
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
        total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


class Stamp:
    """Records the digest of a product's inputs, so that only a change causes a rebuild."""

    def __init__(self, name: str, inputs: Iterable[Path], settings: str) -> None:
        """Compute the digest.

        *settings* describes all other inputs.  The digest includes build code and compiler.
        """
        try:
            compiler = version("ziglang")
        except PackageNotFoundError:
            compiler = ""
        code = Path(__file__).parent.glob("*.py")
        self._path = ROOT / "build/stamps" / f"{name}.json"
        self._key = f"{digest([*inputs, *code])} {compiler} {settings}"

    def made(self) -> list[Path] | None:
        """Return the files of the last build if they exist and are up to date, else None."""
        try:
            key, made = json.loads(self._path.read_text())
            there = key == self._key and all(_sha256(Path(p)) == h for p, h in made.items())
        except (OSError, ValueError, TypeError, AttributeError):
            return None
        return [Path(p) for p in made] if there else None

    def record(self, made: Iterable[Path]) -> None:
        """Record that the files *made* were built from these inputs."""
        write(self._path, json.dumps([self._key, {str(p): _sha256(p) for p in made}]))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
