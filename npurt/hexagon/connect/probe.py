"""Probes in a process that can be killed: whether dspqueue works, and how much can be mapped."""

import contextlib
import re
from dataclasses import replace
from pathlib import Path

from npurt.errors import DeviceFull, NpurtError
from npurt.hexagon.connect import measurements
from npurt.hexagon.connect.connection import Connection
from npurt.hexagon.connect.worker import Worker
from npurt.hexagon.session import messages
from npurt.hexagon.session.transport import TransportName

QUEUE_SECONDS = 1  # in which a message must be answered
STEP = 256 << 20  # bytes, of the search for the most that can be mapped
MEASURE_SECONDS = 20  # for one step
MOST = 1 << 32  # bytes that 32-bit addresses reach


def queue_works(connection: Connection) -> bool:
    """Return whether dspqueue answers an empty batch; tried once for each firmware."""
    library = connection.load()
    identity = measurements.identity(library, connection.domain)
    known = measurements.recall(identity, "dspqueue")
    if not isinstance(known, bool):
        known = library.has_dspqueue and _try_queue(connection)
        measurements.remember(identity, "dspqueue", known)
    return known


def _try_queue(connection: Connection) -> bool:
    request, reply = messages.Request(0), messages.reply()
    connection = replace(
        connection, transport=TransportName.DSPQUEUE, session=None, deadline=QUEUE_SECONDS
    )
    try:
        with contextlib.closing(Worker(connection)) as worker:
            worker.prepare(request.data, reply)()
            messages.check(request, reply)
    except NpurtError:
        return False
    return True


def forget_queue(connection: Connection) -> None:
    """Remember that dspqueue failed in use."""
    measurements.remember(
        measurements.identity(connection.load(), connection.domain), "dspqueue", False
    )


def capacity(connection: Connection) -> int:
    """Return how many bytes a session can map, measured once for each firmware.

    The result is one step less than the most that worked: the DSP needs addresses of its own.  At
    most half of this machine's free memory is tried; a measurement that ends there is not kept.
    """
    identity = measurements.identity(connection.load(), connection.domain)
    known = measurements.recall(identity, "capacity")
    if type(known) is int and known >= 0:  # anybody may have written it
        return known
    found, limited = _measure(connection)
    if not limited:
        measurements.remember(identity, "capacity", found)
    return found


def _measure(connection: Connection) -> tuple[int, bool]:
    """Return bytes, and whether this machine's memory was the limit."""
    limit = min(available_memory() // 2, MOST)
    mapped = 0
    connection = replace(
        connection, transport=TransportName.INVOKE, session=None, deadline=MEASURE_SECONDS
    )
    with contextlib.closing(Worker(connection)) as worker, contextlib.suppress(DeviceFull):
        while mapped + STEP <= limit:
            worker.allocate(STEP)
            mapped += STEP
    return max(mapped - STEP, 0), mapped + STEP > limit


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the bytes that programs can still take, as the kernel estimates them; 0: unknown."""
    try:
        found = re.search(r"^MemAvailable: *(\d+) kB$", meminfo.read_text(), re.M)
    except OSError:  # no /proc, as in some sandboxes
        return 0
    return int(found[1]) * 1024 if found else 0
