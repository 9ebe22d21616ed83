"""The binary interface of the C library: its header parsed with cffi, and the library itself.

`npurt_cpu.h` is in the package, and is the only declaration of the interface: Python and C read the
same structs.  `load` rejects a library whose npurt_op has another size, because it was built from
another header.
"""

from pathlib import Path
from typing import Any

from npurt.base import library
from npurt.base.once import once
from npurt.errors import DeviceNotFound, SettingError
from npurt.graph.sizes import SIZES, Sizes
from npurt.settings import CPU_ISA, LIBRARIES, read

HEADER = Path(__file__).with_name("npurt_cpu.h")
LIBRARY = "cpu/libnpurt_cpu.so"


@once
def ffi() -> Any:
    """Return the cffi interface of the header, which is parsed on first use."""
    return library.declare(HEADER)


def limits() -> Sizes:
    """Return the limits of the kernels; tests/test_one_home.py compares them with the header."""
    return SIZES


def load(path: Path) -> Any:
    """Open the kernel library at *path*.

    Raises:
        DeviceNotFound: The file is missing or cannot be loaded, is not npurt's library, or was
            built from another header.
    """
    lib = library.load(ffi(), path, "the CPU kernels")
    try:
        have, want = lib.npurt_sizeof_op(), ffi().sizeof("npurt_op")
    except (AttributeError, getattr(ffi(), "error", AttributeError)) as error:
        raise DeviceNotFound(
            f"{path} is not npurt's library of CPU kernels: {error}",
            remedy=f"unset {LIBRARIES.name}, or set it to a folder with npurt's C libraries",
        ) from error
    if have != want:
        raise DeviceNotFound(
            f"{path} was built from another npurt_cpu.h: its ops have {have} bytes, not {want}",
            remedy="reinstall npurt; in a checkout run `pip install -e .` again",
        )
    return lib


@once
def lib() -> Any:
    """Return the kernel library, which is loaded on first use."""
    return load(library.path_of(LIBRARY))


def isas() -> dict[str, int]:
    """Return the instruction sets that this CPU supports: name -> index in the library.

    The fastest one is first.
    """
    count = lib().npurt_isa_count()
    names = [bytes(ffi().string(lib().npurt_isa_name(i))).decode() for i in range(count)]
    return {name: i for i, name in enumerate(names) if lib().npurt_isa_works(i)}


def isa(name: str = "") -> int:
    """Return the index of instruction set *name*, else of `NPURT_CPU_ISA`, else of the fastest.

    Raises:
        SettingError: This CPU or this build does not support it.
    """
    available = isas()
    name = name or read(CPU_ISA, str) or next(iter(available))
    if name not in available:
        raise SettingError(
            f"instruction set {name!r} is not supported on this machine",
            remedy=f"choose one of {', '.join(available)}",
        )
    return available[name]
