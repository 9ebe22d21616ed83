"""Decide whether a DSP would load a shared object, by the known rules of its loader.

Sources: the skels that ship with qualcomm/fastrpc (test/v68, test/v75), which load; the causes that
were found for 0x80000406 and 0x80000442 in ggml-org/llama.cpp #18932, #22352, #28288; tinygrad's
ops_dsp.py.  npurt has not tested these rules on a DSP.
"""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from npurt.errors import LayoutError
from npurt.hexagon.doctor.elf import Access, Kind, SharedObject, read

_ENTRY = re.compile(r"\w+_skel_(handle_)?invoke")  # the entry point of any interface

PAGE = 4096
VERSIONS = range(60, 82)  # versions of DSPs
RELOCATIONS = {"32", "GLOB_DAT", "JMP_SLOT", "RELATIVE"}  # kinds in skels that load
COMPANIONS = {"libc.so", "libgcc.so"}  # libraries that the DSP provides for skels of the SDK
BUILD = "run `python npurt/build.py` in a checkout, or reinstall npurt"

# Symbols that the process on the DSP is known to define: those that published skels import, and
# those named in qualcomm/fastrpc and ggml-hexagon.  A * matches any end of a name.
KNOWN = (
    "HAP_cache_*", "HAP_debug", "HAP_debug_runtime", "HAP_debug_v2", "HAP_get_*",
    "HAP_mem_*", "HAP_mmap", "HAP_mmap2", "HAP_mmap_get", "HAP_mmap_put", "HAP_munmap",
    "HAP_munmap2", "HAP_perf_*", "HAP_power_*", "HAP_query_*", "HAP_timer_sleep",
    "compute_resource_*", "dspqueue_*", "adsp_mmap_fd_getinfo",
    "qurt_anysignal_*", "qurt_barrier_*", "qurt_cond_*", "qurt_futex_*", "qurt_get_core_pcycles",
    "qurt_hvx_*", "qurt_mem_cache_clean", "qurt_mutex_*", "qurt_rmutex_*", "qurt_sem_*",
    "qurt_signal_*", "qurt_sysclock_get_hw_ticks", "qurt_sysenv_*", "qurt_thread_*",
    "qurt_timer_sleep",
    "__wrap_calloc", "__wrap_free", "__wrap_malloc", "__wrap_memalign", "__wrap_realloc",
    "calloc", "free", "malloc", "realloc",
    "memcmp", "memcpy", "memmove", "memset", "atoi", "snprintf", "strchr", "strcmp", "strcpy",
    "strlcpy", "strlen", "strncmp", "strncpy", "strstr", "strtok_r", "strtoul", "vsnprintf",
    "_Assert", "__cxa_finalize", "__deregister_frame_info_bases", "__register_frame_info_bases",
    "__stack_chk_fail", "__stack_chk_guard",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a file.  *level* is "error" if a DSP would not load the file, else "warning"."""

    level: str
    what: str
    remedy: str


def verify(data: bytes, *, arch: int | None = None, entry: str | None = None) -> list[Finding]:
    """Return the problems of a skel, errors first; an empty list means that it should load.

    Args:
        data: The bytes of the skel.
        arch: The version of the DSP, 68 for v68; None: any version in `VERSIONS`.
        entry: The entry point that the URI names; None: the entry point of any interface.
    """
    try:
        skel = read(data)
    except LayoutError as error:
        return [Finding("error", error.what, error.remedy)]
    found = [
        *_version(skel, arch),
        *_entry(skel, entry),
        *_imports(skel),
        *_libraries(skel),
        *_segments(skel),
        *_relocations(skel),
    ]
    return sorted(found, key=lambda finding: finding.level != "error")


def _error(what: str, remedy: str = BUILD) -> Finding:
    return Finding("error", what, remedy)


def _warning(what: str, remedy: str = BUILD) -> Finding:
    return Finding("warning", what, remedy)


def _version(skel: SharedObject, arch: int | None) -> list[Finding]:
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


def _entry(skel: SharedObject, entry: str | None) -> list[Finding]:
    if not skel.has_hash:
        return [
            _error(
                "the skel has no System V hash table, so no symbol is found (0x80000442)",
                "link with --hash-style=sysv",
            )
        ]
    if entry in skel.exports or (entry is None and any(map(_ENTRY.fullmatch, skel.exports))):
        return []
    exports = ", ".join(skel.exports[:5]) or "nothing"
    return [
        _error(
            f"the skel exports {exports}, not {entry or 'NAME_skel_handle_invoke'} (0x80000442)",
            "use the same entry point in the URI and in the skel",
        )
    ]


def _imports(skel: SharedObject) -> list[Finding]:
    unknown = {
        name: weak
        for name, weak in skel.imports.items()
        if not any(fnmatchcase(name, known) for known in KNOWN)
    }
    return [
        _warning(
            f"the skel uses {name}, which an unsigned domain may lack",
            f"test the skel without {name}",
        )
        if weak
        else _error(
            f"the skel imports {name}, which is not known in unsigned domains (0x80000406)",
            f"define {name} in the skel, or avoid it",
        )
        for name, weak in sorted(unknown.items())
    ]


def _libraries(skel: SharedObject) -> list[Finding]:
    found = [
        _error(
            f"the skel needs the library {name}, which may be missing on the DSP (0x80000406)",
            f"put {name} into the folder of the skel, or link it statically",
        )
        for name in skel.needed
        if name not in COMPANIONS
    ]
    companions = [name for name in skel.needed if name in COMPANIONS]
    if companions:
        found.append(
            _warning(
                f"the skel needs {' and '.join(companions)} from the DSP's own files",
                "if the skel does not load, search these libraries in the folder of the shell",
            )
        )
    return found


def _segments(skel: SharedObject) -> list[Finding]:
    loads = [s for s in skel.segments if s.kind == Kind.LOAD]
    found = [
        _error(f"the segment at {s.address:#x} can be written to and executed")
        for s in loads
        if Access.W in s.access and Access.X in s.access
    ]
    shape = [str(s.access) for s in loads]
    if [s.access for s in loads] != [Access.R | Access.X, Access.R | Access.W]:
        found.append(
            _warning(f"the skel has the segments {shape}; skels that load have one RX, then one RW")
        )
    other = [s.align for s in loads if s.align != PAGE]
    if other:
        found.append(_warning(f"a segment is aligned to {other[0]} bytes, not to {PAGE}"))
    extra = {s.kind for s in skel.segments} - {Kind.NULL, Kind.LOAD, Kind.DYNAMIC, 4}  # 4: PT_NOTE
    if extra:
        kinds = ", ".join(f"{kind:#x}" for kind in sorted(extra))
        found.append(_warning(f"the skel has program headers of unusual kinds: {kinds}"))
    return found


def _relocations(skel: SharedObject) -> list[Finding]:
    found = []
    if skel.text_relocations:
        found.append(_error("the loader would have to write to the code", "compile with -fPIC"))
    for kind in sorted(set(skel.relocations) - RELOCATIONS):
        found.append(_warning(f"the skel has relocations of the unusual kind {kind}"))
    return found
