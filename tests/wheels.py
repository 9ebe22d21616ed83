"""Build wheels and source archives of a checkout, install them, and read them."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from tools.build.wheel_hook import GLIBC

PROJECT = Path(__file__).resolve().parents[1]
PURE = "any"  # the platform whose wheel contains only Python


def make(folder, platform=None, project=PROJECT):
    """Build the wheel of *platform* (such as linux-aarch64) in *folder*; None builds the sdist."""
    kind = "wheel" if platform else "sdist"
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder],
        cwd=project,
        env={**os.environ, "PYTHONPATH": "", "_PYTHON_HOST_PLATFORM": platform or PURE},
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    (made,) = folder.iterdir()
    return made


def tag_of(platform):
    """Return the expected tag of a wheel for *platform*."""
    if platform == PURE:
        return "py3-none-any"
    return f"py3-none-manylinux_{GLIBC.replace('.', '_')}_{platform.removeprefix('linux-')}"


def unpack(sdist, folder):
    """Unpack *sdist* into *folder*; return the folder of the project."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (project,) = folder.iterdir()
    return project


def install(wheel, folder):
    """Install *wheel* into *folder* without its dependencies; this needs no compiler."""
    command = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", folder)
    subprocess.run([sys.executable, *command, wheel], check=True, env={**os.environ, "PATH": ""})


def python(folder, code):
    """Run *code* in a Python that finds npurt in *folder*; return its whole output."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.stdout
