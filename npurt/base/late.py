"""Import modules when they are first used, and say what the user can do if that fails.

A statement `import` at the top of a module raises Python's errors.  An import inside a function
fails while a program runs: a package is gone or damaged, or no file can be opened.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from types import TracebackType

from npurt.errors import NpurtError, PackageError

# Errors of the system that the packages did not cause, and the remedies.
SYSTEM = {
    errno.EMFILE: "close files, or raise the limit: ulimit -n 4096",
    errno.ENFILE: "close other programs",
    errno.ENOMEM: "close other programs, or raise the limit: ulimit -v",
}
# What an import raises if a file cannot be read, or is damaged.
FAILURES = (ImportError, OSError, SyntaxError, EOFError)


def remedy_of_system(error: BaseException) -> str | None:
    """Return the remedy if *error* is one in `SYSTEM`; the C loader gives its text only."""
    for code, remedy in SYSTEM.items():
        if getattr(error, "errno", None) == code or os.strerror(code) in str(error):
            return remedy
    return None


@contextlib.contextmanager
def imports() -> Iterator[None]:
    """Convert a failure of the imports in the context; it must contain nothing else.

    Raises:
        PackageError: A package is missing or damaged, or the system opens no file.
        Exception: The failure is a bug of npurt.
    """
    try:
        yield
    except FAILURES as error:
        found = package_error(error)
        if found is None:
            raise
        raise found from error


def package_error(error: BaseException) -> PackageError | None:
    """Return npurt's error for a failed import; None for one that is a bug, or npurt's already."""
    if isinstance(error, NpurtError) or not isinstance(error, FAILURES):
        return None
    from npurt.base import extras  # slow to import, and not needed without an error

    name = _name(error)
    said = str(error) or type(error).__name__
    if remedy := remedy_of_system(error):
        return PackageError(f"cannot load {name or 'a package'}: {said}", remedy=remedy)
    if isinstance(error, SyntaxError | EOFError) and not getattr(error, "filename", None):
        return PackageError(
            f"a file of npurt or of one of its packages is damaged: {said}",
            remedy="make a new environment, and install npurt into it",
        )
    if not name or name == "npurt":
        return None
    if name in sys.stdlib_module_names:
        return PackageError(
            f"this Python cannot load its own module {name}: {said}",
            remedy="use another Python, such as the system's python3, for the environment of npurt",
        )
    if isinstance(error, ModuleNotFoundError):
        remedy = f"pip install {extras.requirement(name)!r}"
        return PackageError(f"the package {name} is not installed", remedy=remedy)
    remedy = f"pip install --force-reinstall {extras.requirement(name)!r}"
    return PackageError(f"the package {name} cannot be loaded: {said}", remedy=remedy)


def _name(error: BaseException) -> str:
    """Return the name of the package whose import raised *error*; "" if it is unknown."""
    if isinstance(error, ImportError) and error.name:
        return error.name.partition(".")[0]
    file = getattr(error, "filename", None) or ""
    for folder in filter(None, sys.path):
        inner = os.path.relpath(file, folder) if os.path.isabs(file) else ".."
        if not inner.startswith(".."):
            return inner.partition(os.sep)[0].removesuffix(".py")
    return _importing(error.__traceback__)


def _importing(trace: TracebackType | None) -> str:
    """Return the package whose code, other than that of importlib, ran last in *trace*."""
    last = ""
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        last = last if name == "importlib" else name
        trace = trace.tb_next
    return last
