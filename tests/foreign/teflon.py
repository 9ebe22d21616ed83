"""Set up Mesa's teflon delegate for aarch64, with a Python and TensorFlow Lite to load it.

Debian builds the delegate for arm64 only, so all programs run under qemu-aarch64: packages of
Debian that apt downloads and checks, and wheels of PyPI.  None of them is installed.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from npurt.build import ROOT
from tests.foreign.sources import MissingError, run

OUT = ROOT / "build/foreign/teflon"
PYTHON = "3.13"
WHEELS = ("ai-edge-litert==2.3.0", "numpy==2.4.6")
PACKAGES = (
    "mesa-teflon-delegate libc6 libdrm2 libexpat1 libgcc-s1 libstdc++6 libzstd1 zlib1g "
    f"python{PYTHON}-minimal libpython{PYTHON}-minimal libpython{PYTHON}-stdlib "
    "libbz2-1.0 libffi8 liblzma5 libssl3t64"
).split()
DELEGATE = OUT / "root/usr/lib/teflon/libteflon.so"


def set_up() -> None:
    """Download and unpack all packages into `OUT`, once.

    Raises:
        MissingError: A tool, Debian or PyPI is missing here.
    """
    if OUT.is_dir():
        return
    for tool in ("qemu-aarch64", "apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise MissingError(f"there is no {tool}")
    partial = OUT.with_name(f"{OUT.name}.{os.getpid()}.part")
    try:
        _unpack_debian(partial)
        _install_wheels(partial / "site")
        partial.rename(OUT)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _unpack_debian(folder: Path) -> None:
    """Unpack the packages of Debian's unstable suite, the only suite with the delegate."""
    apt = folder / "apt"
    (apt / "lists/partial").mkdir(parents=True)
    (apt / "sources.list").write_text(f"deb [arch=arm64] {_mirror()} sid main\n")
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
    run(*command, "download", *PACKAGES, cwd=apt)
    for package in sorted(apt.glob("*.deb")):
        run("dpkg-deb", "-x", package, folder / "root")
    (folder / "root/lib").symlink_to("usr/lib")  # the path of the dynamic linker
    shutil.rmtree(apt)


def _mirror() -> str:
    """Return the Debian mirror of this machine's apt, by default Debian's own."""
    wanted = ("Created-By: Packages", "Origin: Debian", "Component: main")
    known = run("apt-get", "indextargets", "--format", "$(REPO_URI)", *wanted).split()
    return next((uri for uri in known if "security" not in uri), "http://deb.debian.org/debian")


def _install_wheels(folder: Path) -> None:
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (27, 28)]
    where = ["--target", folder, "--only-binary=:all:", "--python-version", PYTHON]
    run(sys.executable, "-m", "pip", "install", "-q", *where, *platforms, *WHEELS)


def start(preload: Path, env: Mapping[str, str], *command: str | Path) -> tuple[int, str]:
    """Run a script on the emulated Python with a library preloaded; return status and output."""
    settings = {
        "LD_PRELOAD": preload,
        "PYTHONHOME": OUT / "root/usr",
        "PYTHONPATH": OUT / "site",
    }
    emulator = ["qemu-aarch64", "-L", OUT / "root"]
    for name, value in settings.items():
        emulator += ["-E", f"{name}={value}"]
    done = subprocess.run(
        [*emulator, OUT / f"root/usr/bin/python{PYTHON}", *command],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    return done.returncode, done.stdout
