"""Add the compiled libraries to a wheel; hatchling finds `BuildHook`.

Part of the build: not installed.  A wheel for Linux on x86_64 or aarch64 contains the files that
`tools/build` compiles.  On other machines, and with _PYTHON_HOST_PLATFORM=any, a wheel contains
only Python code and runs on the device `numpy`.

If a wheel in dist/ was made from the same sources, its libraries are reused.  Otherwise the build
installs a compiler in its temporary environment.
"""

import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

if __package__ != "tools.build":  # hatchling runs this file by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from npurt.version import __version__
from tools.build import GLIBC, PACKAGE, ROOT, BuildError, host, is_made, make, sources
from tools.build.zig import digest, whole, write

# CPU seconds to compile everything on an x86_64 server: bench/RESULTS.md, "Installing".
CPU_SECONDS = 72

# A file beside the wheel's METADATA: the digest of the libraries' sources, and the libraries.
ORIGIN = "extra_metadata/libraries.json"


def machine() -> str | None:
    """Return the architecture to compile for; None for a wheel of Python code only."""
    try:
        target = host()
    except BuildError:
        return None
    cross_build = "_PYTHON_HOST_PLATFORM" in os.environ
    # A Python with an old glibc, musl or 32 bits could not install a wheel with this tag.
    return target if cross_build or tag(target) in map(str, sys_tags()) else None


def tag(target: str) -> str:
    """Return the tag of a wheel with libraries."""
    return f"py3-none-manylinux_{GLIBC.replace('.', '_')}_{target}"


def finished_wheel(target: str, origin: str) -> Path | None:
    """Return the wheel in dist/ if *origin* is the digest of its libraries' sources, else None."""
    wheel = ROOT / f"dist/npurt-{__version__}-{tag(target)}.whl"
    try:
        with zipfile.ZipFile(wheel) as archive:
            return wheel if _origin_in(archive)["sources"] == origin else None
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return None


def unpack(wheel: Path, package: Path) -> list[Path]:
    """Copy the libraries of *wheel* into the folder *package*; return the copies."""
    made = []
    with zipfile.ZipFile(wheel) as archive:
        for name in _origin_in(archive)["libraries"]:
            out = package.parent / name
            with whole(out) as partial:
                partial.write_bytes(archive.read(name))
                partial.chmod(archive.getinfo(name).external_attr >> 16 & 0o777)
            made.append(out)
    return made


def _origin_in(archive: zipfile.ZipFile) -> Any:
    return json.loads(archive.read(f"npurt-{__version__}.dist-info/{ORIGIN}"))


class BuildHook(BuildHookInterface[Any]):
    """Passes the compiled files and the wheel's platform tag to hatchling."""

    def dependencies(self) -> list[str]:
        """Return the compiler and cffi if the build has to compile, else nothing."""
        target = machine()
        if target is None or finished_wheel(target, self._origin()):
            return []
        return [self.config["compiler"], "cffi>=1.16"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the libraries: in place for an editable install, else in build/ for the wheel."""
        target = machine()
        if target is None:
            self.app.display_info("npurt: no libraries for this machine; its device is numpy")
            return
        build_data["pure_python"] = False
        build_data["tag"] = tag(target)
        beside = ROOT / "build" / target / "npurt"
        made = self._libraries(target, PACKAGE if version == "editable" else beside)
        if version != "editable":
            names = {str(path): str(path.relative_to(beside.parent)) for path in made}
            build_data["force_include"].update(names)
            origin = {"sources": self._origin(), "libraries": sorted(names.values())}
            write(beside.parent / "libraries.json", json.dumps(origin, indent=1) + "\n")
            build_data["extra_metadata"][str(beside.parent / "libraries.json")] = Path(ORIGIN).name

    def _libraries(self, target: str, package: Path) -> list[Path]:
        """Return the libraries in the folder *package*, copied from a wheel or compiled now."""
        wheel = finished_wheel(target, self._origin())
        if wheel and not is_made(package, target):
            self.app.display_info(f"npurt: takes the libraries of {wheel.relative_to(ROOT)}")
            return unpack(wheel, package)
        if not is_made(package, target):
            seconds = CPU_SECONDS / (os.cpu_count() or 1)
            self.app.display_info(
                f"npurt: compiles C, which takes {seconds:.0f} s with CPUs as fast as an x86_64 "
                "server's, longer on a board; docs/install.md has ways to install without compiling"
            )
        return make(package, target)

    def _origin(self) -> str:
        """Return a digest of the sources and the build's code, and the compiler's version."""
        code = Path(__file__).parent.glob("*.py")
        return f"{digest([*sources(), *code])} {self.config['compiler']}"
