"""Test in a worker process whether dspqueue works, and measure how much a session can map."""

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

QUEUE_SECONDS = 1  # deadline of the test message
STEP = 256 << 20  # bytes of each block that a measurement maps
MEASURE_SECONDS = 20  # deadline of one call of a measurement
MAX_BYTES = 1 << 32  # bytes that 32-bit addresses reach


def queue_works(connection: Connection) -> bool:
    """Return whether dspqueue answers an empty batch; the test runs once for each firmware."""
    library = connection.load()
    identity = measurements.identity(library, connection.domain)
    known = measurements.recall(identity, "dspqueue")
    if not isinstance(known, bool):
        known = library.has_dspqueue and _try_queue(connection)
        measurements.remember(identity, "dspqueue", known)
    return known


def _try_queue(connection: Connection) -> bool:
    request, reply = messages.BatchMessage(0), messages.reply()
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
    """Store that dspqueue does not work with this firmware."""
    measurements.remember(
        measurements.identity(connection.load(), connection.domain), "dspqueue", False
    )


def capacity(connection: Connection) -> int:
    """Return the number of bytes that a session can map, measured once for each firmware.

    The result is one step below the largest size that could be mapped, because the DSP needs
    addresses for other purposes.  The measurement stops at 4 GiB or at half of this machine's
    available memory.  If it stops there, its result is not stored.
    """
    identity = measurements.identity(connection.load(), connection.domain)
    known = measurements.recall(identity, "capacity")
    if type(known) is int and known >= 0:  # the file may hold any JSON value
        return known
    found, limited = _measure(connection)
    if not limited:
        measurements.remember(identity, "capacity", found)
    return found


def _measure(connection: Connection) -> tuple[int, bool]:
    """Return the capacity in bytes, and whether the measurement stopped at its own limit."""
    limit = min(available_memory() // 2, MAX_BYTES)
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
    """Return the kernel's estimate of available memory in bytes, or 0 if it is unknown."""
    try:
        found = re.search(r"^MemAvailable: *(\d+) kB$", meminfo.read_text(), re.M)
    except OSError:  # no /proc, as in some sandboxes
        return 0
    return int(found[1]) * 1024 if found else 0
