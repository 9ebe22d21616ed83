"""Every environment variable npurt reads, in one table.

Values are read when asked for, never at import.  ``FOO=0`` and ``FOO=`` switch a flag off.
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
    """One variable: its name, its default and what it does."""

    name: str
    default: int | str
    help: str

    def text(self) -> str | None:
        """Return the variable as it stands, or None when it is not set or empty."""
        return os.environ.get(self.name) or None


def stated(names: Container[str]) -> list[str]:
    """Return the variables of other programs that are set, of *names* in any case, sorted."""
    return sorted(name for name in os.environ if name.upper() in names)


def read(setting: Setting, kind: type[T]) -> T:
    """Read *setting* now, as *kind*.

    Raises:
        SettingError: The variable is set to something that is not a *kind*.
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
    """Return the seconds that one call to an NPU may take: `NPURT_DEADLINE`.

    Raises:
        SettingError: It is no number, below 1, or more than a day.
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
    """Return a variable that others read, for a diagnosis; "" when it is not set."""
    return os.environ.get(name, "")


def preloading(library: str) -> dict[str, str]:
    """Return the environment of a program that is to load *library* before any other."""
    others = os.environ.get("LD_PRELOAD", "")
    return {**os.environ, "LD_PRELOAD": f"{library} {others}".strip()}


def prepend_dsp_path(folder: str) -> None:
    """Make the DSP look for its code in *folder* first, then where the user wants it to.

    FastRPC reads DSP_LIBRARY_PATH, and ADSP_LIBRARY_PATH where that is not set; items are separated
    by ";" only.  Both are set, before a session is opened.
    """
    users = os.environ.get("DSP_LIBRARY_PATH") or os.environ.get("ADSP_LIBRARY_PATH") or ""
    folders = [folder, *(item for item in users.split(";") if item and item != folder)]
    for name in ("DSP_LIBRARY_PATH", "ADSP_LIBRARY_PATH"):
        os.environ[name] = ";".join(folders)


def cache_folder() -> Path:
    """Return the folder for files that npurt can make again: `NPURT_CACHE`, or XDG's.

    Raises:
        FileNotFoundError: There is no such place: the user has no home.
    """
    chosen = read(CACHE, str)
    return Path(chosen) if chosen else _folder_of_user("XDG_CACHE_HOME", ".cache")


def state_folder() -> Path:
    """Return where npurt keeps what is of the user, such as the history of chats: XDG's place.

    Raises:
        FileNotFoundError: There is no such place: the user has no home.
    """
    return _folder_of_user("XDG_STATE_HOME", ".local/state")


def _folder_of_user(variable: str, usual: str) -> Path:
    base = os.environ.get(variable)
    try:
        return (Path(base) if base else Path.home() / usual) / "npurt"
    except RuntimeError as error:
        raise FileNotFoundError(str(error)) from error


def terminal_has_styles() -> bool:
    """Return whether the user's terminal shows styles of text, and the user wants them."""
    return os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("NO_COLOR")


DEBUG = Setting("NPURT_DEBUG", 0, "1: errors of the command line with their traceback")
DEVICE = Setting("NPURT_DEVICE", "auto", "device to use when none is given")
THREADS = Setting("NPURT_THREADS", 0, "CPU threads; 0 chooses from affinity, cgroup and core types")
CPU_ISA = Setting("NPURT_CPU_ISA", "", "CPU kernel set to use instead of the best, e.g. avx2")
LIBRARIES = Setting(
    "NPURT_LIBRARIES", "", "folder of another build of npurt's C libraries, laid out as npurt/ is"
)
VERIFY = Setting("NPURT_VERIFY", "sample", "result verification: off, sample or always")
MODELS = Setting(
    "NPURT_MODELS", "", "folder for model files, instead of `models` in the user's cache"
)
FASTRPC_LIBRARY = Setting("NPURT_FASTRPC_LIBRARY", "", "path of the FastRPC library to use")
LONGEST_SECONDS = 24 * 60 * 60  # of a deadline; more would overflow clocks
DEADLINE = Setting("NPURT_DEADLINE", 60, "seconds that one call to an NPU may take")
HEXAGON_TRANSPORT = Setting(
    "NPURT_HEXAGON_TRANSPORT", "invoke", "how calls get to the Hexagon: invoke or dspqueue"
)
HEXAGON_WORKER = Setting(
    "NPURT_HEXAGON_WORKER",
    0,
    "1: let another process call the Hexagon, one that can be killed when it hangs",
)
ROCKET_THREADS = Setting(
    "NPURT_ROCKET_THREADS", 0, "1: a thread for each core of an RK3588 with the driver rocket"
)
# Settings of the simulators, which read them themselves.
SIM_FASTRPC = "NPURT_SIM_FASTRPC"
SIM_RKNPU = "NPURT_SIM_RKNPU"
CACHE = Setting("NPURT_CACHE", "", "folder for models, and for what npurt measured of this machine")

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
