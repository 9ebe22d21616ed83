"""Build Linux with its own rocket driver as a program (User-Mode Linux).

Builds are stored in `build/kernel`, or in the folder that NPURT_KERNEL_CACHE names.  The name of a
build's folder is a hash of its inputs: sim/rocket_kernel and this code.
"""

import fcntl
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.kernel import source
from tests.kernel.source import MissingError, run
from tools import build
from tools.build.zig import Stamp

PARTS = build.ROOT / "sim/rocket_kernel"
MODEL = build.ROOT / "sim/rknpu"
# Files of the simulator that are not compiled here, because Linux is the driver.
DRIVER = {"core", "device", "dma", "memory", "nodes", "preload", "rknpu", "rocket", "user"}


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compiled kernel."""

    folder: Path  # has the files linux, npu.dtb and version
    npu: Path  # the program that simulates the cores

    @property
    def version(self) -> str:
        """Return Debian's version of the source."""
        return (self.folder / "version").read_text().strip()


def make(series: str) -> Kernel:
    """Return the kernel of a *series* ("7.2"); build it if it is missing.

    Raises:
        MissingError: A source or a tool cannot be installed here.
        BuildError: It does not compile.
    """
    cache = Path(os.environ.get("NPURT_KERNEL_CACHE") or build.ROOT / "build/kernel")
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"{series}-{_content()}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _build(series, folder)
        return Kernel(folder, _make_npu())


def _content() -> str:
    digest = hashlib.sha256()
    for path in [*sorted(PARTS.iterdir()), Path(__file__)]:
        if path.name not in ("init.sh", "npu.c"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _build(series: str, folder: Path) -> None:
    source.need_tools()
    partial = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    version = source.fetch(series, partial)
    log = partial / "log"
    tree = partial / "source"
    _add_hardware(tree)
    try:
        arch = ("make", "-C", tree, "ARCH=um")
        run(*arch, f"KCONFIG_ALLCONFIG={PARTS / 'config'}", "allnoconfig", log=log)
        _check_configuration(tree)
        run(*arch, f"-j{os.cpu_count()}", "linux", log=log)
        run("dtc", "-q", "-I", "dts", "-O", "dtb", PARTS / "npu.dts", "-o", partial / "npu.dtb")
    except MissingError as error:  # nothing is missing, so this is an error of this project
        raise build.BuildError(f"linux-source {version}: {error}") from error
    shutil.copy2(tree / "linux", partial / "linux")
    (partial / "version").write_text(f"{version}\n")
    shutil.rmtree(tree)
    shutil.rmtree(partial / "apt")
    partial.rename(folder)


def _add_hardware(tree: Path) -> None:
    """Add the NPU's registers to the source of Linux, beside the unchanged driver."""
    rocket = tree / "drivers/accel/rocket"
    for name in ("npuhw.c", "npuhw.h"):
        shutil.copy2(PARTS / name, rocket / name)
    with (rocket / "Makefile").open("a") as file:
        file.write("\nobj-$(CONFIG_DRM_ACCEL_ROCKET) += npuhw.o\n")
    with (rocket / "Kconfig").open(
        "a"
    ) as file:  # IRQ_SIM has no prompt, so another option must select it
        file.write("\nconfig NPUHW\n\tdef_bool DRM_ACCEL_ROCKET\n\tselect IRQ_SIM\n")


def _check_configuration(tree: Path) -> None:
    wanted = [s for s in (PARTS / "config").read_text().splitlines() if s.startswith("CONFIG_")]
    has = set((tree / ".config").read_text().splitlines())
    missing = [line for line in wanted if line not in has]
    if missing:
        raise build.BuildError(f"{PARTS / 'config'}: no such setting: {' '.join(missing)}")


def _make_npu() -> Path:
    out = build.ROOT / "build/kernel/npu"
    sources = [p for p in sorted(MODEL.glob("*.c")) if p.stem not in DRIVER]
    sources.append(PARTS / "npu.c")
    inputs = [*MODEL.iterdir(), *PARTS.iterdir()]
    stamp = Stamp("rocket-kernel-npu", sorted(inputs), str(out))
    if stamp.made() is None:
        out.parent.mkdir(parents=True, exist_ok=True)
        build.compile_executable(sources, build.host(), out, includes=(MODEL, PARTS))
        stamp.record([out])
    return out
