"""Compiler of FastRPC interfaces: IDL to a Python marshaller and to C for the DSP.

    interface = load(Path("idl/npurt.idl"))
    call = interface.method("echo").pack(5)     # call.scalars, call.inputs, call.outputs
    ...                                         # remote_handle64_invoke with those
    (answer,) = call.unpack()

`parser` has the grammar, `types` the bytes of each type, `method` calls, `header` and `skel` the C.
The lowest room: it may import npurt.errors, npurt.files and npurt.once alone, so that the build can
use it before npurt is installed.  `interface` has npurt's own interface.
"""

from pathlib import Path

from npurt.errors import NpurtError
from npurt.hexagon.idl.method import Call, Interface, Method
from npurt.hexagon.idl.parser import parse
from npurt.hexagon.idl.types import DmaHandle

__all__ = ["Call", "DmaHandle", "Interface", "Method", "load", "parse"]


def load(path: Path) -> Interface:
    """Return the interface of an IDL file.

    Raises:
        NpurtError: The file cannot be read, or `parse` refuses it: then the message begins with
            file, line and column.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NpurtError(
            f"cannot read {path}: {error}", remedy="check the path; UTF-8 is needed"
        ) from error
    return parse(text, str(path))
