"""Explain FastRPC's error codes: name, side that returned the code, likely cause, remedy.

A code is an unsigned 32-bit number.  A code from 0x80000400 on comes from the DSP and is this
offset plus an AEEStdErr value; a few values come from either side without the offset.
Sources: AEEStdErr.h and remote_defines.h of qualcomm/fastrpc; causes from the issues named in
`ADVICE`: qualcomm/fastrpc (#N), ggml-org/llama.cpp (L#N), radxa/kernel (R#N).
"""

import errno as errnos
import os
from dataclasses import dataclass

from npurt.errors import (
    DeviceFull,
    DeviceLost,
    DeviceNotFound,
    DeviceTimeout,
    DriverError,
    NpurtError,
    SettingError,
)

DSP = range(0x8000_0400, 0x8000_0800)  # AEE codes with the DSP's offset

_RUNS = (  # first code, names in order, without AEE_E
    (
        0x01,
        "FAILED NOMEMORY CLASSNOTSUPPORT VERSIONNOTSUPPORT ALREADYLOADED UNABLETOLOAD "
        "UNABLETOUNLOAD ALARMPENDING INVALIDTIME BADCLASS BADMETRIC EXPIRED BADSTATE BADPARM "
        "SCHEMENOTSUPPORTED BADITEM INVALIDFORMAT INCOMPLETEITEM NOPERSISTMEMORY UNSUPPORTED "
        "PRIVLEVEL RESOURCENOTFOUND REENTERED BADTASK ALLOCATED ALREADY ADSAUTHBAD "
        "NEEDSERVICEPROG MEMPTR HEAP IDLE ITEMBUSY BADSID NOTYPE NEEDMORE ADSCAPS BADSHUTDOWN "
        "BUFFERTOOSMALL NOSUCH ACKPENDING NOTOWNER INVALIDITEM NOTALLOWED INVHANDLE OUTOFHANDLES "
        "INTERRUPTED NOMORE CPUEXCEPTION READONLY INVALIDMSG INVALIDTHREAD INVALIDPROCESS "
        "INVALIDFILENAME INVALIDDIGESTSIZE INVALIDSEGS INVALIDSIGNATURE INVALIDDOMAIN INVALIDFD "
        "INVALIDDEVICE INVALIDMODE INVALIDPROCNAME NOSUCHMOD NOSUCHINSTANCE NOSUCHTHREAD "
        "NOSUCHPROCESS NOSUCHSYMBOL NOSUCHDEVICE NOSUCHPROP NOSUCHFILE NOSUCHHANDLE NOSUCHSTREAM "
        "NOSUCHMAP NOSUCHREGISTER NOSUCHCLIENT BADDOMAIN BADOFFSET BADSIZE BADPERMS BADFD BADPID "
        "BADTID BADELF BADASID BADCONTEXT BADMEMALIGN IOCTL FOPEN FGETS FFLUSH FCLOSE EOF FREAD "
        "FWRITE FGETPOS FSETPOS FTELL FSEEK FLEN GETENV SETENV MMAP IONMAP IONALLOC NORPCMEMORY "
        "NOROOTOFTRUST NOTLOCKED NOTINITIALIZED UNSUPPORTEDAPI UNPACK POLL EVENTREAD MAXBUFS "
        "INVARGS CONNREFUSED",
    ),
    (
        0x81,
        "UNSIGNEDMOD INVALIDHASH BADVA NOSUCHJOB BADMAPREFCNT BADPAGECNT MAPALREADYPRESENT "
        "NOFREESECTION U2GCLIENT_OPEN NOSESSION",
    ),
    (0x180, "DEFAULT_PROCESS NULLCONTEXT INVALIDJOB BUSY"),
    (
        0x190,
        "APPS_BUSY_RETRY HLOS_CAP_REACHED DPOOL_CAP NO_MORE_FREE_SECTIONS STUBSKELVERMISMATCH",
    ),
    (0x200, "RPC FILE"),
    (0x204, "WOULDBLOCK"),
)
NAMES = {
    0: "AEE_SUCCESS",
    0xFFFF_FFFF: "AEE_EUNKNOWN",
    **{first + i: f"AEE_E{name}" for first, names in _RUNS for i, name in enumerate(names.split())},
}
_FAMILIES = (
    (range(0x100, 0x106), "SMD or GLINK transport"),
    (range(0x120, 0x127), "DAL driver"),
    (range(0x140, 0x164), "QURT kernel"),
    (range(0x170, 0x179), "MMPM power manager"),
)
_EITHER = (0x27, 0x2E, 0x68, 0x204)  # have no offset on either side
_RESET = (errnos.ECONNRESET, errnos.EPIPE)
_ALLOCATIONS = ("rpcmem_alloc", "rpcmem_alloc2")

