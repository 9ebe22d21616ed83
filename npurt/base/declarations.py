"""Load the declarations of a C header for cffi, parsed now or when npurt was built.

Parsing takes 30 ms.  So `tools/build` writes cffi's declarations into a file beside the header,
with a digest of the header.  `read` uses the file only if the digest matches.
"""

import contextlib
import hashlib
import io
import re
import runpy
from pathlib import Path
from typing import Any

DIGEST = "HEADER"  # the digest's variable in the generated file


def read(header: Path) -> Any:
    """Return the declarations in *header*, for ``dlopen`` and types."""
    source = header.read_text()
    found = beside(header)
    made = runpy.run_path(str(found)) if found.exists() else {}
    return made["ffi"] if made.get(DIGEST) == _digest(source) else _parse(source)


def write(header: Path, out: Path) -> None:
    """Write the declarations of *header* to *out*, as Python code that `read` executes."""
    source = header.read_text()
    parsed = _parse(source)
    parsed.set_source(header.stem, None)
    with contextlib.redirect_stdout(io.StringIO()):  # cffi prints the names of its files
        parsed.emit_python_code(str(out))
    with out.open("a") as file:
        file.write(f"{DIGEST} = {_digest(source)!r}\n")


def beside(header: Path) -> Path:
    """Return the path of the declarations of *header*."""
    return header.with_suffix(".cffi")


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()


def _parse(source: str) -> Any:
    from cffi import FFI

    parser = FFI()
    parser.cdef(re.sub(r"^\s*#.*$", "", source, flags=re.M).replace("NPURT_API ", ""))
    return parser
