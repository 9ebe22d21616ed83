"""Compile C for the machine that runs Python: the CPU kernels, the simulators, test programs.

Part of `tools/build`: not installed.  The name of a source file determines its flags.  `name.c`
and `name__scalar.c` are compiled for any machine of the architecture.  `name__ISA.c` is compiled
for the instruction set ISA, if the architecture has it.  `name__vec.c` is compiled once for each
vector level, with NPURT_LEVEL defined as the level's name.  A library exports only the functions
that its sources mark.
"""

import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.build import sanitize as sanitize
from tools.build.zig import ROOT, STRICT, BuildError, Job, objects, whole, zig

CPU = ROOT / "npurt/cpu"
HEADERS = (CPU / "kernels", CPU / "pool")  # folders with headers of the CPU device

GLIBC = "2.28"  # manylinux_2_28: Debian 10, RHEL 8, Ubuntu 20.04 and newer

# zig spells features with _, and the CPU comes first: -mcpu=CPU+FEATURE+FEATURE.
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
    *STRICT,
    "-fPIC", "-fvisibility=hidden", "-fomit-frame-pointer",
    "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",  # NaN and infinity remain valid
)  # fmt: skip
OPTIMISE = ("-O3", "-Xclang", "-O3")  # zig turns -O3 into -O2 and -DNDEBUG
LINK = ("-Wl,--build-id=none", "-lm", "-ldl", "-lpthread")


@dataclass(frozen=True, slots=True)
class Unit:
    """One compiler run: a source, the CPU that its code may assume, and its vector level."""

    source: Path
    mcpu: str
    level: str = ""


def host() -> str:
    """Return the architecture to build for.

    This is the architecture of this machine, unless _PYTHON_HOST_PLATFORM names another platform,
    such as linux-aarch64.  Python's build tools use this variable for cross builds.

    Raises:
        BuildError: npurt has no kernels for the platform.
    """
    platform = sysconfig.get_platform()
    target = platform.removeprefix("linux-")
    if target not in TARGETS:
        raise BuildError(
            f"npurt runs on linux-{' and linux-'.join(TARGETS)}, and this is {platform}\n"
            "  remedy: build on one of these, or set _PYTHON_HOST_PLATFORM to cross-build a wheel"
        )
    return target


def units(sources: Iterable[Path], target: str) -> list[Unit]:
    """Return the compiler runs for *target*, in the order of *sources*; see the naming rule."""
    return [unit for source in sources for unit in _units_of(source, target)]


def _units_of(source: Path, target: str) -> list[Unit]:
    suffix = source.stem.partition("__")[2]
    if suffix in ("", "scalar"):
        return [Unit(source, BASELINE[target])]
    if suffix == "vec":
        return [Unit(source, mcpu, level) for level, mcpu in LEVELS[target].items()]
    if not any(suffix in isas for isas in ISAS.values()):
        raise BuildError(
            f"{source.name}: unknown instruction set {suffix!r}\n"
            "  remedy: rename the file, or add a row to ISAS in tools/build/host_code.py"
        )
    mcpu = ISAS[target].get(suffix)
    return [Unit(source, mcpu)] if mcpu else []


def library_sources() -> list[Path]:
    """Return the C sources of the CPU kernels, sorted, so that the link order is fixed."""
    return sorted(CPU.rglob("*.c"))


def build_library(
    target: str,
    out: Path,
    *,
    defines: Sequence[str] = (),
    sources: Sequence[Path] | None = None,
    includes: Sequence[Path] = HEADERS,
) -> Path:
    """Compile and link the shared library of *target* ("x86_64", "aarch64") into *out*.

    Args:
        target: Architecture; the library needs glibc 2.28 or newer.
        out: File to make or replace atomically; its name is the SONAME.
        defines: Macros, "NAME" or "NAME=VALUE".
        sources: C files; None means those of npurt/cpu.
        includes: Folders of headers.

    Raises:
        BuildError: The compiler is missing or failed; the message contains its output.
    """
    sources = library_sources() if sources is None else sources
    link = ("-shared", "-Wl,-z,defs", f"-Wl,-soname,{out.name}")
    return _build(sources, target, f"{target}-linux-gnu.{GLIBC}", link, out, defines, includes)


def compile_executable(
    sources: Sequence[Path],
    target: str,
    out: Path,
    *,
    defines: Sequence[str] = (),
    includes: Sequence[Path] = HEADERS,
    static: bool = True,
) -> Path:
    """Compile C files into a program, by the naming rule of this module.

    The program contains the kernels if *sources* includes `library_sources()`.  A *static* program
    needs no libc, so it runs under `qemu-aarch64` on a machine without aarch64 libraries.  A
    dynamic program can open shared libraries.  Other arguments and errors are those
    of `build_library`.
    """
    if _sanitizer(target):
        sources, static = [*sources, *sanitize.beside(_sanitizer(target))], False
    triple = f"{target}-linux-musl" if static else f"{target}-linux-gnu.{GLIBC}"
    return _build(sources, target, triple, ("-static",) * static, out, defines, includes)


def _sanitizer(target: str) -> str:
    """Return the sanitizer to use in builds for *target*, or "" for none."""
    return sanitize.chosen() if target == host() else ""


def job(
    unit: Unit,
    triple: str,
    defines: Sequence[str],
    includes: Sequence[Path],
    sanitizer: str = "",
) -> Job:
    """Return the compiler run that makes the object of *unit*, with all its flags."""
    level = (f"NPURT_LEVEL={unit.level}",) if unit.level else ()
    if sanitizer:
        how = (*sanitize.machine(unit.mcpu), *COMPILE, *sanitize.compiling(sanitizer))
    else:
        how = ("-target", triple, f"-mcpu={unit.mcpu}", *COMPILE, *OPTIMISE)
    flags = (
        *how,
        *(f"-D{define}" for define in (*level, *defines)),
        *(f"-I{folder}" for folder in includes),
    )
    return Job(unit.source, flags)


def _build(
    sources: Sequence[Path],
    target: str,
    triple: str,
    link: Sequence[str],
    out: Path,
    defines: Sequence[str],
    includes: Sequence[Path],
) -> Path:
    sanitizer = _sanitizer(target)
    jobs = [job(unit, triple, defines, includes, sanitizer) for unit in units(sources, target)]
    with tempfile.TemporaryDirectory() as folder, whole(out) as partial:
        if sanitizer:
            made = objects(jobs, Path(folder), sanitize.compile_c)
            sanitize.link(sanitizer, *link, "-o", partial, *made, *LINK)
        else:
            made = objects(jobs, Path(folder))
            zig("cc", "-target", triple, "-s", *link, "-o", partial, *made, *LINK)
    return out