CONNREFUSED = 0x72
OPEN = "remote_handle64_open"
INVOKE = "remote_handle64_invoke"
DOCTOR = "run `npurt doctor`"
REPORT = "report this with what `npurt doctor --bundle FILE` writes"
REOPEN = "npurt reopens the device twice by itself; after that, " + DOCTOR


@dataclass(frozen=True, slots=True)
class Advice:
    """The usual meaning of a code that one of *calls* returns; () stands for all calls."""

    code: int
    calls: tuple[str, ...]
    cause: str
    remedy: str


ADVICE = (  # first match wins
    Advice(
        0x72,
        (),
        "the FastRPC node is missing, not permitted, or all its sessions are in use; or a signed "
        "process was requested on the non-secure node (#371)",
        "check that /dev/fastrpc-cdsp exists and `id` shows its group, close other users of the "
        f"DSP, or {DOCTOR}",
    ),
    Advice(
        0xFFFF_FFFF,
        (OPEN,),
        "the kernel could not create the DSP process; if it timed out after 10 s, firmware and "
        "shell do not match or the DSP hangs; an invalid argument means a shell over 2 MiB",
        f"{DOCTOR} and compare the build of firmware and shell",
    ),
    Advice(
        0xFFFF_FFFF,
        (),
        "old firmware or an old library does not support this request (#180, #267)",
        "update the DSP firmware and libcdsprpc of this system",
    ),
    Advice(
        0x0E,
        (OPEN,),
        "the module's URI lacks _dom=, or names a session above 3; or the library is the SDK's "
        "stub instead of the system's library",
        "unset NPURT_FASTRPC_LIBRARY, or point it at the system's libcdsprpc.so.1",
    ),
    Advice(
        0x0E,
        (INVOKE,),
        "a buffer overruns its shared block, or the kernel refused an argument",
        REPORT + ": npurt built a bad message",
    ),
    Advice(
        0x0E,
        ("dspqueue_write",),
        "the packet is larger than the queue, or a buffer is mapped in another session (L#19617)",
        "unset NPURT_HEXAGON_TRANSPORT to use plain invoke",
    ),
    Advice(
        0x8000_0406,
        (),
        "the DSP could not load the skel: the skel was not found, is for a newer DSP, or needs a "
        "library or a signature that is missing (L#18932, L#22352, L#28288)",
        f"{DOCTOR}; it compares the skel with the DSP's version and the search path",
    ),
    Advice(
        0x8000_0442,
        (),
        "the skel was loaded but does not have npurt's entry point: another file of the same name",
        "reinstall npurt, and check DSP_LIBRARY_PATH for an old copy of the skel",
    ),
    Advice(
        0x8000_0411,
        (OPEN,),
        "the DSP does not accept the form of the module's URI",
        "update libcdsprpc of this system",
    ),
    Advice(0x45, (), "a file was not found in the search path", DOCTOR),
    Advice(0x8000_0445, (), "the DSP asked for a file that is not in the search path", DOCTOR),
    Advice(
        0x8000_0414,
        (),
        "the skel does not have this method, or the firmware lacks a service (L#22352)",
        "reinstall npurt so that skel and library have the same version",
    ),
    Advice(
        0x8000_0416,
        (),
        "the DSP has no resources for a process (#401)",
        "install firmware and shell of the same release; the device tree may lack the DSP's heap",
    ),
    Advice(
        0x8000_054F,
        (),
        "the DSP refused to create a process: shell and firmware differ, or resources are short "
        "(#188)",
        "install the shell that came with the firmware",
    ),
    Advice(
        0x8000_0600,
        (),
        "the DSP could not create the process: its shell is missing or from another build than the "
        "firmware, or ADSP_LIBRARY_PATH is joined with ':' (R#567, #231, #325)",
        "match QC_IMAGE_VERSION_STRING of the firmware with the string in fastrpc_shell_unsigned_3",
    ),
    Advice(
        0x8000_0401,
        (INVOKE,),
        "the DSP refused to clean or invalidate its cache, so its data may be old",
        REPORT,
    ),
    Advice(
        0x8000_0402,
        (),
        "the DSP is out of memory for heap or threads",
        "close other users of the DSP, or use fewer sessions",
    ),
    Advice(0x8000_040D, (), "the process on the DSP exited or crashed", REOPEN),
    Advice(0x8000_042C, (), "the handle is not valid, because the DSP process restarted", REOPEN),
    Advice(
        0x8000_041D,
        (),
        "an old DSP received a close for a handle that it had not opened (#180, #269)",
        "nothing: this follows a failed open",
    ),
    Advice(
        0x8000_040E,
        (),
        "the skel refused the arguments of the call",
        "reinstall npurt: skel and library are of different versions",
    ),
    Advice(
        0xFFFF_FFFB,
        (OPEN,),
        "the loader of an old DSP failed (#180, #269)",
        f"{DOCTOR}; it compares the skel with the DSP's version",
    ),
    Advice(
        0x01,
        ("fastrpc_mmap",),
        "the session has no addresses left for the mapping, or the DSP restarted",
        "use a smaller model, or more sessions",
    ),
    Advice(
        0x4E, (), "the kernel does not permit the call", "check the permissions of the FastRPC node"
    ),
    Advice(0x58, (), "the heap of the DSP process cannot grow", "use a smaller model or context"),
    Advice(0x27, (), "the process on the DSP is gone", REOPEN),
    Advice(
        0x2E,
        (),
        "the wait was cancelled because the DSP process ran out of memory or crashed "
        "(L#26123, L#22208)",
        REOPEN,
    ),
    Advice(
        0x68,
        _ALLOCATIONS,
        "there is no memory to share with the DSP",
        "close other programs, or check the permissions of /dev/dma_heap/system",
    ),
    Advice(0x68, (), "the DSP restarted", REOPEN),
    *(
        Advice(code, (), "the memory is not mapped in this session (L#19617)", REPORT)
        for code in (0x48, 0x8000_0448)
    ),
    Advice(0x6B, (), "there is no session yet", "open the device first"),
    *(
        Advice(code, (), "the memory is mapped already, or the queue is open", REPORT)
        for code in (0x1A, 0x87, 0x8000_041A)
    ),
    Advice(
        0x8000_044E,
        (),
        "code on the DSP accessed memory without permission",
        REPORT,
    ),
    Advice(0x8000_0455, (), "a buffer of the call is not aligned", REPORT),
    Advice(
        0x8000_042D,
        (),
        "npurt's code on the DSP cannot map more blocks",
        "use a smaller model, or more sessions",
    ),
    Advice(
        0x8000_0465,
        (),
        "the process on the DSP has no addresses left for the mapping",
        "use a smaller model, or more sessions",
    ),
    Advice(
        0x05,
        ("remote_session_control",),
        "this process already has a signed session on the DSP, and npurt needs an unsigned one",
        "open npurt's device first, or in another process",
    ),
    Advice(
        0x8A,
        (),
        "a process can have four sessions, and all are in use",
        "close another device of this process",
    ),
    Advice(
        0x0C,
        (),
        "the DSP did not answer in time (#377 for dspqueue)",
        "raise NPURT_DEADLINE, or restart the DSP: echo stop, then start, to its remoteproc state",
    ),
    Advice(0x204, (), "the queue is full or empty", "try again"),
    Advice(0x2C, (), "the handle is closed", "nothing: this follows the loss of a device"),
    *(
        Advice(
            code,
            (),
            "skel and library are of different versions",
            "reinstall npurt, and check DSP_LIBRARY_PATH for an old copy of the skel",
        )
        for code in (0x194, 0x8000_0594)
    ),
    Advice(
        0x8000_0481,
        (),
        "a signed process was requested, and the skel has no signature",
        "use an unsigned process, which is npurt's default; " + DOCTOR,
    ),
    Advice(
        0x8000_0482,
        (),
        "the signature of the skel is for another device",
        "use an unsigned process, which is npurt's default; " + DOCTOR,
    ),
    Advice(
        0x02, (), "this machine has no memory left", "close other programs, or use a smaller model"
    ),
    Advice(
        0x14, (), "the library or kernel does not support the request", "update libcdsprpc, kernel"
    ),
    Advice(0x43, (), "the kernel has no such device", DOCTOR),
    Advice(0x200, (), "the kernel refused the request", DOCTOR),
)
_NO_ADVICE = ("no cause is known", DOCTOR + " and report the code")
_KINDS: tuple[tuple[tuple[int, ...], type[DriverError]], ...] = (
    ((0x0C,), DeviceTimeout),
    ((0x27, 0x2E, 0x68, 0x8000_040D, 0x8000_042C), DeviceLost),
    ((0x02, 0x8000_0402), DeviceFull),
)


