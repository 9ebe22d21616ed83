"""Compile, open and call a user's own skel, from C sources and an interface.

`build` compiles a skel; `OwnSkel` opens it and calls its methods.  examples/own_skel is a complete
example.
"""

import contextlib
import tempfile
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from npurt.base.files import replacing
from npurt.errors import NpurtError
from npurt.hexagon.fastrpc import codes
from npurt.hexagon.fastrpc.control import session_pool
from npurt.hexagon.fastrpc.lib import Library
from npurt.hexagon.idl import Interface
from npurt.hexagon.idl.__main__ import write
from npurt.hexagon.session import skel
from npurt.hexagon.session.owned import Owned


def build(sources: Sequence[Path], interface: Interface, out: Path, *, arch: str = "v68") -> Path:
    """Compile *sources* and the dispatch of *interface* into the skel *out*; return *out*.

    The compiler is the one of npurt's own skels (`tools/build/hexagon.py`).  It searches headers in
    the folders of the sources, in dsp/ and in idl/.  It also finds NAME.h, the generated header of
    the interface NAME.

    Args:
        sources: C files that define the functions of NAME.h.
        interface: The methods.
        out: The file to write, completely or not at all.  `OwnSkel` expects the name
            libNAME_skel.so.
        arch: The lowest Hexagon version that can load the skel.

    Raises:
        NpurtError: The compiler is missing or refuses the sources; npurt has no build code, as in a
            wheel; or a file cannot be read or written.
    """
    try:
        from tools.build import hexagon, zig
    except ImportError as error:
        raise NpurtError(
            "this npurt cannot compile skels: its wheel has no build code",
            remedy="use a checkout of npurt's repository: pip install -e '.[dev]'",
        ) from error
    _require(sources)
    with tempfile.TemporaryDirectory() as folder:
        _, dispatch = write(interface, Path(folder))
        beside = dict.fromkeys(source.resolve().parent for source in sources)
        includes = (Path(folder), *beside, hexagon.DSP, hexagon.IDL)
        made = Path(folder, f"lib{interface.name}_skel.so")
        try:
            hexagon.compile_skel([dispatch, *sources], arch, made, includes=includes)
        except (zig.BuildError, OSError) as error:
            what, _, remedy = str(error).partition("\n  remedy: ")
            raise NpurtError(what, remedy=remedy or "change the source") from error
        _copy(made, out)
    return out


def _copy(made: Path, out: Path) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as file:
            file.write(made.read_bytes())
    except OSError as error:
        raise NpurtError(
            f"cannot write {out}: {error.strerror}", remedy="choose another --out"
        ) from error


def _require(sources: Sequence[Path]) -> None:
    for source in sources:
        if not source.is_file():
            raise NpurtError(f"{source} is not a file", remedy="name C files")


class OwnSkel:
    """A user's skel, open in a session of the DSP.

    It closes itself when the last reference to it is dropped, or at exit.

    Args:
        library: The FastRPC library.
        file: The skel; its name is libNAME_skel.so.
        interface: The methods of the skel.
        domain: The DSP, a key of `abi.CDSP`.
        deadline: Seconds that a call may take.

    Raises:
        NpurtError: The skel cannot be opened; the message gives the reason.
    """

    def __init__(
        self,
        library: Library,
        file: Path,
        interface: Interface,
        *,
        domain: str = "cdsp",
        deadline: float = 60.0,
    ) -> None:
        expected = f"lib{interface.name}_skel.so"
        if file.name != expected:
            raise NpurtError(f"{file.name} is not {expected}", remedy=f"rename it to {expected}")
        self._deadline = deadline
        slot = session_pool(library).acquire(domain)
        with contextlib.ExitStack() as undo:
            undo.callback(session_pool(library).release, slot)
            self._owned = Owned(library, slot, interface)
            undo.pop_all()
            self._finalizer = weakref.finalize(self, self._owned.release)
            undo.callback(self.close)
            skel.publish(file)
            self._owned.run(partial(self._owned.open, interface.uri), deadline, codes.OPEN)
            undo.pop_all()

    def call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        """Call a method; return its results.

        Args:
            name: The name of the method.
            arguments: The arguments in order, as `idl.Method.pack` takes them: values of inputs,
                and lengths or buffers for sequences that are results.

        Raises:
            NpurtError: The method failed, or the DSP is gone.  After a call that missed its
                deadline, all further calls raise: close the skel and open it again.
        """
        return self._owned.run(partial(self._owned.call, name, *arguments), self._deadline, name)

    def close(self) -> None:
        """Close the skel.  A second call does nothing."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
