"""Compile C for the Hexagon: the skels that ship, and programs that qemu-hexagon runs.

Part of `npurt/build.py`: not installed.  Everything is freestanding: no libc and no compiler
runtime exist for an open Hexagon compiler, so dsp/rtlib.c provides what clang calls by itself.

The shape of a skel is that of the SDK's, as far as it is visible in the skels of qualcomm/fastrpc
(test/v68, v75): one read-execute and one read-write segment in pages of 4096, a System V hash
table, no library needed.  dsp/skel.ld has the segments.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from npurt.build_zig import ROOT, STRICT, BuildError, Job, digest, objects, whole, write, zig

DSP = ROOT / "dsp"
REFERENCE = DSP / "reference"  # the kernels' results in plain C; not part of a skel
IDL = ROOT / "idl"
IDL_COMPILER = ROOT / "npurt/hexagon/idl"  # run, not imported: it lies above this
ARCHS = ("v68", "v69", "v73", "v75", "v79", "v81")
SYMBOL = "npurt_skel_handle_invoke"  # the function that the URI of a session names

COMPILE = (
    *STRICT,
    *("-target", "hexagon-freestanding", "-ffreestanding", "-O2", "-G0"),
    *("-fPIC", "-fvisibility=hidden", "-fomit-frame-pointer", "-fno-stack-protector"),
    *("-ffp-contract=off", "-fno-math-errno"),
)
LINK_SKEL = (
    *("-shared", "-Bsymbolic", "--hash-style=sysv", "--build-id=none", "--strip-all"),
    *("-z", "norelro", "-z", "nognustack", "-z", "max-page-size=4096"),
    "--gc-sections",
)
LINK_PROGRAM = ("-static", "-e", "_start", "--build-id=none", "-z", "norelro")


def rtlib() -> list[Path]:
    """Return the sources of what clang calls by itself: memcpy, division.  All weak or hidden."""
    return [source for source in [DSP / "rtlib.c"] if source.exists()]


def job(source: Path, arch: str, defines: Sequence[str], includes: Sequence[Path]) -> Job:
    """Return the run of the compiler that makes the object of *source* for *arch*, with HVX."""
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

    dsp/rtlib.c is linked in; a source may define any of its functions itself.

    Raises:
        BuildError: The compiler is missing or refuses; its words are in the message.
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
    """Compile C files into a shared object of the shape that a DSP loads.

    dsp/rtlib.c is linked in.  The sources mark what is exported.  Errors as `compile_program`.
    """
    jobs = [job(source, arch, defines, includes) for source in [*sources, *rtlib()]]
    with tempfile.TemporaryDirectory() as folder:
        return _link_skel(objects(jobs, Path(folder)), out)


def _link_skel(made: Sequence[Path], out: Path) -> Path:
    with whole(out) as partial:
        script = DSP / "skel.ld"
        zig("ld.lld", *LINK_SKEL, f"-soname={out.name}", "-T", script, "-o", partial, *made)
    return out


def skel_sources() -> list[Path]:
    """Return the C sources of the skel that are not generated, sorted."""
    return sorted(set(DSP.rglob("*.c")) - set(rtlib()) - set(REFERENCE.glob("*.c")))


def skel_inputs() -> list[Path]:
    """Return every file that decides what the skels are."""
    files = [*DSP.rglob("*"), *IDL.rglob("*"), *IDL_COMPILER.glob("*.py")]
    return [path for path in files if path.is_file() and path.parent != REFERENCE]


def generate(folder: Path) -> list[Path]:
    """Compile idl/npurt.idl into *folder*, and write npurt_build.h; return the C sources made."""
    module = ".".join(IDL_COMPILER.relative_to(ROOT).parts)
    command = [sys.executable, "-m", module, str(IDL / "npurt.idl"), "--c", str(folder)]
    folder.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, env=env, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stdout}")
    build = int(digest(skel_inputs())[:16], 16)
    write(folder / "npurt_build.h", f"#define NPURT_BUILD {build:#018x}ull\n")
    return sorted(folder.glob("*.c"))


def build_skels(folder: Path, archs: Sequence[str] = ARCHS) -> list[Path]:
    """Build libnpurt_skel_vNN.so for every one of *archs*, and manifest.json, into *folder*."""
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
    """Describe the skels: what a loader and a bug report need to name one."""
    skels = {
        arch: {
            "file": path.name,
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for arch, path in zip(archs, made, strict=True)
    }
    return {"build": digest(skel_inputs())[:16], "symbol": SYMBOL, "skels": skels}
