"""The settings of a connection to a DSP, and how it is opened."""

import contextlib
import threading
from dataclasses import dataclass

from npurt.errors import SettingError
from npurt.hexagon.fastrpc.lib import Library, find
from npurt.hexagon.session.dspqueue import Queue
from npurt.hexagon.session.session import Session
from npurt.hexagon.session.transport import Transport, TransportName

TRANSPORTS = (TransportName.INVOKE, TransportName.DSPQUEUE)

_SIMULATED = threading.Lock()  # held from setting the simulator until a session has read it


@dataclass(slots=True)
class Connection:
    """Settings for opening a session; plain values, which can be sent to a worker as JSON.

    Raises:
        SettingError: The transport is unknown.
    """

    library: str  # file of the FastRPC library; "": the system's library
    domain: str = "cdsp"  # a key of `abi.CDSP`
    session: int | None = None  # 0 to 3; None: any free session
    transport: str = TransportName.INVOKE
    worker: bool = False  # True: a worker process makes the calls
    deadline: float = 60.0  # seconds that a call may take
    simulate: str = ""  # settings of the simulator, such as "arch=v73"

    def __post_init__(self) -> None:
        if self.transport not in TRANSPORTS:
            raise SettingError(
                f"there is no transport {self.transport!r}",
                remedy=f"use one of {', '.join(TRANSPORTS)}",
            )

    def load(self) -> Library:
        """Return the FastRPC library, with the simulator set up; errors as `lib.find`."""
        library = find(self.library or None)
        if self.simulate and library.simulated:
            library.check("npurt_sim_control", self.simulate.encode(), about=self.simulate)
        return library

    def open_session(self) -> Transport:
        """Open a session in this process, even if `worker` is True.

        Raises:
            NpurtError: The session cannot be opened; see `Session.open`.
        """
        with _SIMULATED if self.simulate else contextlib.nullcontext():
            library = self.load()
            session = Session.open(library, self.domain, self.session, deadline=self.deadline)
        return Queue(session) if self.transport == TransportName.DSPQUEUE else session
