"""C libraries of npurt: declared by their own header, opened on first use."""

import contextlib
import hashlib
import io
import re
import runpy
from pathlib import Path
from typing import Any

from npurt.errors import DeviceNotFound
from npurt.settings import LIBRARIES, read

PACKAGE = Path(__file__).parent
DIGEST = "HEADER"  # of the header, in the code of its declarations

REINSTALL = (
    "reinstall npurt, which has libraries for Linux on x86_64 and aarch64 (glibc 2.28 or newer); "
    "in a checkout run `pip install -e .`, which compiles them; elsewhere use the device numpy"
)


def declare(header: Path) -> Any:
    """Return the declarations in *header*, which the C code includes too, as cffi has them.

    cffi parses the header, which takes 30 ms; or a file beside it says what cffi found, if
    `npurt/build.py` made it of this very header.

    Raises:
        DeviceNotFound: It cannot be read.
    """
    try:
        source = header.read_text()
    except OSError as error:
        raise DeviceNotFound(f"cannot read {header}: {error.strerror}", remedy=REINSTALL) from error
    parsed = runpy.run_path(str(found)) if (found := parsed_beside(header)).exists() else {}
    if parsed.get(DIGEST) == digest(source):
        return parsed["ffi"]
    return parse(source)


def parsed_beside(header: Path) -> Path:
    """Return the path of the Python code that has the declarations of *header*."""
    return header.with_suffix(".cffi")


def digest(source: str) -> str:
    """Return what tells the source of one header from another."""
    return hashlib.sha256(source.encode()).hexdigest()


def parse(source: str) -> Any:
    """Return the declarations of a header."""
    from cffi import FFI

    parser = FFI()
    parser.cdef(re.sub(r"^\s*#.*$", "", source, flags=re.M).replace("NPURT_API ", ""))
    return parser


def write_parsed(header: Path, out: Path) -> None:
    """Write the Python code from which `declare` has the declarations of *header*."""
    source = header.read_text()
    parser = parse(source)
    parser.set_source(header.stem, None)
    with contextlib.redirect_stdout(io.StringIO()):
        parser.emit_python_code(str(out))
    with out.open("a") as file:
        file.write(f"{DIGEST} = {digest(source)!r}\n")


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
    try:
        return parser.dlopen(str(path))
    except OSError as error:
        raise DeviceNotFound(f"cannot load {what}: {error}", remedy=remedy) from error
