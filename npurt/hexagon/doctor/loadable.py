"""Decide whether a DSP would load a shared object, by the known rules of its loader.

Sources: the skels that ship with qualcomm/fastrpc (test/v68, test/v75), which load; the form of the
263 libraries for a CDSP in Debian's hexagon-dsp-binaries 0~20261019-1, by their headers; the causes
that were found for 0x80000406 and 0x80000442 in ggml-org/llama.cpp #18932, #22352, #28288 and
apache/tvm #11237; tinygrad's ops_dsp.py.  npurt has not tested these rules on a DSP.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from npurt.errors import LayoutError
from npurt.hexagon.doctor.elf import Access, SegmentType, SharedObject, read
from npurt.hexagon.doctor.shell_names import exported
from npurt.hexagon.doctor.undeclared import UNDECLARED
from npurt.hexagon.session import checksum

_ENTRY = re.compile(r"\w+_skel_(handle_)?invoke")  # the entry point of any interface

PAGE = 4096
ABI = 3  # DT_HEXAGON_VER in all 263 libraries
VERSIONS = range(60, 86)  # versions of DSPs
RELOCATIONS = {"32", "GLOB_DAT", "JMP_SLOT", "RELATIVE", "DTPMOD_32", "DTPREL_32"}  # usual kinds
SEGMENTS = set(SegmentType)  # usual kinds of program headers
LOADS = (2, 4)  # usual numbers of loaded segments
RIGHTS = {Access.R, Access.R | Access.X, Access.R | Access.W}  # usual rights of loaded segments
BUILD = "run `python -m tools.build` in a checkout, or reinstall npurt"
SHOWN = 5  # names that a finding shows


@dataclass(frozen=True, slots=True)
class LoadProblem:
    """A problem of a file.  *level* is "error" if a DSP would not load the file, else "warning"."""

    level: str
    what: str
    remedy: str


def verify(
    data: bytes,
    *,
    arch: int | None = None,
    entry: str | None = None,
    name: str = "",
    names: Collection[str] | None = None,
) -> list[LoadProblem]:
    """Return the problems of a file, errors first; an empty list means that it should load.

    Args:
        data: The bytes of the file.
        arch: The version of the DSP, 68 for v68; None: any version in `VERSIONS`.
        entry: The entry point that the URI names; None: the entry point of any interface, if the
            file is a skel by its name.
        name: The name of the file, which tells a skel from a library that skels need.
        names: The names that the DSP's shell exports; None: those that all known shells of version
            *arch* export, or of the version for which the file was compiled.
    """
    try:
        skel = read(data)
    except LayoutError as error:
        return [LoadProblem("error", error.what, error.remedy)]
    return _sorted([*_form(data, skel, arch, entry, name), *_imports(skel, arch, names)])


def verify_form(
    data: bytes, *, arch: int | None = None, entry: str | None = None
) -> list[LoadProblem]:
    """Return the problems of a file as `verify`, except those of its imports."""
    try:
        skel = read(data)
    except LayoutError as error:
        return [LoadProblem("error", error.what, error.remedy)]
    return _sorted(_form(data, skel, arch, entry, ""))


def _sorted(found: list[LoadProblem]) -> list[LoadProblem]:
    return sorted(found, key=lambda finding: finding.level != "error")


def _form(
    data: bytes, skel: SharedObject, arch: int | None, entry: str | None, name: str
) -> list[LoadProblem]:
    return [
        *_version(skel, arch),
        *_entry(skel, entry, name),
        *_libraries(skel),
        *_segments(skel),
        *_relocations(skel),
        *_abi(skel),
        *_checksum(data),
    ]


def _error(what: str, remedy: str = BUILD) -> LoadProblem:
    return LoadProblem("error", what, remedy)


def _warning(what: str, remedy: str = BUILD) -> LoadProblem:
    return LoadProblem("warning", what, remedy)


def _version(skel: SharedObject, arch: int | None) -> list[LoadProblem]:
    if arch is not None and skel.arch > arch:
        return [
            _error(
                f"the skel is for v{skel.arch} and newer, this DSP is a v{arch} (0x80000406)",
                f"use the skel for v{arch}",
            )
        ]
    if skel.arch not in VERSIONS:
        return [_warning(f"Hexagon v{skel.arch} is unknown", "check the file's header")]
    return []


def _entry(skel: SharedObject, entry: str | None, name: str) -> list[LoadProblem]:
    if not skel.has_hash:
        return [
            _error(
                "the skel has no System V hash table, so no symbol is found (0x80000442)",
                "link with --hash-style=sysv",
            )
        ]
    if entry in skel.exports or (entry is None and any(map(_ENTRY.fullmatch, skel.exports))):
        return []
    exports = _few(skel.exports) or "nothing"
    what = f"exports {exports}, not {entry or 'NAME_skel_handle_invoke'} (0x80000442)"
    if entry or "_skel" in name or "_skel" in (skel.soname or ""):
        remedy = "use the same entry point in the URI and in the skel"
        return [_error(f"the skel {what}", remedy)]
    return [
        _warning(
            f"as a skel, the file would not open: it {what}; a library that a skel needs has no "
            "entry point",
            "if it is a skel, name its entry point with --entry",
        )
    ]


def _few(names: Collection[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(list(names)[:SHOWN]) + (f" and {more} more" if more > 0 else "")


# --- imports -------------------------------------------------------------------------------------


def missing(
    imports: dict[str, bool], arch: int, names: Collection[str] | None = None
) -> dict[str, bool]:
    """Return the imports that the shell does not export, sorted: name -> True if weak.

    Args:
        imports: The imports of a file: name -> True if weak.
        arch: The version of the DSP.
        names: The names that the shell exports; None: those that all known shells of *arch* export.
    """
    known = exported(arch) if names is None else frozenset(names)
    return {name: imports[name] for name in sorted(imports) if name not in known}


def _imports(
    skel: SharedObject, arch: int | None, names: Collection[str] | None
) -> list[LoadProblem]:
    version = arch or skel.arch
    absent = missing(skel.imports, version, names)
    from_libraries = [name for name in absent if _may_define(skel.needed, name)]
    shell = f"no known shell of a v{version} exports" if names is None else "the shell lacks"
    found = []
    if from_libraries:
        found.append(
            _warning(
                f"{' or '.join(skel.needed)} must define {_few(from_libraries)}, which {shell}",
                "if the file does not load, check that these libraries define the names",
            )
        )
    for name in sorted(set(absent) - set(from_libraries)):
        found.append(_absent(name, shell, weak=absent[name], listed=names is None))
    return found


def _may_define(libraries: tuple[str, ...], name: str) -> bool:
    """Return whether one of *libraries* may define *name*; names of C++ begin with _Z."""
    return any(library.startswith("libc++") or not name.startswith("_Z") for library in libraries)


def _absent(name: str, shell: str, *, weak: bool, listed: bool) -> LoadProblem:
    if listed and name in UNDECLARED:
        return _warning(
            f"the skel imports {name}, which shells export but no public header declares",
            "compare the file with the board's shell: npurt skel verify FILE --shell SHELL",
        )
    if weak:
        return _warning(
            f"the skel can use {name}, which {shell}: some loaders refuse a missing optional name",
            f"test the skel without {name}",
        )
    return _error(
        f"the skel imports {name}, which {shell} (0x80000406)",
        f"define {name} in the skel, or avoid it",
    )


# --- form ----------------------------------------------------------------------------------------


def _libraries(skel: SharedObject) -> list[LoadProblem]:
    if not skel.needed:
        return []
    return [
        _warning(
            f"the skel needs {' and '.join(skel.needed)} from the DSP's own files",
            "if the skel does not load, search these libraries in the folders of the skel and of "
            "the shell",
        )
    ]


def _segments(skel: SharedObject) -> list[LoadProblem]:
    loads = [s for s in skel.segments if s.kind == SegmentType.LOAD]
    found = [
        _error(f"the segment at {s.address:#x} can be written to and executed")
        for s in loads
        if Access.W in s.access and Access.X in s.access
    ]
    if len(loads) not in LOADS or not {s.access for s in loads} <= RIGHTS:
        shape = [str(s.access) for s in loads]
        found.append(
            _warning(f"the skel has the segments {shape}; skels that load have one RX, then one RW")
        )
    other = [s.align for s in loads if s.align != PAGE]
    if other:
        found.append(_warning(f"a segment is aligned to {other[0]} bytes, not to {PAGE}"))
    extra = {s.kind for s in skel.segments} - SEGMENTS
    if extra:
        kinds = ", ".join(f"{kind:#x}" for kind in sorted(extra))
        found.append(_warning(f"the skel has program headers of unusual kinds: {kinds}"))
    return found


def _relocations(skel: SharedObject) -> list[LoadProblem]:
    found = []
    if skel.text_relocations:
        found.append(_error("the loader would have to write to the code", "compile with -fPIC"))
    for kind in sorted(set(skel.relocations) - RELOCATIONS):
        found.append(_warning(f"the skel has relocations of the unusual kind {kind}"))
    return found


def _abi(skel: SharedObject) -> list[LoadProblem]:
    if skel.abi == ABI:
        return []
    have = "no DT_HEXAGON_VER" if skel.abi is None else f"DT_HEXAGON_VER {skel.abi}"
    return [
        _warning(f"the skel has {have}; files of the DSP have {ABI}, and a loader may check it")
    ]


def _checksum(data: bytes) -> list[LoadProblem]:
    try:
        found = checksum.find(data)
    except LayoutError as error:
        return [_error(error.what, error.remedy)]
    if found is None or found.stated == found.computed:
        return []
    return [
        _error(
            f"its checksum section says {found.stated:#010x}, but its segments have "
            f"{found.computed:#010x}: a DSP that checks it refuses the file (0x80000406)",
            "copy or build the file again; after a change on purpose: npurt skel checksum FILE "
            "-o FILE",
        )
    ]
