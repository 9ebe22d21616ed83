"""Compile the C code of npurt.

Developers run it by hand (`python -m tools.build --help`); tests and `tools/build/wheel_hook.py`
import it.  It needs only Python and the `ziglang` package, whose version
pyproject.toml pins.  It is not installed.  It compiles a product only when the product's sources or
flags changed.

`PRODUCTS` are the CPU kernels, the host libraries of the NPU backends, the skels (DSP libraries of
the Hexagon) with their manifest, their interface as Python code, and the simulators of both NPUs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from npurt.base import declarations
from tools.build import sanitize
from tools.build.hexagon import (
    ARCHS,
    IDL_COMPILER,
    SHELL_NAMES,
    build_interface,
    build_skels,
    compile_program,
    compile_skel,
    interface_inputs,
    rtlib,
    shell_names,
    skel_inputs,
)
from tools.build.host_code import (
    GLIBC,
    TARGETS,
    build_library,
    compile_executable,
    host,
    library_sources,
)
from tools.build.zig import ROOT, BuildError, Stamp, whole, write

__all__ = [
    "ARCHS",
    "GLIBC",
    "PRODUCTS",
    "ROOT",
    "TARGETS",
    "BuildError",
    "build_library",
    "compile_executable",
    "compile_program",
    "compile_skel",
    "host",
    "is_made",
    "library_sources",
    "make",
    "sources",
]

PACKAGE = sanitize.package()


@dataclass(frozen=True, slots=True)
class Product:
    """Files of the package that one build step makes from sources below the root."""

    name: str
    # Returns every file that the product depends on; an empty list means nothing to make.
    inputs: Callable[[], Sequence[Path]]
    make: Callable[[Path, str], Sequence[Path]]  # (package folder, architecture) -> files made


def _files(folder: str, suffixes: str = ".c .h .inc .ld .S") -> list[Path]:
    """Return the sources below *folder*, sorted."""
    return sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in suffixes.split())


def _sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).glob("*.c"))


def _inputs(folder: str) -> list[Path]:
    """Return the files that a product of *folder* depends on; none if *folder* has no C source."""
    files = _files(folder)
    return files if any(path.suffix == ".c" for path in files) else []


def _skel_inputs() -> list[Path]:
    """Return `skel_inputs()`, or nothing if the IDL compiler or the DSP kernels are missing."""
    there = (IDL_COMPILER / "__main__.py").exists() and _sources("dsp/kernels")
    return skel_inputs() if there else []


def _shell_inputs() -> list[Path]:
    files = _inputs("sim/fastrpc/shell")
    return [*files, SHELL_NAMES] if files else []


def _simulator(folder: str, out: str) -> Product:
    """Return the product that makes a simulator: a host library in place of a driver."""

    def make_library(package: Path, target: str) -> list[Path]:
        sources = _sources(folder)
        includes = (ROOT / folder, ROOT / "idl")
        return [build_library(target, package / out, sources=sources, includes=includes)]

    return Product(folder.rpartition("/")[2], lambda: _inputs(folder), make_library)


def _parsed(package: Path, name: str) -> Path:
    """Write cffi's declarations of the header *name*; see `npurt.base.declarations`."""
    out = declarations.beside(package / name)
    with whole(out) as partial:
        declarations.write(ROOT / "npurt" / name, partial)
    return out


def _make_cpu(package: Path, target: str) -> list[Path]:
    library = build_library(target, package / "cpu/libnpurt_cpu.so")
    return [library, _parsed(package, "cpu/kernels/npurt_cpu.h")]


def _make_rk_host(package: Path, target: str) -> list[Path]:
    sources = _sources("npurt/rknpu/driver/native")
    library = build_library(target, package / "rknpu/driver/libnpurt_rk.so", sources=sources)
    return [library, _parsed(package, "rknpu/driver/native/npurt_rk.h")]


def _make_hexagon_host(package: Path, target: str) -> list[Path]:
    made: list[Path] = []
    for folder, name in (("fastrpc", "native_call"), ("host", "hexagon_host")):
        sources = _sources(f"npurt/hexagon/{folder}")
        out = package / f"hexagon/{folder}/libnpurt_{name}.so"
        made.append(build_library(target, out, sources=sources))
        made.append(_parsed(package, f"hexagon/{folder}/npurt_{name}.h"))
    return made


def _make_skels(package: Path, _target: str) -> list[Path]:
    return build_skels(package / "hexagon/skel")


def _make_interface(package: Path, _target: str) -> list[Path]:
    return [build_interface(package / "hexagon/idl/npurt.interface")]


def _make_shell(package: Path, _target: str) -> list[Path]:
    sources = _sources("sim/fastrpc/shell")
    generated = ROOT / "build/shell"
    write(generated / "shell_names.inc", shell_names())
    includes = (ROOT / "sim/fastrpc/shell", ROOT / "sim/fastrpc", ROOT / "idl", generated)
    return [compile_program(sources, package / "hexagon/sim/shell", includes=includes)]


PRODUCTS = (
    Product("cpu", lambda: _inputs("npurt/cpu"), _make_cpu),
    Product("rk-host", lambda: _inputs("npurt/rknpu/driver/native"), _make_rk_host),
    Product("hexagon-host", lambda: _inputs("npurt/hexagon"), _make_hexagon_host),
    Product("interface", interface_inputs, _make_interface),
    Product("skel", _skel_inputs, _make_skels),
    _simulator("sim/fastrpc", "hexagon/sim/libcdsprpc_sim.so"),
    Product("shell", _shell_inputs, _make_shell),
    _simulator("sim/rknpu", "rknpu/sim/librknpu_sim.so"),
)


def make(package: Path, target: str, names: Sequence[str] = ()) -> list[Path]:
    """Make the products called *names*, by default all, for the host *target*, into *package*.

    A product that is up to date is not made again.

    Returns:
        The files of all these products.

    Raises:
        BuildError: The compiler is missing or failed; the message contains its output.
    """
    made: list[Path] = []
    errors: list[BuildError] = []
    for product in PRODUCTS:
        if not names or product.name in names:
            try:
                made += _make(product, package, target)
            except BuildError as error:
                errors.append(error)  # the other products are still made
    if errors:
        raise BuildError("\n".join(map(str, errors)))
    return made


def sources() -> list[Path]:
    """Return every file that a product depends on, sorted, without the build's Python code."""
    inputs = {path for product in PRODUCTS for path in product.inputs()}
    return sorted(inputs.union(_files("idl"), rtlib()))


def is_made(package: Path, target: str) -> bool:
    """Return whether `make` has nothing to compile."""
    stamps = (_stamp(product, package, target) for product in PRODUCTS if product.inputs())
    return all(stamp.made() is not None for stamp in stamps)


def _stamp(product: Product, package: Path, target: str) -> Stamp:
    name = "-".join([product.name, target, *filter(None, [sanitize.chosen()])])
    return Stamp(name, [*product.inputs(), *_files("idl"), *rtlib()], str(package))


def _make(product: Product, package: Path, target: str) -> list[Path]:
    if not product.inputs():
        return []
    stamp = _stamp(product, package, target)
    made = stamp.made()
    if made is None:
        made = list(product.make(package, target))
        stamp.record(made)
    return made
