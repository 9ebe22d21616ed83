"""Find and open the FastRPC library, once for the process, and check its return codes.

A process can load only one FastRPC library.  The library sets an environment variable when it is
loaded; if a second library finds this variable, it ends the process at its first open.
Source: qualcomm/fastrpc src/fastrpc_apps_user.c, check_multilib_util(); ggml-org/llama.cpp#27677.
"""

import ctypes
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npurt.base.library import path_of
from npurt.base.once import once
from npurt.errors import DeviceNotFound, NpurtError
from npurt.hexagon.fastrpc import abi, codes
from npurt.hexagon.fastrpc.caller import refuse_fork
from npurt.settings import FASTRPC_LIBRARY, SIM_FASTRPC, read

CANDIDATES = (
    "libcdsprpc.so.1",  # installed by runtime packages; development packages install the next
    "libcdsprpc.so",
    "/vendor/lib64/libcdsprpc.so",  # Android
)
SAID_BYTES = 1024  # maximum size of an error message of the simulator
INSTALL = (
    "install libcdsprpc (on Debian and Ubuntu: apt install libfastrpc1; on RadxaOS: libcdsprpc1), "
    f"name it in {FASTRPC_LIBRARY.name}, or use device 'hexagon:sim'"
)
ELSEWHERE = "use device 'hexagon:sim', which simulates one, or cpu"
APART = "use the other device in a process of its own"
_FASTRPC = re.compile(r"lib[acs]dsprpc(_sim)?\.so[.\d]*$")


class Library:
    """An opened FastRPC library.

    Attributes:
        path: The file.
        c: The functions, for calls that must be fast; the caller must check their return codes.
        features: The names of `abi.OPTIONAL` that the library has.
        process: The id of the process that loaded the library; forks cannot use it.
        simulated: True for npurt's simulator.
        ioctl: The function for ioctls on the library's memory; see `_ioctl`.
    """

    def __init__(self, path: str, functions: Any) -> None:
        self.path = path
        self.c = functions
        self.features = frozenset(name for name in abi.OPTIONAL if hasattr(functions, name))
        self.process = os.getpid()
        self.simulated = self.features.issuperset(abi.SIMULATOR)
        self.ioctl = _ioctl(functions)

    @property
    def has_dspqueue(self) -> bool:
        """Whether the library has all functions of dspqueue that npurt calls."""
        return self.features.issuperset(abi.DSPQUEUE)

    def call(self, name: str, *arguments: Any) -> tuple[int, int]:
        """Call *name*; return its code, unsigned, and its errno, 0 if it set none."""
        abi.ffi().errno = 0
        code = getattr(self.c, name)(*arguments)
        return code & 0xFFFF_FFFF, abi.ffi().errno

    def check(self, name: str, *arguments: Any, about: str = "") -> None:
        """Call *name* and check that it succeeds.

        Raises:
            NpurtError: The call returned an error code; see `codes.failed`.
        """
        code, errno = self.call(name, *arguments)
        if code:
            raise codes.failed(name, code, errno, about)

    def unstarted(self) -> NpurtError | None:
        """Return the reason why the simulator started no DSP process; None if it gives none."""
        if "npurt_sim_error" not in self.features:
            return None
        text = abi.ffi().new("char[]", SAID_BYTES)
        self.c.npurt_sim_error(text, SAID_BYTES)
        said = abi.ffi().string(text).decode(errors="replace")
        what, _, remedy = said.partition("\n  remedy: ")
        if not what:
            return None
        command = " ".join(remedy.split()) or f"set {SIM_FASTRPC}=log=1 to see its messages"
        return DeviceNotFound(f"the simulated DSP does not start: {what}", remedy=command)

    def __repr__(self) -> str:
        return f"Library({self.path!r})"


