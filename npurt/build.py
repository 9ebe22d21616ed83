"""Compile the C sources of the CPU device, and put the library into wheels.

Runs by hand (`python npurt/build.py --help`), from tests, and from hatchling, which finds
`BuildHook`.  Imports nothing of npurt: it works before npurt is installed, and is not installed
itself.  The only compiler is the `ziglang` package (clang and LLD), pinned in pyproject.toml; it
keeps its own cache of objects, by content of source, headers and flags, under build/zig.

The name of a source file says how it is compiled: `name.c` and `name__scalar.c` with the flags of
any machine of the architecture, `name__ISA.c` with those of that instruction set and only where it
exists, `name__vec.c` once for each vector level with NPURT_LEVEL defined as the level's name.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "npurt/cpu"
LIBRARY = SOURCES / "libnpurt_cpu.so"  # where npurt looks for it, in a checkout and in a wheel

GLIBC = "2.28"  # of manylinux_2_28: Debian 10, RHEL 8, Ubuntu 20.04 and newer

# zig spells features with _ and wants a CPU first: -mcpu=CPU+FEATURE+FEATURE.
_AVX2 = "x86_64+avx2+fma+f16c"
_AVX512 = f"{_AVX2}+avx512f+avx512bw+avx512dq+avx512vl"
_FP16 = "generic+v8_2a+fullfp16"
BASELINE = {"x86_64": "x86_64", "aarch64": "generic"}
ISAS = {
    "x86_64": {
        "avx2": _AVX2,
        "avx512vnni": f"{_AVX512}+avx512vnni",
        "amxint8": f"{_AVX512}+avx512vnni+amx_tile+amx_int8",
    },
    "aarch64": {
        "neon": "generic",
        "dotprod": f"{_FP16}+dotprod",
        "i8mm": f"{_FP16}+dotprod+i8mm",
    },
}
LEVELS = {
    "x86_64": {"base": "x86_64", "avx2": _AVX2, "avx512": _AVX512},
    "aarch64": {"base": "generic", "fp16": _FP16},
}
TARGETS = tuple(BASELINE)

COMPILE = (
    "-std=c11", "-O3", "-Xclang", "-O3",  # zig turns -O3 into -O2 and -DNDEBUG
    "-fPIC", "-fvisibility=hidden", "-fomit-frame-pointer", "-g0",
    "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",  # NaN and infinity stay
    "-fno-sanitize=undefined", "-Wall", "-Wextra", "-Werror",
)  # fmt: skip
LINK = ("-s", "-Wl,--build-id=none", "-lm", "-lpthread")
SHARED = ("-shared", "-Wl,-z,defs", f"-Wl,-soname,{LIBRARY.name}")


class BuildError(Exception):
    """The library cannot be built; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One run of the compiler: a source, the CPU it may assume and its vector level."""

    source: Path
    mcpu: str
    level: str = ""


def host() -> str:
    """Return the architecture to build for.

    That is this machine's, or what _PYTHON_HOST_PLATFORM says (linux-aarch64): the variable by
    which Python's build tools are told of a cross build.
    """
    platform = sysconfig.get_platform()
    target = platform.removeprefix("linux-")
    if target not in TARGETS:
        raise BuildError(
            f"npurt runs on linux-{' and linux-'.join(TARGETS)}, and this is {platform}\n"
            "  remedy: build on such a machine, or set _PYTHON_HOST_PLATFORM to cross-build a wheel"
        )
    return target


def units(sources: Iterable[Path], target: str) -> list[Unit]:
    """Return what to compile for *target*, in the order of *sources*, by the naming rule."""
    return [unit for source in sources for unit in _units_of(source, target)]


def _units_of(source: Path, target: str) -> list[Unit]:
    suffix = source.stem.partition("__")[2]
    if suffix in ("", "scalar"):
        return [Unit(source, BASELINE[target])]
    if suffix == "vec":
        return [Unit(source, mcpu, level) for level, mcpu in LEVELS[target].items()]
    if not any(suffix in isas for isas in ISAS.values()):
        raise BuildError(
            f"{source.name}: nothing is known of the instruction set {suffix!r}\n"
            "  remedy: rename the file, or add a row to ISAS in npurt/build.py"
        )
    mcpu = ISAS[target].get(suffix)
    return [Unit(source, mcpu)] if mcpu else []


def library_sources() -> list[Path]:
    """Return the C sources of the library, sorted, so that they link in one order everywhere."""
    return sorted(SOURCES.glob("*.c"))


def build_library(
    target: str, out: Path, *, defines: Sequence[str] = (), sources: Sequence[Path] | None = None
) -> Path:
    """Compile and link the shared library of *target* ("x86_64", "aarch64") into *out*.

    Args:
        target: Architecture; the library needs glibc 2.28 or newer and exports what is `NPURT_API`.
        out: File to make or replace, whole or not at all.
        defines: Macros, "NAME" or "NAME=VALUE".
        sources: C files, those of npurt/cpu when None.

    Raises:
        BuildError: The compiler is missing or refuses; its words are in the message.
    """
    sources = library_sources() if sources is None else sources
    return _build(sources, target, f"{target}-linux-gnu.{GLIBC}", SHARED, out, defines)


def compile_executable(
    sources: Sequence[Path], target: str, out: Path, *, defines: Sequence[str] = ()
) -> Path:
    """Compile C files, by the same naming rule, into a static program that needs no libc.

    With `library_sources()` among *sources* it holds the kernels: so they run under
    `qemu-aarch64` on a machine without any aarch64 library.  Arguments and errors as in
    `build_library`.
    """
    return _build(sources, target, f"{target}-linux-musl", ("-static",), out, defines)


def _build(
    sources: Sequence[Path],
    target: str,
    triple: str,
    link: Sequence[str],
    out: Path,
    defines: Sequence[str],
) -> Path:
    partial = out.with_name(f"{out.name}.{os.getpid()}.part")
    todo = units(sources, target)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [Path(folder, f"{i}-{unit.source.stem}.o") for i, unit in enumerate(todo)]
        compiled = pool.map(lambda u, o: _compile(u, triple, o, defines), todo, objects)
        list(compiled)  # waits, and raises the first error
        out.parent.mkdir(parents=True, exist_ok=True)
        _zig_cc("-target", triple, *link, "-o", partial, *objects, *LINK)
    os.replace(partial, out)
    return out


def _compile(unit: Unit, triple: str, out: Path, defines: Sequence[str]) -> None:
    """Compile one unit.  No path of this machine gets into the object."""
    level = (f"NPURT_LEVEL={unit.level}",) if unit.level else ()
    _zig_cc(
        *("-target", triple, f"-mcpu={unit.mcpu}", *COMPILE),
        *(f"-D{define}" for define in (*level, *defines)),
        *(f"-ffile-prefix-map={ROOT}/=", "-I", SOURCES, "-c", unit.source.resolve(), "-o", out),
    )


def _zig_cc(*args: str | Path) -> None:
    """Run the compiler, quiet unless it fails."""
    spec = find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise BuildError("there is no compiler\n  remedy: pip install 'npurt[dev]', for ziglang")
    command = [Path(spec.origin).with_name("zig"), "cc", *args]
    env = {**os.environ, "ZIG_LOCAL_CACHE_DIR": str(ROOT / "build/zig")}
    done = subprocess.run(
        command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        raise BuildError(f"{' '.join(map(str, command))}\n{done.stdout}")


class BuildHook(BuildHookInterface[Any]):
    """Gives hatchling the compiled library and the platform tag of the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build in place for an editable install, else beside the sources, into the wheel."""
        target = host()
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_{GLIBC.replace('.', '_')}_{target}"
        if version == "editable":
            build_library(target, LIBRARY)
        else:
            built = build_library(target, ROOT / "build" / target / LIBRARY.name)
            build_data["force_include"][str(built)] = str(LIBRARY.relative_to(ROOT))


def main(argv: Sequence[str] | None = None) -> int:
    """Build by hand; exit status 0 done, 1 failed, 2 usage."""
    parser = argparse.ArgumentParser(description="Compile the CPU kernels of npurt.")
    parser.add_argument("--target", choices=TARGETS, help="architecture (this machine's)")
    parser.add_argument("--out", type=Path, default=LIBRARY, help="file to make (%(default)s)")
    parser.add_argument("--define", action="append", default=[], metavar="NAME[=VALUE]")
    parser.add_argument(
        "--executable", nargs="+", type=Path, metavar="FILE.c",
        help="link these and the library's sources into a static program instead",
    )  # fmt: skip
    args = parser.parse_args(argv)
    try:
        target = args.target or host()
        if args.executable:
            sources = [*library_sources(), *args.executable]
            compile_executable(sources, target, args.out, defines=args.define)
        else:
            build_library(target, args.out, defines=args.define)
    except BuildError as error:
        print(f"build: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
