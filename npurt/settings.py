"""The environment variables that npurt reads, in one table.

npurt reads a variable when it needs the value, never at import.  ``FOO=0`` and ``FOO=`` switch a
flag off.
"""

import os
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from npurt.errors import SettingError

T = TypeVar("T", int, str)


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable: its name, its default and its effect."""

    name: str
    default: int | str
    help: str

    def text(self) -> str | None:
        """Return the variable's unparsed value, or None if it is unset or empty."""
        return os.environ.get(self.name) or None


def stated(names: Container[str]) -> list[str]:
    """Return the sorted variables of the environment whose upper-case names are in *names*."""
    return sorted(name for name in os.environ if name.upper() in names)


def unknown() -> list[str]:
    """Return the sorted variables of the environment that look like npurt's and have no effect."""
    known = {each.name for each in SETTINGS} | OF_OTHERS
    return sorted(name for name in os.environ if name.startswith("NPURT_") and name not in known)


def read(setting: Setting, kind: type[T]) -> T:
    """Return the value of *setting*, converted to *kind*.

    Raises:
        SettingError: The value cannot be converted.
    """
    text = setting.text()
    if text is None:
        return cast(T, setting.default)
    try:
        return kind(text)
    except ValueError:
        raise SettingError(
            f"{setting.name}={text!r} is not a number",
            remedy=f"unset it, or set it: {setting.help}",
        ) from None


def deadline() -> int:
    """Return the longest time of one call to an NPU, in seconds: `NPURT_DEADLINE`.

    Raises:
        SettingError: The value is not a number, is below 1, or is more than a day.
    """
    seconds = read(DEADLINE, int)
    if not 1 <= seconds <= LONGEST_SECONDS:
        raise SettingError(
            f"a deadline of {seconds} seconds is not possible",
            remedy=f"unset {DEADLINE.name}, or set it to the seconds that a call may take, "
            f"such as {DEADLINE.default}",
        )
    return seconds


def variable(name: str) -> str:
    """Return a variable that other programs read, for a diagnosis; "" if it is not set."""
    return os.environ.get(name, "")


def preloading(library: str) -> dict[str, str]:
    """Return the environment for a program that has to load *library* before other libraries."""
    others = os.environ.get("LD_PRELOAD", "")
    return {**os.environ, "LD_PRELOAD": f"{library} {others}".strip()}


def prepend_dsp_path(folder: str) -> None:
    """Make the DSP search for its code in *folder* first, then in the user's folders.

    FastRPC reads DSP_LIBRARY_PATH, or ADSP_LIBRARY_PATH if the former is not set.  Both are lists
    separated by ";".  This function sets both, and has to run before a session is opened.
    """
    users = os.environ.get("DSP_LIBRARY_PATH") or os.environ.get("ADSP_LIBRARY_PATH") or ""
    folders = [folder, *(item for item in users.split(";") if item and item != folder)]
    for name in ("DSP_LIBRARY_PATH", "ADSP_LIBRARY_PATH"):
        os.environ[name] = ";".join(folders)


def cache_folder() -> Path:
    """Return the folder for files that npurt can recreate: `NPURT_CACHE` or XDG's cache folder.

    Raises:
        FileNotFoundError: The user has no home folder.
    """
    chosen = read(CACHE, str)
    return Path(chosen) if chosen else _folder_of_user("XDG_CACHE_HOME", ".cache")


def state_folder() -> Path:
    """Return XDG's state folder of npurt, for user data such as the chat history.

    Raises:
        FileNotFoundError: The user has no home folder.
    """
    return _folder_of_user("XDG_STATE_HOME", ".local/state")


def _folder_of_user(variable: str, usual: str) -> Path:
    base = os.environ.get(variable)
    try:
        return (Path(base) if base else Path.home() / usual) / "npurt"
    except RuntimeError as error:
        raise FileNotFoundError(str(error)) from error


def terminal_has_styles() -> bool:
    """Return whether the terminal supports text styles and the user did not disable them."""
    return os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("NO_COLOR")


HOSTS = ("cpu", "numpy")  # devices that are no NPU

DEBUG = Setting("NPURT_DEBUG", 0, "1: print the traceback of command-line errors")
DEVICE = Setting("NPURT_DEVICE", "auto", "device to use when none is given")
THREADS = Setting("NPURT_THREADS", 0, "CPU threads; 0 chooses from affinity, cgroup and core types")
CPU_ISA = Setting("NPURT_CPU_ISA", "", "CPU kernel set to use instead of the fastest, e.g. avx2")
LIBRARIES = Setting(
    "NPURT_LIBRARIES", "", "folder of another build of npurt's C libraries, with npurt/'s layout"
)
VERIFY = Setting("NPURT_VERIFY", "sample", "result verification: off, sample or always")
MODELS = Setting(
    "NPURT_MODELS", "", "folder for model files, instead of `models` in the user's cache"
)
FASTRPC_LIBRARY = Setting("NPURT_FASTRPC_LIBRARY", "", "path of the FastRPC library to use")
LONGEST_SECONDS = 24 * 60 * 60  # longest deadline; a longer one would overflow clocks
DEADLINE = Setting("NPURT_DEADLINE", 60, "seconds that one call to an NPU may take")
HEXAGON_TRANSPORT = Setting(
    "NPURT_HEXAGON_TRANSPORT", "invoke", "transport of calls to the Hexagon: invoke or dspqueue"
)
HEXAGON_WORKER = Setting(
    "NPURT_HEXAGON_WORKER",
    0,
    "1: call the Hexagon from a worker process, which npurt kills if it hangs",
)
ROCKET_THREADS = Setting(
    "NPURT_ROCKET_THREADS", 0, "1: one thread for each NPU core of an RK3588 (rocket driver)"
)
# Variables that only the simulators read.
SIM_FASTRPC = "NPURT_SIM_FASTRPC"
SIM_RKNPU = "NPURT_SIM_RKNPU"
# Variables that the simulators, the build and tests of the kernel's drivers read.
OF_OTHERS = {
    SIM_FASTRPC, SIM_RKNPU, "NPURT_QEMU_HEXAGON", "NPURT_SANITIZE", "NPURT_KERNEL_LOG",
    "NPURT_KERNEL_COUNTS",
}  # fmt: skip
CACHE = Setting("NPURT_CACHE", "", "folder for models and for measurements of this machine")

SETTINGS = (
    DEBUG,
    DEVICE,
    THREADS,
    CPU_ISA,
    LIBRARIES,
    VERIFY,
    MODELS,
    FASTRPC_LIBRARY,
    DEADLINE,
    HEXAGON_TRANSPORT,
    HEXAGON_WORKER,
    ROCKET_THREADS,
    CACHE,
)
