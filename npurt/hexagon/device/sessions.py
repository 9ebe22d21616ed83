"""Open the sessions of a DSP: the first, further ones when it is full, new ones after a loss."""

import time
from collections.abc import Iterator
from dataclasses import replace

from npurt.device.restart import patiently
from npurt.errors import DeviceFull, DeviceLost, DeviceNotFound, DriverError
from npurt.hexagon.connect import probe
from npurt.hexagon.connect.connection import Connection
from npurt.hexagon.connect.worker import connect
from npurt.hexagon.device.session_memory import SessionMemory
from npurt.hexagon.session.transport import Info, TransportName

RESTART_SECONDS = 10  # maximum time for a restart of the DSP
FULL_SECONDS = 0.5  # time until the memory of an ended process is free


class Sessions:
    """The open sessions of one DSP, each with its memory.

    Attributes:
        opened: The sessions in the order of their opening.

    Args:
        connection: The settings with which each session is opened.
    """

    def __init__(self, connection: Connection) -> None:
        self.opened: list[SessionMemory] = []
        self._skel: tuple[int, int, int] | None = None  # identifies the first session's skel
        self._connection = connection
        self._packets = 0  # of sessions that are closed
        self._calls = 0  # of sessions that are closed

    def describe(self) -> str:
        """Return a description of the DSP and its transport for the user."""
        transport = self.opened[0].transport
        info, connection = transport.info, self._connection
        hexagon = "simulated Hexagon" if transport.simulated else "Hexagon"
        vtcm = f"{info.vtcm_bytes >> 10} KiB VTCM" if info.vtcm_bytes else "no VTCM"
        reached = connection.transport + (", worker process" if connection.worker else "")
        return f"{hexagon} v{info.arch}, {info.threads} threads, {vtcm}, {reached}"

    # --- Opening ----------------------------------------------------------------------------------

    def open_first(self) -> None:
        """Open the first session unless a restart has opened it; retry once if memory is short."""
        if not self.opened:
            try:
                self._open()
            except DeviceFull:
                time.sleep(FULL_SECONDS)
                self._open()

    def open_again(self) -> None:
        """Open a new session after a loss, as soon as the DSP has restarted."""
        self._demote()
        patiently(self._open, DeviceLost, RESTART_SECONDS)

    def _demote(self) -> None:
        """If the lost transport was dspqueue, use invoke in this and in later processes."""
        if self._connection.transport == TransportName.DSPQUEUE:
            probe.forget_queue(self._connection)
            self._connection = replace(self._connection, transport=TransportName.INVOKE)

    def _open(self) -> None:
        connection = self._connection  # the lambda must not refer to self: a reference cycle
        transport = connect(connection)
        try:
            self._require_same_skel(transport.info)
            self.opened.append(SessionMemory(transport, lambda: probe.capacity(connection)))
        except BaseException:
            transport.close()
            raise

    def _require_same_skel(self, info: Info) -> None:
        """Check that a session runs the code of the first session.

        Raises:
            DriverError: npurt's code for the DSP was replaced.
        """
        skel = info.protocol, info.arch, info.build
        if (self._skel or skel) != skel:
            raise DriverError(
                "npurt's code for the DSP was replaced since the device was opened",
                remedy="start the program again",
                call="info",
                code=info.build,
            )
        self._skel = skel

    def with_space(self) -> Iterator[SessionMemory]:
        """Yield the open sessions, then a new session if the DSP allows one."""
        yield from self.settled()
        if self._connection.session is None:
            try:
                self._open()
            except (DeviceNotFound, DriverError):
                return
            yield self.opened[-1]

    # --- Use --------------------------------------------------------------------------------------

    def settled(self) -> list[SessionMemory]:
        """Wait until all calls that Ctrl-C interrupted have ended; return the sessions."""
        for memory in self.opened:
            memory.transport.settle()
        return self.opened

    def packets(self) -> int:
        """Return the packets that the DSP has executed; hardware does not count them: 0."""
        return self._packets + sum(memory.packets() for memory in self.opened)

    def calls(self) -> int:
        """Return the number of calls that ran products or delta nets."""
        return self._calls + sum(memory.calls for memory in self.opened)

    def close(self) -> None:
        """Close all sessions and free their memory.  After Ctrl-C, call `close` again."""
        while self.opened:
            memory = self.opened[0]
            packets = memory.packets()
            memory.transport.close()
            del self.opened[0]
            self._packets += packets
            self._calls += memory.calls
