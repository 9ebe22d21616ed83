"""Compile for this machine with a sanitizer: Debian's clang in place of zig.

Part of `npurt/build.py`: not installed.  NPURT_SANITIZE=address (AddressSanitizer and
UndefinedBehaviorSanitizer) or NPURT_SANITIZE=thread (ThreadSanitizer) has every library and every
program for this machine compiled so, and the files of the package made in build/address/npurt or
build/thread/npurt.  What is for another machine is compiled as always.  `.ci/sanitized` has the
options of the runtimes: it runs a command on what is made here.
"""

import os
import subprocess
from pathlib import Path

from npurt.build_zig import ROOT, Arg, BuildError, run, write

CLANG = "clang-19"  # in Debian 12 and 13; from 17 on it checks the types of functions in C
VARIABLE = "NPURT_SANITIZE"
CHECKS = {"address": "-fsanitize=address,undefined", "thread": "-fsanitize=thread"}
_RUNTIMES = {"address": "asan", "thread": "tsan"}

_COMPILE = (
    *("-O0", "-g", "-fno-omit-frame-pointer"),  # little is left out before it is checked
    "-fsanitize-recover=all",
    "-Wno-psabi",  # vectors wider than the registers are passed among static functions only
    "-Wno-pass-failed",  # a loop with checks in it may be too long to unroll
)

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
        BuildError: It asks for another, or this is no x86_64.
    """
    name = os.environ.get(VARIABLE, "")
    if name and name not in CHECKS:
        raise BuildError(f"{VARIABLE}={name!r}\n  remedy: set it to {' or '.join(CHECKS)}")
    if name and os.uname().machine != "x86_64":
        raise BuildError(
            f"{VARIABLE}: the flags of {os.uname().machine} are not known here\n"
            "  remedy: unset it, or teach npurt/build_sanitize.py `machine`"
        )
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
    return (*_COMPILE, CHECKS[sanitizer])


def linking(sanitizer: str) -> tuple[Arg, ...]:
    """Return the flags of a library or a program; those of a process share one runtime."""
    runtime = f"libclang_rt.{_RUNTIMES[sanitizer]}-x86_64.so"
    found = subprocess.check_output([CLANG, f"-print-file-name={runtime}"], text=True)
    return (CHECKS[sanitizer], "-shared-libsan", f"-Wl,-rpath,{Path(found).parent}")


def beside(sanitizer: str) -> list[Path]:
    """Return the sources that are compiled into every program."""
    leaks = ROOT / "build" / sanitizer / "leaks.c"
    if sanitizer == "address":
        write(leaks, _LEAKS)
        return [leaks]
    return []


def clang(*args: Arg) -> None:
    """Run the compiler.

    Raises:
        BuildError: It is missing, or refuses; its words are in the message.
    """
    run([CLANG, *args])
