"""Compile for this machine with a sanitizer: Debian's clang in place of zig.

Part of `npurt/build.py`: not installed.  NPURT_SANITIZE=address (AddressSanitizer and
UndefinedBehaviorSanitizer) or NPURT_SANITIZE=thread (ThreadSanitizer) has every library and every
program for this machine compiled so, and the files of the package made in build/address/npurt or
build/thread/npurt.  What is for another machine is compiled as always.  `.ci/sanitized` has the
options of the runtimes: it runs a command on what is made here.
"""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from npurt.build_zig import ROOT, Arg, BuildError, Job, run, whole, write

CLANG = "clang-19"  # in Debian 12 and 13; from 17 on it checks the types of functions in C
VARIABLE = "NPURT_SANITIZE"
CHECKS = {"address": "-fsanitize=address,undefined", "thread": "-fsanitize=thread"}

_COMPILE = {  # unrolled loops with checks in them take clang minutes to optimise
    "address": ("-O0", "-fsanitize-recover=all"),  # the runtime's options say what ends a process
    "thread": ("-O1", "-Wno-pass-failed"),  # some of those loops are not unrolled
}
_ALWAYS = (
    *("-g", "-fno-omit-frame-pointer"),
    "-Wno-psabi",  # vectors wider than the registers are passed among static functions only
)
_RUNTIMES = {"address": "asan", "thread": "tsan"}

# A program looks for leaks when it ends.  Python does not: it frees little of its own then.
_LEAKS = """\
void __lsan_do_leak_check(void);

__attribute__((destructor)) static void look_for_leaks(void)
{
    __lsan_do_leak_check();
}
"""


def chosen() -> str:
    """Return the sanitizer that NPURT_SANITIZE asks for, or "".

    Raises:
        BuildError: It asks for another, this is no x86_64, or the compiler is missing.
    """
    name = os.environ.get(VARIABLE, "")
    if name and name not in CHECKS:
        raise BuildError(f"{VARIABLE}={name!r}\n  remedy: set it to {' or '.join(CHECKS)}")
    if name and os.uname().machine != "x86_64":
        raise BuildError(
            f"{VARIABLE}: the flags of {os.uname().machine} are not known here\n"
            "  remedy: unset it, or teach npurt/build_sanitize.py `machine`"
        )
    if name and not shutil.which(CLANG):
        raise BuildError(f"{VARIABLE}: there is no {CLANG}\n  remedy: run .ci/clang")
    return name


def package() -> Path:
    """Return the folder that the files of the package are made in."""
    name = os.environ.get(VARIABLE, "")
    return ROOT / "build" / name / "npurt" if name else ROOT / "npurt"


def machine(mcpu: str) -> tuple[Arg, ...]:
    """Return what *mcpu*, as zig spells it ("x86_64+avx2+fma"), is to clang."""
    cpu, *features = mcpu.replace("_", "-").split("+")
    return (f"-march={cpu}", *(f"-m{feature}" for feature in features))


def compiling(sanitizer: str) -> tuple[Arg, ...]:
    """Return the flags that stand in place of those of optimisation."""
    return (*_ALWAYS, *_COMPILE[sanitizer], CHECKS[sanitizer])


def beside(sanitizer: str) -> list[Path]:
    """Return the sources that are compiled into every program."""
    leaks = ROOT / "build" / sanitizer / "leaks.c"
    if sanitizer == "address":
        write(leaks, _LEAKS)
        return [leaks]
    return []


def compile_c(job: Job, out: Path) -> None:
    """Compile one source, or copy its object of the last time.

    Raises:
        BuildError: The compiler refuses; its words are in the message.
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
    """Link a library or a program; those of a process share one runtime.  Errors as `compile_c`."""
    name = f"libclang_rt.{_RUNTIMES[sanitizer]}-x86_64.so"
    runtime = subprocess.check_output([CLANG, f"-print-file-name={name}"], text=True)
    rpath = f"-Wl,-rpath,{Path(runtime).parent}"
    _run(CLANG, CHECKS[sanitizer], "-shared-libsan", rpath, *args)


def _run(*command: Arg) -> None:
    run(command, LD_PRELOAD="")  # a test that compiles has the runtime preloaded
