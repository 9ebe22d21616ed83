"""Find and open the C libraries of npurt, with the declarations of their headers."""

from pathlib import Path
from typing import Any

from npurt.base import declarations, late
from npurt.errors import DeviceNotFound
from npurt.settings import LIBRARIES, read

PACKAGE = Path(__file__).parents[1]

REINSTALL = (
    "reinstall npurt, which has libraries for Linux on x86_64 and aarch64 (glibc 2.28 or newer); "
    "in a checkout run `pip install -e .`, which compiles them; elsewhere use the device numpy"
)


def declare(header: Path) -> Any:
    """Return cffi's declarations of *header*, a header that the C code includes too.

    Raises:
        DeviceNotFound: The header cannot be read, or cffi is missing.
    """
    try:
        return declarations.read(header)
    except ImportError as error:
        remedy = late.remedy_of_system(error) or REINSTALL
        raise DeviceNotFound(f"{error}: npurt's C needs cffi", remedy=remedy) from error
    except OSError as error:
        remedy = late.remedy_of_system(error) or REINSTALL
        raise DeviceNotFound(f"cannot read {header}: {error.strerror}", remedy=remedy) from error


def path_of(name: str) -> Path:
    """Return the path of the C library *name*, such as "cpu/libnpurt_cpu.so".

    The path is below the folder that `NPURT_LIBRARIES` names, by default the package.
    """
    return Path(read(LIBRARIES, str) or PACKAGE) / name


def load(parser: Any, path: Path, what: str) -> Any:
    """Open the library at *path*.

    Args:
        parser: The declarations that `declare` returned.
        path: The file.
        what: The library's contents, for error messages, such as "the CPU kernels".

    Raises:
        DeviceNotFound: The library is missing, or cannot be loaded.
    """
    remedy = REINSTALL
    if read(LIBRARIES, str):
        remedy = f"unset {LIBRARIES.name}, or name a folder with npurt's C libraries"
    if not path.exists():
        raise DeviceNotFound(f"cannot load {what}: there is no {path}", remedy=remedy)
    # RTLD_NODELETE: functions that free memory are called until the process ends, and Python may
    # drop the library object before the last of these calls.
    flags = parser.RTLD_NOW | parser.RTLD_NODELETE
    try:
        return parser.dlopen(str(path), flags)
    except OSError as error:
        remedy = late.remedy_of_system(error) or remedy
        raise DeviceNotFound(f"cannot load {what}: {error}", remedy=remedy) from error
