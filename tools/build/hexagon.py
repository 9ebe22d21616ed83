"""Compile C for the Hexagon: the skels that ship, and programs that qemu-hexagon runs.

Part of `tools/build`: not installed.  All code is freestanding: open Hexagon compilers have no
libc and no compiler runtime, so dsp/rtlib.c provides the functions that clang calls by itself.

A skel has the ELF layout of the SDK's skels: one read-execute and one read-write segment in pages
of 4096 bytes, a System V hash table, and no needed library.  The source of this layout is the skels
in qualcomm/fastrpc (test/v68, test/v75).  dsp/skel.ld defines the segments.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.build.zig import ROOT, STRICT, BuildError, Job, digest, objects, whole, write, zig

DSP = ROOT / "dsp"
REFERENCE = DSP / "reference"  # the kernels' results in plain C; not part of a skel
IDL = ROOT / "idl"
IDL_COMPILER = ROOT / "npurt/hexagon/idl"  # run, not imported: it belongs to a higher layer
ARCHS = ("v68", "v69", "v73", "v75", "v79", "v81")
SHELL_NAMES = ROOT / "npurt/hexagon/doctor/shell_names.tsv"  # what the DSP offers to a skel
SYMBOL = "npurt_skel_handle_invoke"  # the function that the URI of a session names

COMPILE = (
    *STRICT,
    *("-target", "hexagon-freestanding", "-ffreestanding", "-O2", "-G0"),
    *("-fPIC", "-fvisibility=hidden", "-fomit-frame-pointer", "-fno-stack-protector"),
    *("-ffp-contract=off", "-fno-math-errno"),
)
# The SDK's linker flags give the functions of the heap these names in every skel (Halide #1614).
WRAPPED = ("malloc", "calloc", "realloc", "memalign", "free")
# -Bsymbolic would set DT_FLAGS, which no shipped skel has; skel.ld sets DT_SYMBOLIC.
LINK_SKEL = (
    *("-shared", "-Bsymbolic-functions", "--hash-style=sysv", "--build-id=none", "--strip-all"),
    *("-z", "norelro", "-z", "nognustack", "-z", "max-page-size=4096"),
    *(f"--wrap={name}" for name in WRAPPED),
    "--gc-sections",
)
LINK_PROGRAM = ("-static", "-e", "_start", "--build-id=none", "-z", "norelro")


def rtlib() -> list[Path]:
    """Return the sources of functions that clang calls by itself, such as memcpy and division.

    All their symbols are weak or hidden.
    """
    return [source for source in [DSP / "rtlib.c"] if source.exists()]


def job(source: Path, arch: str, defines: Sequence[str], includes: Sequence[Path]) -> Job:
    """Return the compiler run that makes the object of *source* for *arch*, with HVX."""
    number = arch.removeprefix("v")
    cpu = f"-mcpu=hexagonv{number}+hvx+hvxv{number}+hvx_length128b"
    flags = (f"-D{d}" for d in defines), (f"-I{folder}" for folder in includes)
    return Job(source, (cpu, *COMPILE, *flags[0], *flags[1]))


def compile_program(
    sources: Sequence[Path],
    out: Path,
    *,
    arch: str = "v68",
    defines: Sequence[str] = (),
    includes: Sequence[Path] = (DSP, IDL),
) -> Path:
    """Compile C files, one of which defines `_start`, into a program for qemu-hexagon.

    dsp/rtlib.c is linked in; a source may replace any function of dsp/rtlib.c.

    Raises:
        BuildError: The compiler is missing or failed; the message contains its output.
    """
    jobs = [job(source, arch, defines, includes) for source in [*sources, *rtlib()]]
    with tempfile.TemporaryDirectory() as folder, whole(out) as partial:
        zig("ld.lld", *LINK_PROGRAM, "-o", partial, *objects(jobs, Path(folder)))
        partial.chmod(0o755)
    return out


def compile_skel(
    sources: Sequence[Path],
    arch: str,
    out: Path,
    *,
    defines: Sequence[str] = (),
    includes: Sequence[Path] = (DSP, IDL),
) -> Path:
    """Compile C files into a shared object that a DSP can load.

    dsp/rtlib.c is linked in.  The sources mark exported functions.  The errors are those of
    `compile_program`.
    """
    jobs = [job(source, arch, defines, includes) for source in [*sources, *rtlib()]]
    with tempfile.TemporaryDirectory() as folder:
        return _link_skel(objects(jobs, Path(folder)), out)


def _link_skel(made: Sequence[Path], out: Path) -> Path:
    with whole(out) as partial:
        script = DSP / "skel.ld"
        zig("ld.lld", *LINK_SKEL, f"-soname={out.name}", "-T", script, "-o", partial, *made)
    return out


def shell_names() -> str:
    """Return the rows SHELL_NAME(name, versions) for the names that real shells export.

    Bit v - 64 of `versions` stands for version v of the DSP.  The names are those of SHELL_NAMES.
    """
    rows = [
        line.split("\t")[:2]
        for line in SHELL_NAMES.read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    ]
    every = {v for _, versions in rows for v in _versions(versions)}
    made = ((name, sum(1 << v - 64 for v in _versions(vs) or every)) for name, vs in rows)
    return "".join(f"SHELL_NAME({name}, {mask:#x}u)\n" for name, mask in made)


def _versions(text: str) -> list[int]:
    """Return the numbers in a text such as "v68 v73"; none in "all"."""
    return [int(word.removeprefix("v")) for word in text.split() if word != "all"]


def skel_sources() -> list[Path]:
    """Return the C sources of the skel that are not generated, sorted."""
    return sorted(set(DSP.rglob("*.c")) - set(rtlib()) - set(REFERENCE.glob("*.c")))


def skel_inputs() -> list[Path]:
    """Return every file that the contents of the skels depend on."""
    files = [*DSP.rglob("*"), *IDL.rglob("*"), *IDL_COMPILER.glob("*.py")]
    return [path for path in files if path.is_file() and path.parent != REFERENCE]


def interface_inputs() -> list[Path]:
    """Return every file that the compiled interface depends on."""
    files = [IDL / "npurt.idl", *sorted(IDL_COMPILER.glob("*.py"))]
    return files if all(path.exists() for path in (files[0], IDL_COMPILER / "__main__.py")) else []


def build_interface(out: Path) -> Path:
    """Compile idl/npurt.idl to Python code, which `npurt.hexagon.idl.interface` runs."""
    _compile_idl("--python", out)
    return out


def generate(folder: Path) -> list[Path]:
    """Compile idl/npurt.idl and write npurt_build.h into *folder*; return the C sources made."""
    folder.mkdir(parents=True, exist_ok=True)
    _compile_idl("--c", folder)
    build = int(digest(skel_inputs())[:16], 16)
    write(folder / "npurt_build.h", f"#define NPURT_BUILD {build:#018x}ull\n")
    return sorted(folder.glob("*.c"))


def _compile_idl(flag: str, out: Path) -> None:
    module = ".".join(IDL_COMPILER.relative_to(ROOT).parts)
    command = [sys.executable, "-m", module, str(IDL / "npurt.idl"), flag, str(out)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, env=env, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stdout}")


def build_skels(folder: Path, archs: Sequence[str] = ARCHS) -> list[Path]:
    """Build libnpurt_skel_vNN.so for each of *archs*, and manifest.json, into *folder*."""
    generated = ROOT / "build/idl"
    sources = [*skel_sources(), *generate(generated), *rtlib()]
    includes = (DSP, IDL, generated)
    jobs = [job(source, arch, (), includes) for arch in archs for source in sources]
    made = [folder / f"libnpurt_skel_{arch}.so" for arch in archs]
    with tempfile.TemporaryDirectory() as place:
        compiled = objects(jobs, Path(place))
        for i, out in enumerate(made):
            _link_skel(compiled[i * len(sources) : (i + 1) * len(sources)], out)
    manifest = folder / "manifest.json"
    write(manifest, json.dumps(_manifest(made, archs), indent=2) + "\n")
    return [*made, manifest]


def _manifest(made: Sequence[Path], archs: Sequence[str]) -> dict[str, object]:
    """Return the manifest of the skels: file names, sizes and digests, by architecture."""
    skels = {
        arch: {
            "file": path.name,
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for arch, path in zip(archs, made, strict=True)
    }
    return {"build": digest(skel_inputs())[:16], "symbol": SYMBOL, "skels": skels}