def _ioctl(functions: Any) -> Any:
    """Return the ioctl function for the memory of a library.

    A simulator defines its own ioctl, which replaces the kernel's.  Lookup in another library finds
    the ioctl of libc, because the library depends on libc.  Then return the ioctl of the program:
    it is that of libc, or that of a preloaded library that replaces the kernel.
    """
    ffi = abi.ffi()
    libc = ffi.dlopen("libc.so.6")
    own = getattr(functions, "ioctl", libc.ioctl)
    return own if own != libc.ioctl else ffi.dlopen(None).ioctl


def _remedy() -> str:
    """Return the remedy for a missing library; only aarch64 machines have a Hexagon."""
    machine = platform.machine()
    if machine == "aarch64":
        return INSTALL
    return f"a machine with an {machine} processor has no Hexagon DSP; {ELSEWHERE}"


def find(path: str | os.PathLike[str] | None = None) -> Library:
    """Return the library at *path*, or the one named in NPURT_FASTRPC_LIBRARY, or the system's.

    Raises:
        DeviceNotFound: No library can be used.  The message lists each path with the reason.
    """
    path = path or read(FASTRPC_LIBRARY, str)
    return load((os.fspath(path),) if path else CANDIDATES)


def simulator() -> str:
    """Return the path of npurt's simulator."""
    return str(path_of("hexagon/sim/libcdsprpc_sim.so"))


def load(candidates: Sequence[str]) -> Library:
    """Return the first candidate that can be opened and has every symbol in `abi.SYMBOLS`.

    Raises:
        DeviceNotFound: No candidate can be used, or this process has loaded another FastRPC
            library.
    """
    tried, remedy = [], _remedy()
    for candidate in candidates:
        other = _other_than(candidate)
        if other:
            tried.append(f"{candidate}: {other} is loaded, and two would end the process")
            remedy = APART
            continue
        try:
            functions = abi.ffi().dlopen(candidate)
        except OSError as error:
            reason = str(error).partition(".  Additionally")[0]  # without cffi's own advice
            tried.append(f"{candidate}: {reason.rpartition(f'{candidate}: ')[2]}")
            continue
        missing = [name for name in abi.SYMBOLS if not hasattr(functions, name)]
        if not missing:
            library = _library(_file(candidate))
            refuse_fork(library.process, f"{candidate} is used")
            return library
        tried.append(f"{candidate}: has no {', '.join(missing)}")
    raise DeviceNotFound(
        "cannot load the FastRPC library; tried\n    " + "\n    ".join(tried),
        remedy=remedy,
    )


def _other_than(candidate: str) -> str:
    """Return a loaded FastRPC library other than *candidate*, or "" if there is none.

    If the process has loaded two FastRPC libraries, return one for every candidate.
    """
    there = loaded() if _FASTRPC.search(candidate) else []
    return there[0] if len(there) > 1 or (there and not _is_loaded(candidate)) else ""


def _is_loaded(candidate: str) -> bool:
    """Return whether the dynamic linker has loaded *candidate*, even under another name.

    This function uses ctypes.  If a library is not loaded, the linker gives no error text, and cffi
    crashes in that case.
    """
    try:
        ctypes.CDLL(candidate, os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


@once
def _library(path: str) -> Library:
    """Return the `Library` of a file; all sessions of the process use the same object.

    The library is never unloaded, because its memory may be freed at the very end of the
    interpreter.
    """
    return Library(path, abi.ffi().dlopen(path, os.RTLD_NOW | os.RTLD_NODELETE))


def loaded() -> list[str]:
    """Return the files of FastRPC libraries that are mapped into this process, sorted."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:  # no /proc, as in some sandboxes
        return []
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count("/")}
    return sorted(path for path in paths if _FASTRPC.search(path))


def _file(candidate: str) -> str:
    """Return the file that dlopen() chose for *candidate*."""
    if os.sep in candidate:
        return os.path.realpath(candidate)
    return next(iter(loaded()), candidate) if _FASTRPC.search(candidate) else candidate
