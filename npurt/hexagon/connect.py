"""Opening a transport by what was asked for."""

import os

from npurt.errors import SettingError
from npurt.hexagon.dspqueue import Queue
from npurt.hexagon.lib import find
from npurt.hexagon.session import Session
from npurt.hexagon.transport import Transport

WAYS = ("invoke", "dspqueue")


def connect(
    library: str | os.PathLike[str] | None,
    domain: str = "cdsp",
    session: int | None = None,
    *,
    transport: str = "invoke",
    deadline: float,
    worker: bool = False,
) -> Transport:
    """Open a session on the DSP.

    Args:
        library: File of the FastRPC library; None finds the system's.
        domain: Which DSP, a key of `abi.CDSP`.
        session: Its number, 0 to 3; None takes one that is free.
        transport: "invoke" or "dspqueue".
        deadline: Seconds that a call may take.
        worker: Let a process of its own make the calls.

    Raises:
        NpurtError: It cannot be opened; see `Session.open`.
    """
    if transport not in WAYS:
        raise SettingError(
            f"there is no transport {transport!r}", remedy=f"use one of {', '.join(WAYS)}"
        )
    if worker:
        from npurt.hexagon.worker import Worker  # which in its process comes back here

        path = find(library).path
        return Worker(path, domain, session, transport=transport, deadline=deadline)
    opened = Session.open(find(library), domain, session, deadline=deadline)
    return Queue(opened) if transport == "dspqueue" else opened
