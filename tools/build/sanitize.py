"""Compile for this machine with a sanitizer: Debian's clang in place of zig.

Part of `tools/build`: not installed.  NPURT_SANITIZE=address selects AddressSanitizer and
UndefinedBehaviorSanitizer, NPURT_SANITIZE=thread selects ThreadSanitizer.  Every library and
program for this machine is then compiled with the sanitizer, and the files of the package are made
in build/address/npurt or build/thread/npurt.  Builds for other machines do not change.
`.ci/sanitized` runs a command with these libraries and sets the options of the sanitizer runtimes.
"""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tools.build.zig import ROOT, Arg, BuildError, Job, run, whole, write

CLANG = "clang-19"  # in Debian 12 and 13; since 17, clang checks function types in C
VARIABLE = "NPURT_SANITIZE"
CHECKS = {"address": "-fsanitize=address,undefined", "thread": "-fsanitize=thread"}

_COMPILE = {  # clang takes minutes to optimise unrolled loops that contain checks
    "address": ("-O0", "-fsanitize-recover=all"),  # runtime options decide which error is fatal
    "thread": ("-O1", "-Wno-pass-failed"),  # -O1 does not unroll some loops that are marked for it
}
_ALWAYS = (
    *("-g", "-fno-omit-frame-pointer"),
    "-Wno-psabi",  # only static functions pass vectors that are wider than registers
)
_RUNTIMES = {"address": "asan", "thread": "tsan"}

# C programs check for leaks at exit.  Python does not check: it does not free most memory.
_LEAKS = """\
void __lsan_do_leak_check(void);

__attribute__((destructor)) static void look_for_leaks(void)
{
    __lsan_do_leak_check();
}
"""


def chosen() -> str:
    """Return the sanitizer that NPURT_SANITIZE selects, or "".

    Raises:
        BuildError: NPURT_SANITIZE names no sanitizer, this machine is not x86_64, or the compiler
            is missing.
    """
    name = os.environ.get(VARIABLE, "")
    if name and name not in CHECKS:
        raise BuildError(f"{VARIABLE}={name!r}\n  remedy: set it to {' or '.join(CHECKS)}")
    if name and os.uname().machine != "x86_64":
        raise BuildError(
            f"{VARIABLE}: the compiler flags for {os.uname().machine} are unknown\n"
            f"  remedy: unset {VARIABLE}, or extend `machine` in tools/build/sanitize.py"
        )
    if name and not shutil.which(CLANG):
        raise BuildError(f"{VARIABLE}: there is no {CLANG}\n  remedy: run .ci/clang")
    return name


def package() -> Path:
    """Return the folder in which the build makes the files of the package."""
    name = os.environ.get(VARIABLE, "")
    return ROOT / "build" / name / "npurt" if name else ROOT / "npurt"


def machine(mcpu: str) -> tuple[Arg, ...]:
    """Return clang's flags for *mcpu*, a CPU in zig's spelling such as "x86_64+avx2+fma"."""
    cpu, *features = mcpu.replace("_", "-").split("+")
    return (f"-march={cpu}", *(f"-m{feature}" for feature in features))


def compiling(sanitizer: str) -> tuple[Arg, ...]:
    """Return the flags of *sanitizer*, which replace the usual optimisation flags."""
    return (*_ALWAYS, *_COMPILE[sanitizer], CHECKS[sanitizer])


def beside(sanitizer: str) -> list[Path]:
    """Return the extra sources that *sanitizer* needs in every program."""
    leaks = ROOT / "build" / sanitizer / "leaks.c"
    if sanitizer == "address":
        write(leaks, _LEAKS)
        return [leaks]
    return []


def compile_c(job: Job, out: Path) -> None:
    """Compile one source, or copy its object from the cache.

    Raises:
        BuildError: The compiler failed; the message contains its output.
    """
    command = [CLANG, *map(str, job.flags), str(job.source.resolve())]
    _run(*command, "-E", "-o", out)
    key = hashlib.sha256(out.read_bytes() + "\0".join(command).encode()).hexdigest()
    cached = ROOT / "build/clang" / f"{key}.o"
    if not cached.exists():
        with whole(cached) as partial:
            _run(*command, "-c", "-o", partial)
    shutil.copyfile(cached, out)


def link(sanitizer: str, *args: Arg) -> None:
    """Link a library or a program with the shared sanitizer runtime.

    Raises:
        BuildError: As in `compile_c`.
    """
    name = f"libclang_rt.{_RUNTIMES[sanitizer]}-x86_64.so"
    runtime = subprocess.check_output([CLANG, f"-print-file-name={name}"], text=True)
    rpath = f"-Wl,-rpath,{Path(runtime).parent}"
    _run(CLANG, CHECKS[sanitizer], "-shared-libsan", rpath, *args)


def _run(*command: Arg) -> None:
    run(command, LD_PRELOAD="")  # tests preload the runtime; the compiler must not
