"""Find the sources of programs of others, for tests that build and run them unchanged.

This repository has no file of these programs.  The environment variable NPURT_FOREIGN names the
folder of the archives NAME-COMMIT.tar.gz; if it is not set, `foreign` in the checkout and
`shared/foreign` beside it are searched.  If there is no archive, git fetches the same commit.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from npurt.build import ROOT

UNPACKED = ROOT / "build/foreign"
TIMEOUT = 300  # time limit of git, in seconds, for a few megabytes


class MissingError(Exception):
    """The sources are not available here; the message has the reason, in one line."""


@dataclass(frozen=True, slots=True)
class Program:
    """A public git repository at one commit."""

    name: str
    url: str
    commit: str

    @property
    def stem(self) -> str:
        """Return the name of the archive without its suffix."""
        return f"{self.name}-{self.commit[:7]}"


def folders() -> list[Path]:
    """Return the folders that may have archives."""
    given = os.environ.get("NPURT_FOREIGN")
    return [Path(given)] if given else [ROOT / "foreign", ROOT.parent / "shared/foreign"]


def unpacked(program: Program) -> Path:
    """Return the folder of the sources of *program*; unpack or fetch them if they are missing.

    Raises:
        MissingError: There is no archive, and git cannot fetch them.
    """
    out = UNPACKED / program.stem
    if out.is_dir():
        return out
    UNPACKED.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f"{out.name}.{os.getpid()}.part")
    partial.mkdir()
    try:
        archive = next(
            (p for p in (f / f"{program.stem}.tar.gz" for f in folders()) if p.exists()), None
        )
        if archive is not None:
            run("tar", "-xzf", archive, "-C", partial, "--strip-components=1")
        else:
            _fetch(program, partial)
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out


def _fetch(program: Program, into: Path) -> None:
    git = ("git", "-C", into)
    try:
        run(*git, "init", "-q")
        run(*git, "fetch", "-q", "--depth", "1", program.url, program.commit)
        run(*git, "checkout", "-q", "FETCH_HEAD")
    except MissingError as error:
        where = " or ".join(map(str, folders()))
        raise MissingError(f"no {program.stem}.tar.gz in {where}, and no git: {error}") from error


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command that downloads something; return its output.

    Raises:
        MissingError: It fails; its last line is in the message.
    """
    env = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, text=True, timeout=TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{command[0]}: {error}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise MissingError(f"{command[0]}: {said[-1]}")
    return done.stdout
