"""Qualcomm's libcdsprpc as Debian has it, for aarch64, and a kernel to run it on.

The library that boards have runs on sim/fastrpc_kernel, which is preloaded.  npurt loads the
library by its name, as on a board, and is never linked to it.
"""

import shutil
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement

from tests.foreign.debian import PYTHON_PACKAGES, Root
from tools import build


def _dependencies() -> list[str]:
    """Return the packages that npurt needs, in the versions installed here."""
    needed = [Requirement(each) for each in requires("npurt") or []]
    names = [each.name for each in needed if each.marker is None]
    return [f"{name}=={version(name)}" for name in names]


ROOT = Root(
    "fastrpc",
    packages=("libfastrpc1=1.0.9-1~bpo13+2", "libbsd0", "libmd0", "libyaml-0-2", *PYTHON_PACKAGES),
    wheels=_dependencies(),
)
LIBRARY = ROOT.path("lib/aarch64-linux-gnu/libcdsprpc.so.1")
PACKAGE = build.ROOT / "build/aarch64/npurt"  # where the build of the wheel puts the libraries


def npurt() -> None:
    """Build npurt for aarch64, into `PACKAGE`.

    Raises:
        BuildError: It does not compile.
    """
    build.make(PACKAGE, "aarch64", ("cpu", "hexagon-host", "skel"))


def kernel(folder: Path) -> Path:
    """Build the kernel into *folder*, with npurt's simulator as the DSP; return the kernel's path.

    Raises:
        BuildError: It does not compile.
    """
    code = build.ROOT / "sim/fastrpc_kernel"
    simulator, shell = build.make(PACKAGE, "aarch64", ("fastrpc", "shell"))
    shutil.copy(simulator, folder / "dsp_side.so")
    shutil.copy(shell, folder / "shell")
    sources = sorted(code.glob("*.c"))
    out = folder / "fastrpc_kernel.so"
    return build.build_library("aarch64", out, sources=sources, includes=[code])
