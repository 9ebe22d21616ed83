"""The C side of the CPU device: the parsed header, and the library, which opens on first use.

`npurt_cpu.h` travels inside the package and is the only declaration there is: cffi reads it, so
Python and C cannot disagree about a struct.  The library still says the size of its largest one,
and a library built from another header is refused.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npurt import library
from npurt.errors import DeviceNotFound, SettingError
from npurt.once import once
from npurt.settings import CPU_ISA, LIBRARIES, read

HEADER = Path(__file__).with_name("npurt_cpu.h")
LIBRARY = "cpu/libnpurt_cpu.so"


@dataclass(frozen=True, slots=True)
class Limits:
    """What the kernels can do at most: `npurt_limit` in the header."""

    rows: int  # of one run
    columns: int  # of anything
    head: int  # width of a head of attention
    delta: int  # width of a head of a delta net
    head_step: int  # that both are multiples of
    kernel_size: int  # of a convolution
    experts: int
    exact: int  # columns of an exact product of integers
    page: int  # positions of a page of keys and values


@once
def ffi() -> Any:
    """Parse the header once, on first use."""
    return library.declare(HEADER)


@once
def limits() -> Limits:
    """Return the limits of the kernels, which refuse more.

    The header is read without cffi: the device numpy needs the limits, and no compiled code.
    """
    (body,) = re.findall(r"enum npurt_limit \{(.*?)\}", HEADER.read_text(), flags=re.S)
    found = re.findall(r"NPURT_(?:MOST_)?(\w+) = (\d+)(?: << (\d+))?", body)
    return Limits(**{name.lower(): int(value) << int(shift or 0) for name, value, shift in found})


def load(path: Path) -> Any:
    """Open the kernel library at *path*.

    Raises:
        DeviceNotFound: It is missing, cannot be loaded, is another library, or was built from
            another header.
    """
    lib = library.load(ffi(), path, "the CPU kernels")
    try:
        have, want = lib.npurt_sizeof_op(), ffi().sizeof("npurt_op")
    except (AttributeError, getattr(ffi(), "error", AttributeError)) as error:
        raise DeviceNotFound(
            f"{path} is not npurt's library of CPU kernels: {error}",
            remedy=f"unset {LIBRARIES.name}, or name a folder with npurt's C libraries",
        ) from error
    if have != want:
        raise DeviceNotFound(
            f"{path} was built from another npurt_cpu.h: its ops have {have} bytes, not {want}",
            remedy="reinstall npurt; in a checkout run `pip install -e .` again",
        )
    return lib


@once
def lib() -> Any:
    """The kernel library, opened on first use."""
    return load(library.path_of(LIBRARY))


def isas() -> dict[str, int]:
    """Instruction sets this machine can run, best first: name -> index in the library."""
    count = lib().npurt_isa_count()
    names = [bytes(ffi().string(lib().npurt_isa_name(i))).decode() for i in range(count)]
    return {name: i for i, name in enumerate(names) if lib().npurt_isa_works(i)}


def isa(name: str = "") -> int:
    """Index of instruction set *name*, by default of `NPURT_CPU_ISA` or the best.

    Raises:
        SettingError: This machine or this build has no such instruction set.
    """
    available = isas()
    name = name or read(CPU_ISA, str) or next(iter(available))
    if name not in available:
        raise SettingError(
            f"instruction set {name!r} does not run here",
            remedy=f"choose one of {', '.join(available)}",
        )
    return available[name]