@dataclass(frozen=True, slots=True)
class Code:
    """A return value and its explanation."""

    raw: int  # unsigned, 32 bits
    name: str  # as in AEEStdErr.h
    side: str  # "CPU", "DSP" or "CPU or DSP"
    cause: str
    remedy: str

    @property
    def signed(self) -> int:
        """The code as the signed number that logs print."""
        return self.raw - (1 << 32) if self.raw >> 31 else self.raw

    def __str__(self) -> str:
        return f"{self.raw:#x} ({self.signed}, {self.name}, said by the {self.side})"


def parse(text: str) -> int:
    """Parse a code in decimal, which may be negative, or hexadecimal; return it unsigned.

    Raises:
        SettingError: *text* is not a 32-bit number.
    """
    try:
        number = int(text, 0)
    except ValueError:
        number = 1 << 32
    if not -(1 << 31) <= number < 1 << 32:
        raise SettingError(
            f"{text!r} is not a FastRPC code",
            remedy="write it as logs do, for example 0x80000406 or -2147482618",
        )
    return number & 0xFFFF_FFFF


def decode(code: int, call: str = "", errno: int = 0) -> Code:
    """Explain the *code* that *call* (a C name, or "" if unknown) returned with *errno*.

    0x68 has two meanings: no memory from a call that allocates, a restarted DSP from other calls.
    """
    raw = code & 0xFFFF_FFFF
    on_dsp = raw in DSP
    value = raw - DSP.start if on_dsp else raw
    name = NAMES.get(value) or next((f for r, f in _FAMILIES if value in r), "not in AEEStdErr.h")
    if raw == 0x68 and (call not in _ALLOCATIONS or errno in _RESET):
        name, call = "AEE_ECONNRESET", ""
    side = "DSP" if on_dsp else "CPU or DSP" if raw in _EITHER else "CPU"
    matches = [a for a in ADVICE if a.code == raw and (not a.calls or call in a.calls)]
    cause, remedy = (matches[0].cause, matches[0].remedy) if matches else _NO_ADVICE
    return Code(raw, name, side, cause, remedy)


def failed(call: str, code: int, errno: int = 0, about: str = "") -> NpurtError:
    """Return the error for a *call* that returned *code*; *about* names the object of the call.

    The message includes *errno* only if the CPU returned the code.  If the DSP returned it, *errno*
    is from another call.
    """
    what = decode(code, call, errno)
    told = errno and what.side != "DSP"
    system = f", errno {errno} ({os.strerror(errno)})" if told else ""
    text = f"{call}{about and ' of ' + about} failed with {what}{system}: {what.cause}"
    if what.raw == CONNREFUSED:
        return DeviceNotFound(text, remedy=what.remedy)
    kind = next((kind for codes, kind in _KINDS if what.raw in codes), DriverError)
    if what.name == NAMES[0x68]:
        kind = DeviceFull
    return kind(text, remedy=what.remedy, call=call, code=what.raw)
