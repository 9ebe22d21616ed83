"""Compile FastRPC interfaces from IDL to a Python marshaller and to C for the DSP.

    interface = load(Path("idl/npurt.idl"))
    call = interface.method("echo").pack(5)     # call.scalars, call.inputs, call.outputs
    ...                                         # pass them to remote_handle64_invoke
    (answer,) = call.unpack()

`parser` has the grammar, `types` the bytes of each type, `method` the calls, `header` and `skel`
the generated C, `python` the generated Python, and `interface` npurt's own interface, which the
build compiles.  This package may import only npurt.errors,
npurt.base.files and npurt.base.once, because the build uses it before npurt is installed.
"""

from pathlib import Path

from npurt.base.files import unreadable
from npurt.errors import NpurtError
from npurt.hexagon.idl.method import Call, Interface, Method
from npurt.hexagon.idl.types import DmaHandle

__all__ = ["Call", "DmaHandle", "Interface", "Method", "load", "parse"]


def parse(text: str, name: str = "<idl>") -> Interface:
    """Return the interface that *text* declares; see `npurt.hexagon.idl.parser.parse`."""
    from npurt.hexagon.idl import parser  # a device that opens needs no parser

    return parser.parse(text, name)


def load(path: Path) -> Interface:
    """Return the interface of an IDL file.

    Raises:
        NpurtError: The file cannot be read, or `parse` refuses it.  In the second case the message
            begins with file, line and column.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise NpurtError(
            f"cannot read {path}: {error.strerror}", remedy=unreadable(path, error)
        ) from error
    except UnicodeDecodeError as error:
        raise NpurtError(f"cannot read {path}: {error}", remedy="save it as UTF-8 text") from error
    return parse(text, str(path))
