"""Compare npurt's code with the files that are installed for the DSP, before the DSP loads it."""

from typing import Any, NamedTuple

from npurt.doctor.check import CheckResult, fail, ok, skip, warn
from npurt.doctor.system import System
from npurt.errors import LayoutError
from npurt.hexagon.doctor import elf, evidence, packages
from npurt.hexagon.doctor.loadable import missing
from npurt.hexagon.session import installed

EXPORTS = "exports"  # the reader of `System.read` that lists the names which a file offers


def _exports(data: Any) -> dict[str, Any]:
    try:
        arch, names = elf.exports(data)
    except LayoutError as error:
        return {"error": error.what}
    return {"arch": arch, "names": list(names)}


READERS = {EXPORTS: _exports, **installed.READERS}


class Shell(NamedTuple):
    """The shell in which npurt's code runs: its file, its version, and the names that it exports.

    Version and names are None if the file cannot be read.
    """

    path: str
    arch: int | None
    names: frozenset[str] | None


def shell(system: System) -> Shell | None:
    """Return the installed shell; None if there is none."""
    path = installed.shell_file(system, evidence.domain(system))
    if path is None:
        return None
    found = system.read(EXPORTS, path) or {}
    arch, names = found.get("arch"), evidence.texts(found, "names")
    if not isinstance(arch, int) or not names:
        return Shell(path, None, None)
    return Shell(path, arch, frozenset(names))


def version(system: System) -> int | None:
    """Return the DSP's version: as the DSP reports it, or FastRPC's configuration, or the shell."""
    arch = evidence.step(system, "capabilities").get("arch")
    if isinstance(arch, int):
        return arch
    text = installed.configured(system).get("CDSP_ARCH", "").removeprefix("v")
    if text.isdecimal():
        return int(text)
    found = shell(system)
    return found.arch if found else None


def imports(system: System) -> CheckResult:
    """Check that the installed shell exports the names that npurt's code imports (0x80000406)."""
    skel = evidence.step(system, "skel")
    strong, weak = evidence.texts(skel, "imports"), evidence.texts(skel, "optional_imports")
    compiled = skel.get("arch")
    if not strong or not isinstance(compiled, int):
        return skip("the evidence does not list the names that npurt's code imports")
    name = skel.get("file")
    found = shell(system)
    if found and found.arch and found.names:
        arch, names, where = found.arch, found.names, f"{found.path} (v{found.arch})"
    else:
        arch, names = version(system) or compiled, None
        where = f"the known shell of a v{arch}"
    dsp = version(system)
    if dsp is not None and arch > dsp:
        return fail(
            f"{where} is of another board: this DSP is a v{dsp}, which does not load newer files",
            packages.install(system),
        )
    if compiled > arch:
        return fail(
            f"{name} is for v{compiled} and newer: {where} would not load it (0x80000406)",
            packages.install(system),
        )
    absent = missing(dict.fromkeys(strong, False) | dict.fromkeys(weak, True), arch, names)
    required = [symbol for symbol, optional in absent.items() if not optional]
    if required:
        return fail(
            f"{where} has no {', '.join(required)}, which {name} needs: it would not load "
            "(0x80000406)",
            f"update npurt and the DSP's files: {packages.install(system)}",
        )
    if absent:
        return warn(
            f"{where} has no {', '.join(absent)}: npurt's code can do without, but some loaders "
            "refuse a missing optional name (0x80000406)"
        )
    return ok(f"{where} has all {len(strong) + len(weak)} names")


def checksum(system: System) -> CheckResult:
    """Check that npurt's code has a checksum section if libraries of the DSP have one."""
    found = shell(system)
    beside = installed.libraries(system, found.path) if found else []
    if not beside:
        return skip("there is no library beside the shell to compare with")
    carry = installed.with_checksum(system, beside)
    if not carry:
        return ok("no library beside the shell has a checksum section")
    having = f"{len(carry)} of {len(beside)} libraries beside the shell have a checksum section"
    skel = evidence.step(system, "skel")
    if skel.get("checksum") is True:
        return ok(f"{having}, and so has npurt's code")
    return fail(
        f"{having}, but npurt's code has none: the DSP may refuse it with 'section header for CRC "
        "segment not found' (0x80000406)",
        "update npurt, which adds the section on such boards; or: npurt skel checksum FILE -o "
        f"FILE, where FILE is npurt/hexagon/skel/{skel.get('file')} of the installed package",
    )
