"""Fetch Debian's source of Linux, and the tools to build it, through apt.

The source does not depend on this machine's kernel or release of Debian: a private list of sources
has the mirror of this machine's apt, with the suites of new kernels.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

SUITES = ("sid", "trixie-backports")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
TOOLS = {  # program -> Debian's package
    "bc": "bc",
    "bison": "bison",
    "dpkg-deb": "dpkg",
    "dtc": "device-tree-compiler",
    "flex": "flex",
    "gcc": "gcc libc6-dev",
    "make": "make",
    "xz": "xz-utils",
}


class MissingError(Exception):
    """The kernel cannot be fetched or run here; the message has the reason, in one line."""


def run(*command: str | Path, cwd: Path | None = None, log: Path | None = None) -> str:
    """Run a command; return its output, or append it to *log*.

    Raises:
        MissingError: It fails; its last line is in the message.
    """
    env = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
    except OSError as error:
        raise MissingError(f"{command[0]}: {error}") from error
    if log is not None:
        with log.open("a") as file:
            file.write(done.stdout)
    if done.returncode:
        said = done.stdout.strip().splitlines() or [f"status {done.returncode}"]
        raise MissingError(f"{command[0]}: {said[-1]}" + (f" (all of it: {log})" if log else ""))
    return done.stdout


def need_tools() -> None:
    """Install the tools to build a kernel, as root on Debian and Ubuntu.

    Raises:
        MissingError: A tool is missing and cannot be installed; the message has the command.
    """
    packages = [package for program, package in TOOLS.items() if not shutil.which(program)]
    if not packages:
        return
    install = ["apt-get", "install", "-y", "--no-install-recommends", *" ".join(packages).split()]
    if os.geteuid() or not shutil.which("apt-get"):
        raise MissingError(f"the build of a kernel needs, as root: {' '.join(install)}")
    run("apt-get", "update", "-q")
    run(*install)


def fetch(series: str, folder: Path) -> str:
    """Put the source of Linux *series* ("7.2") into ``folder/source``; return its version.

    Raises:
        MissingError: No suite has it, or apt cannot reach its mirror.
    """
    options = _private_list(folder / "apt")
    package = f"linux-source-{series}"
    run("apt-get", *options, "update", "-q")
    policy = run("apt-cache", *options, "madison", package).splitlines()
    if not policy:
        raise MissingError(f"{' and '.join(SUITES)} have no {package}")
    version = policy[0].split("|")[1].strip()  # the newest version
    run("apt-get", *options, "download", f"{package}={version}", cwd=folder)
    (archive,) = folder.glob(f"{package}_*.deb")
    run("dpkg-deb", "-x", archive, folder / "package")
    archive.unlink()
    source = folder / "source"
    source.mkdir()
    (packed,) = (folder / "package/usr/src").glob("linux-source-*.tar.xz")
    run("tar", "-xf", packed, "-C", source, "--strip-components=1")
    shutil.rmtree(folder / "package")
    return version


def _private_list(folder: Path) -> Sequence[str]:
    """Return the options with which apt reads a private list of sources in *folder*."""
    if not shutil.which("apt-get"):
        raise MissingError("there is no apt-get to fetch Debian's source of Linux with")
    mirrors = run(
        "apt-get", "indextargets", "--format", "$(REPO_URI)",
        "Created-By: Packages", "Origin: Debian", "Label: Debian",
    ).split()  # fmt: skip
    if not mirrors:
        raise MissingError("apt has no mirror of Debian here (or was never updated)")
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    key = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    lines = [f"deb {key}{mirrors[0]} {suite} main\n" for suite in SUITES]
    (folder / "list").write_text("".join(lines))
    return (
        "-o", f"Dir::Etc::sourcelist={folder / 'list'}", "-o", "Dir::Etc::sourceparts=-",
        "-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Cache={folder / 'cache'}",
        "-o", "APT::Sandbox::User=root", "-o", "Acquire::Languages=none",
    )  # fmt: skip
