"""The interface of npurt's code on the DSP: idl/npurt.idl, which the build compiles to Python."""

import contextlib
import hashlib
import runpy
from pathlib import Path
from typing import Any

from npurt.base.once import once
from npurt.hexagon.idl import Interface, load, shared

SOURCE = "idl/npurt.idl"
COMPILED = Path(__file__).with_name("npurt.interface")  # Python code; not in git
DIGEST = "IDL"  # the digest's variable in the compiled file


@once
def interface() -> Interface:
    """Return the interface ``npurt``; parse the IDL if it was changed since the last build."""
    source = shared.path_of(SOURCE)
    if COMPILED.exists() and source.exists():
        made: dict[str, Any] = {}
        with contextlib.suppress(ImportError, NameError, TypeError):  # made by another version
            made = runpy.run_path(str(COMPILED))
        if made.get(DIGEST) == digest(source.read_bytes()):
            compiled: Interface = made["INTERFACE"]
            return compiled
    return load(source)


def digest(idl: bytes) -> str:
    """Return the digest of an IDL file, by which `interface` recognises its compiled form."""
    return hashlib.sha256(idl).hexdigest()
