"""Set up programs that Debian has for arm64, and a Python to load some, under qemu-aarch64.

apt downloads and checks the packages, pip the wheels of PyPI; none of them is installed.  All are
unpacked into build/foreign, once.  Trixie and its backports keep their versions for long; when
they have another version of a pinned package, the tests of that package are skipped.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from tools.build import ROOT

OUT = ROOT / "build/foreign"
SUITES = ("trixie", "trixie-backports")
AREAS = "main contrib"
TIMEOUT = 300  # time limit of a download, in seconds, for at most 100 MB
PYTHON = "3.13"
PYTHON_PACKAGES = (
    f"python{PYTHON}-minimal libpython{PYTHON}-minimal libpython{PYTHON}-stdlib "
    "libc6 libgcc-s1 libstdc++6 zlib1g libbz2-1.0 libexpat1 libffi8 liblzma5 libssl3t64 libzstd1"
).split()
# Starts the emulated Python, also from an emulated program: the kernel cannot run programs of arm64
# itself, and this machine's programs cannot load a library of arm64.
STARTER = """\
#!/bin/sh
unset LD_PRELOAD
exec qemu-aarch64 -L {root} ${{EMULATED_PRELOAD:+-E LD_PRELOAD="$EMULATED_PRELOAD"}} {python} "$@"
"""
# The wheels of the pinned packages are for these versions of glibc.
PLATFORMS = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (17, 27, 28)]


class MissingError(Exception):
    """A program is not available here; the message has the reason, in one line."""


@dataclass(frozen=True, slots=True)
class Root:
    """A folder with packages of Debian and wheels: a name, and their versions."""

    name: str
    packages: Sequence[str]  # NAME=VERSION of the tested programs; names of what they need
    wheels: Sequence[str] = ()

    @property
    def folder(self) -> Path:
        """Return the folder: `root` in it has Debian's packages, `site` the wheels."""
        return OUT / f"{self.name}-{crc32(repr(self).encode()):08x}"

    def set_up(self) -> None:
        """Download and unpack everything, once.

        Raises:
            MissingError: A tool, a package or a registry is missing here.
        """
        if self.folder.is_dir():
            return
        for tool in ("qemu-aarch64", "apt-get", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise MissingError(f"there is no {tool}")
        partial = self.folder.with_name(f"{self.folder.name}.{os.getpid()}.part")
        try:
            _unpack_packages(partial, self.packages)
            if self.wheels:
                _install_wheels(partial / "site", self.wheels)
                self._write_starter(partial)
            partial.rename(self.folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _write_starter(self, partial: Path) -> None:
        started = {"root": self.folder / "root", "python": self.path(f"bin/python{PYTHON}")}
        (partial / "python").write_text(STARTER.format(**started))
        (partial / "python").chmod(0o755)
        executable = f"import sys\n\nsys.executable = {str(self.folder / 'python')!r}\n"
        (partial / "site/sitecustomize.py").write_text(executable)

    def path(self, name: str) -> Path:
        """Return the path of a file below /usr of the packages."""
        return self.folder / "root/usr" / name

    def command(self, program: str, *, preload: Path) -> list[str | Path]:
        """Return the command that runs a program of the packages with *preload* loaded."""
        loaded = ("-E", f"LD_PRELOAD={preload}")
        return ["qemu-aarch64", "-L", self.folder / "root", *loaded, self.path(program)]

    def python(
        self, *arguments: str | Path, preload: Path | None = None, env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run the emulated Python with *arguments*; it and its children load *preload* first.

        *env* is added to the environment; its PYTHONPATH comes before the wheels.
        """
        folder = self.folder
        variables = {
            **os.environ,
            **env,
            "EMULATED_PRELOAD": str(preload or ""),
            "PYTHONHOME": str(folder / "root/usr"),
            "PYTHONPATH": f"{env.get('PYTHONPATH', '')}:{folder / 'site'}".strip(":"),
            "PYTHONPYCACHEPREFIX": str(folder / "cache"),  # Debian compiles modules when installed
        }
        variables.pop("PYTHONDONTWRITEBYTECODE", None)
        return subprocess.run(
            [folder / "python", *arguments],
            env=variables,
            capture_output=True,
            text=True,
            timeout=900,
        )


def _unpack_packages(folder: Path, packages: Sequence[str]) -> None:
    apt = folder / "apt"
    (apt / "lists/partial").mkdir(parents=True)
    mirror = _mirror()
    lines = [f"deb [arch=arm64] {mirror} {suite} {AREAS}\n" for suite in SUITES]
    (apt / "sources.list").write_text("".join(lines))
    options = {
        "APT::Architecture": "arm64",
        "APT::Sandbox::User": "root",
        "Dir::Cache": apt,
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State": apt,
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": "/dev/null",
    }
    command = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items())]
    run(*command, "update", cwd=apt)
    run(*command, "download", *packages, cwd=apt)
    for package in sorted(apt.glob("*.deb")):
        run("dpkg-deb", "-x", package, folder / "root")
    (folder / "root/lib").symlink_to("usr/lib")  # the path of the dynamic linker
    shutil.rmtree(apt)


def _mirror() -> str:
    """Return the Debian mirror that this machine's apt uses."""
    wanted = ("Created-By: Packages", "Origin: Debian", "Component: main")
    known = run("apt-get", "indextargets", "--format", "$(REPO_URI)", *wanted).split()
    mirror = next((uri for uri in known if "security" not in uri), None)
    if mirror is None:
        raise MissingError("apt has no mirror of Debian")
    return mirror


def _install_wheels(folder: Path, wheels: Sequence[str]) -> None:
    where = ["--target", folder, "--only-binary=:all:", "--python-version", PYTHON]
    run(sys.executable, "-m", "pip", "install", "-q", *where, *PLATFORMS, *wheels)


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command that downloads something; return its output.

    Raises:
        MissingError: It fails; its last line is in the message.
    """
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{command[0]}: {error}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise MissingError(f"{command[0]}: {said[-1]}")
    return done.stdout
