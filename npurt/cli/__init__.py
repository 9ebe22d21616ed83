"""The command `npurt`: each verb calls the library and prints the result.

Exit status: 0 success, 1 failure, 2 invalid usage, 130 after SIGINT, 143 after SIGTERM, 129 after
SIGHUP.
"""

import argparse
import errno
import importlib
import io
import os
import sys
import warnings
from collections.abc import Sequence

from npurt.base import late
from npurt.cli.arguments.parser import Parser, like
from npurt.cli.signals import Unwinding
from npurt.errors import NpurtError, SettingError, UnknownDevice
from npurt.settings import DEBUG, SETTINGS, read, unknown
from npurt.version import __version__

STDIN, STDOUT, STDERR = range(3)  # file descriptors
# Errors of invalid usage (exit status 2), unless the system refused a file or an address.
USAGE = (SettingError, UnknownDevice)
VERBS = (
    "run",
    "chat",
    "embed",
    "serve",
    "bench",
    "perplexity",
    "plan",
    "devices",
    "doctor",
    "probe",
    "models",
    "convert",
    "quantize",
    "regcmd",
    "sim",
    "skel",
    "list",
    "ls",
    "ps",
    "show",
    "pull",
    "rm",
    "completion",
)
# Verbs whose module has another name.
MODULES = dict.fromkeys(("list", "ls", "ps", "show", "pull", "rm"), "stored")
VERSION = f"npurt {__version__}"


def parser(only: Sequence[str] = VERBS) -> argparse.ArgumentParser:
    """Return the parser of the verbs in *only*, by default of all verbs."""
    top = Parser(
        prog="npurt", description="Quantised products and small language models on edge NPUs."
    )
    top.add_argument("--version", action="version", version=VERSION)
    verbs = top.add_subparsers(required=True, metavar="VERB")
    for module in dict.fromkeys(MODULES.get(verb, verb) for verb in only):
        importlib.import_module(f"npurt.cli.verbs.{module}").add(verbs)
    return top


def expanded(given: list[str]) -> list[str]:
    """Return the command line *given* with the options of a file, as in ``npurt serve @FILE``.

    The file has options as in a shell, in one or several lines; # begins a comment.  Options after
    @FILE take precedence.

    Raises:
        NpurtError: The file cannot be read.
        SettingError: A quote in the file is not closed.
    """
    if len(given) < 2 or not given[1].startswith("@"):
        return given
    import shlex

    from npurt.cli.arguments.options import text_of

    name = given[1].removeprefix("@")
    try:
        return [given[0], *shlex.split(text_of(name), comments=True), *given[2:]]
    except ValueError as error:
        raise SettingError(
            f"{name}: {error}", remedy="close each quote, or write \\ before it"
        ) from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    signals = Unwinding()
    try:
        with signals:
            return _run(argv, signals)
    except BaseException as error:
        if not signals.ends(error):
            raise
        given = sys.argv if argv is None else argv
        if isinstance(error, KeyboardInterrupt) and "--json" in given:  # before any output
            print('{"interrupted": true}')
        return signals.status


def _run(argv: Sequence[str] | None, signals: Unwinding) -> int:
    """Run one verb, print its error if it fails, and return the exit status."""
    _open_streams()
    try:
        given = expanded(list(sys.argv[1:] if argv is None else argv))
    except NpurtError as error:
        print(f"npurt: {error}", file=sys.stderr)
        return 2
    if given == ["--version"]:
        print(VERSION)  # do not import the verbs
        return 0
    named = given[:1] if given[:1] != ["completion"] else []  # completion needs all verbs
    args = parser([verb for verb in VERBS if verb in named] or VERBS).parse_args(given)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Bytes that are not text become U+FFFD; characters that cannot be written become "?".
            stream.reconfigure(errors="replace")
    _name_unknown_variables()
    debug = 0
    try:
        debug = read(DEBUG, int)
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = _print_warning
            status = int(args.run(args))
        print(end="", flush=True)  # flush here, so that a write error is reported below
        return status
    except (NpurtError, ImportError, SyntaxError, EOFError) as error:
        found = error if isinstance(error, NpurtError) else late.package_error(error)
        if debug or found is None or signals.ends(error):
            raise
        print(f"npurt: {found}", file=sys.stderr)
        return 2 if isinstance(error, USAGE) and not isinstance(error.__cause__, OSError) else 1
    except MemoryError as error:
        _print_error(f"no memory left: {error}", "close other programs, or use a smaller input")
        return 1
    except OSError as error:
        if error.filename is not None or not _is_of_output(error):
            if debug:
                raise
            what = "the system refuses" if error.filename is None else error.filename
            remedy = late.remedy_of_system(error) or "check paths and permissions"
            _print_error(
                f"{what}: {error.strerror or error}",
                f"{remedy}; NPURT_DEBUG=1 shows the traceback",
            )
            return 1
        # Discard the output that is still buffered, so that no second error occurs at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # a reader that closed the pipe is no error
            _print_error(
                f"cannot write the output: {error.strerror}",
                "free space on the disk, or write to another place",
            )
        return 1


def _print_error(what: str, remedy: str) -> None:
    print(f"npurt: {what}\n  remedy: {remedy}", file=sys.stderr)


def _name_unknown_variables() -> None:
    """Print a warning for each variable NPURT_... that npurt does not read."""
    known = [setting.name for setting in SETTINGS]
    for name in unknown():
        hint = like(name, known, 0.85)
        print(f"npurt: the variable {name} has no effect{hint}", file=sys.stderr)


def _print_warning(message: Warning | str, *where: object, **rest: object) -> None:
    """Print a warning's message without its source location."""
    print(f"npurt: {message}", file=sys.stderr)


def _is_of_output(error: OSError) -> bool:
    """Return whether *error* comes from writing standard output.

    In this case, flushing usually fails as well.
    """
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return error.errno in (errno.EPIPE, errno.ENOSPC, errno.EFBIG)  # the buffer may be empty now


def _open_streams() -> None:
    """Open /dev/null for each closed standard stream.

    Otherwise the next file that is opened would get the stream's file descriptor.
    """
    spare = -1
    while spare <= STDERR:
        spare = os.open(os.devnull, os.O_RDWR)
    os.close(spare)
    sys.stdin = sys.stdin or os.fdopen(STDIN, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(STDOUT, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(STDERR, "w", closefd=False)
