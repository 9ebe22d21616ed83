"""The binary interface of the C library: its header parsed with cffi, and the library itself.

`npurt_cpu.h` is in the package, and is the only declaration of the interface: Python and C read the
same structs.  `load` rejects a library whose npurt_op has another size, because it was built from
another header.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npurt.base import library
from npurt.base.once import once
from npurt.errors import DeviceNotFound, SettingError
from npurt.settings import CPU_ISA, LIBRARIES, read

HEADER = Path(__file__).with_name("npurt_cpu.h")
LIBRARY = "cpu/libnpurt_cpu.so"


@dataclass(frozen=True, slots=True)
class Limits:
    """The maximum sizes that the kernels support: `npurt_limit` in the header."""

    rows: int  # maximum rows of one run
    columns: int  # maximum columns of any buffer or weight
    head: int  # maximum width of a head of attention
    delta: int  # maximum width of a head of a delta net
    head_step: int  # widths of heads are multiples of this
    kernel_size: int  # maximum kernel size of a convolution
    experts: int  # maximum number of experts
    exact: int  # maximum columns of an exact integer product
    page: int  # positions in a page of keys and values


@once
def ffi() -> Any:
    """Return the cffi interface of the header, which is parsed on first use."""
    return library.declare(HEADER)


@once
def limits() -> Limits:
    """Return the limits of the kernels.

    They are parsed without cffi, because the numpy device needs them without the C library.
    """
    (body,) = re.findall(r"enum npurt_limit \{(.*?)\}", HEADER.read_text(), flags=re.S)
    found = re.findall(r"NPURT_(?:MOST_)?(\w+) = (\d+)(?: << (\d+))?", body)
    return Limits(**{name.lower(): int(value) << int(shift or 0) for name, value, shift in found})


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
