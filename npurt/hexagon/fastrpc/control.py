"""Make requests to a DSP before a session is open, with fallbacks for old libraries.

Source: qualcomm/fastrpc inc/remote.h; for the fallbacks ggml-org/llama.cpp#16911 (requests 13 to 15
unknown: 0x14) and geerlingguy/sbc-reviews#85 (0xffffffff).
"""

import functools
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from npurt.base.once import once
from npurt.errors import DeviceNotFound
from npurt.hexagon.fastrpc import abi, codes
from npurt.hexagon.fastrpc.abi import Attribute, HandleRequest, SessionRequest
from npurt.hexagon.fastrpc.lib import Library

SESSIONS = 4  # maximum number of sessions of a process on one DSP


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The properties that a DSP reports; None for properties that it does not report."""

    arch: int | None = None  # 68 for v68
    hvx_contexts: int | None = None
    vtcm_bytes: int | None = None
    unsigned: bool | None = None  # may be False although unsigned processes work (fastrpc#401)
    hmx: bool | None = None


@dataclass(frozen=True, slots=True)
class SessionSlot:
    """The number of a session on a DSP; a process can use each number once at a time."""

    domain: str  # "cdsp"
    session: int
    effective: int  # the domain id that stands for domain and session in calls


def capabilities(library: Library, domain: str = "cdsp") -> Capabilities:
    """Return the properties that the DSP reports.  Needs no session and never raises."""
    ask = functools.partial(_ask, library, abi.CDSP[domain])
    version = ask(Attribute.ARCH_VER)
    digits = (version or 0) & 0xFF
    page, count = ask(Attribute.VTCM_PAGE), ask(Attribute.VTCM_COUNT)
    unsigned = ask(Attribute.UNSIGNED_PD_SUPPORT)
    hmx = ask(Attribute.HMX_SUPPORT_DEPTH), ask(Attribute.HMX_SUPPORT_SPATIAL)
    return Capabilities(
        arch=(digits >> 4) * 10 + (digits & 15) or None,
        hvx_contexts=ask(Attribute.HVX_SUPPORT_128B),
        vtcm_bytes=None if page is None or count is None else page * count,
        unsigned=None if unsigned is None else bool(unsigned),
        hmx=None if None in hmx else any(hmx),
    )


def _ask(library: Library, domain: int, attribute: Attribute) -> int | None:
    """Return an attribute from GET_DSP_INFO, or None if the request fails."""
    if "remote_handle_control" not in library.features:
        return None
    data = abi.ffi().new("remote_dsp_capability *", [domain, attribute, 0])
    size = abi.ffi().sizeof(data[0])
    code, _ = library.call("remote_handle_control", HandleRequest.GET_DSP_INFO, data, size)
    return None if code else int(data.capability)


class SessionPool:
    """The session numbers of a library, and those that are in use.

    When a reserved session is closed, the library may assign its number to other code of this
    process.  So npurt drops the number and reserves another.  A number that was reserved and never
    opened cannot be returned to the library, so npurt uses it again.  Source: qualcomm/fastrpc
    src/fastrpc_apps_user.c, domain_init() and domain_deinit().
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._known = {name: [SessionSlot(name, 0, number)] for name, number in abi.CDSP.items()}
        self._in_use: set[SessionSlot] = set()
        # released slots, and whether the session was open and has ended
        self._returned: deque[tuple[SessionSlot, bool]] = deque()
        self._lock = threading.Lock()

    def acquire(self, domain: str = "cdsp", session: int | None = None) -> SessionSlot:
        """Return a free session: number *session*, or any free session for None.

        Raises:
            DeviceNotFound: The session is in use, the library has no further session, or there is
                no such DSP.
        """
        with self._lock:
            return self._acquire(domain, session)

    def in_use(self) -> set[SessionSlot]:
        """Return the sessions in use."""
        with self._lock:
            self._collect()
            return set(self._in_use)

    def _collect(self) -> None:
        while self._returned:
            slot, ended = self._returned.popleft()
            self._in_use.discard(slot)
            if ended and slot.session and slot in self._known[slot.domain]:
                self._known[slot.domain].remove(slot)

    def _acquire(self, domain: str, session: int | None) -> SessionSlot:
        if domain not in self._known:
            raise DeviceNotFound(
                f"there is no DSP {domain!r}", remedy=f"name one of {', '.join(self._known)}"
            )
        self._collect()
        known = self._known[domain]
        for _ in range(SESSIONS):
            fits = [p for p in known if session in (None, p.session)]
            free = [p for p in fits if p not in self._in_use]
            if free:
                self._in_use.add(free[0])
                return free[0]
            if fits and session is not None:
                raise DeviceNotFound(
                    f"session {session} of the {domain} is in use in this process",
                    remedy="close the device that uses it, or choose another session",
                )
            known.append(self._reserve(domain))
        raise DeviceNotFound(
            f"there is no session {session} of the {domain}",
            remedy=f"choose a session from 0 to {SESSIONS - 1}",
        )

    def release(self, slot: SessionSlot, *, ended: bool = False) -> None:
        """Make *slot* free for other uses.

        Args:
            slot: A slot from `acquire`.
            ended: True if its session was open and is now closed.
        """
        self._returned.append((slot, ended))  # without the lock: a finalizer may run at any moment

    def _reserve(self, domain: str) -> SessionSlot:
        ffi = abi.ffi()
        data = ffi.new("remote_rpc_reserve_new_session *")
        names = ffi.new("char[]", domain.encode()), ffi.new("char[]", b"npurt")
        data.domain_name, data.domain_name_len = names[0], len(domain)
        data.session_name, data.session_name_len = names[1], len("npurt")
        code, errno = self._control(SessionRequest.RESERVE_NEW_SESSION, data)
        if code:
            why = codes.decode(code, "remote_session_control", errno)
            raise DeviceNotFound(
                f"the {domain} has no further session for this process: {why}",
                remedy="use session 0, and close other Hexagon devices of this process",
            )
        return SessionSlot(domain, data.session_id, data.effective_domain_id)

    def _control(self, request: SessionRequest, data: Any) -> tuple[int, int]:
        size = abi.ffi().sizeof(data[0])
        return self._library.call("remote_session_control", request, data, size)

    def allow_unsigned(self, slot: SessionSlot) -> None:
        """Request an unsigned process for *slot*, before its session is opened.

        Raises:
            DriverError: The process on the DSP exists already and is signed.
        """
        data = abi.ffi().new("remote_rpc_control_unsigned_module *", [slot.effective, 1])
        code, errno = self._control(SessionRequest.UNSIGNED_MODULE, data)
        if code:
            raise codes.failed("remote_session_control", code, errno, "an unsigned process")

    def uri(self, slot: SessionSlot, module: str) -> str:
        """Return the URI of *module*, a file and its entry point, in the session *slot*."""
        ffi = abi.ffi()
        data = ffi.new("remote_rpc_get_uri *")
        capacity = len(module) + 64
        texts = [ffi.new("char[]", text.encode()) for text in (slot.domain, module)]
        uri = ffi.new("char[]", capacity + 1)
        data.domain_name, data.domain_name_len = texts[0], len(slot.domain)
        data.session_id = slot.session
        data.module_uri, data.module_uri_len = texts[1], len(module)
        data.uri, data.uri_len = uri, capacity
        code, _ = self._control(SessionRequest.GET_URI, data)
        if code:  # an old library, which has session 0 only
            return f"{module}&_dom={slot.domain}"
        return bytes(ffi.string(uri)).decode()


@once
def session_pool(library: Library) -> SessionPool:
    """Return the pool of *library*; the process has one pool per library."""
    return SessionPool(library)
