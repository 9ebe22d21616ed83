"""C libraries of npurt: declared by their own header, opened on first use."""

from pathlib import Path
from typing import Any

from npurt import declarations
from npurt.errors import DeviceNotFound
from npurt.settings import LIBRARIES, read

PACKAGE = Path(__file__).parent

REINSTALL = (
    "reinstall npurt, which has libraries for Linux on x86_64 and aarch64 (glibc 2.28 or newer); "
    "in a checkout run `pip install -e .`, which compiles them; elsewhere use the device numpy"
)


def declare(header: Path) -> Any:
    """Return the declarations in *header*, which the C code includes too, as cffi has them.

    Raises:
        DeviceNotFound: It cannot be read, or there is no cffi.
    """
    try:
        return declarations.read(header)
    except ImportError as error:
        raise DeviceNotFound(f"{error}: npurt's C is called by cffi", remedy=REINSTALL) from error
    except OSError as error:
        raise DeviceNotFound(f"cannot read {header}: {error.strerror}", remedy=REINSTALL) from error


def path_of(name: str) -> Path:
    """Return the path of the C library *name*, such as "cpu/libnpurt_cpu.so".

    It is below the package, or below the folder that `NPURT_LIBRARIES` names.
    """
    return Path(read(LIBRARIES, str) or PACKAGE) / name


def load(parser: Any, path: Path, what: str) -> Any:
    """Open the library at *path*.

    Args:
        parser: From `declare`.
        path: The file.
        what: What is in it, for the error: "the CPU kernels".

    Raises:
        DeviceNotFound: It is missing, or cannot be loaded.
    """
    remedy = REINSTALL
    if read(LIBRARIES, str):
        remedy = f"unset {LIBRARIES.name}, or name a folder with npurt's C libraries"
    if not path.exists():
        raise DeviceNotFound(f"cannot load {what}: there is no {path}", remedy=remedy)
    # Functions of it are called until the process ends, such as those that free memory: Python
    # may drop the library before their last call.
    flags = parser.RTLD_NOW | parser.RTLD_NODELETE
    try:
        return parser.dlopen(str(path), flags)
    except OSError as error:
        raise DeviceNotFound(f"cannot load {what}: {error}", remedy=remedy) from error
