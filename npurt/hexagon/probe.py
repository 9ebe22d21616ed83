"""Finding out by trying, in a process that may be killed: dspqueue, and how much can be mapped."""

import contextlib
from pathlib import Path

from npurt.errors import DeviceFull, NpurtError
from npurt.hexagon import cache, messages
from npurt.hexagon.lib import Library
from npurt.hexagon.worker import Worker

QUEUE_SECONDS = 1  # in which a message must be answered
STEP = 256 << 20  # bytes, of the search for the most that can be mapped
MEASURE_SECONDS = 20  # for one step
MOST = 1 << 32  # bytes that 32-bit addresses reach


def queue_works(library: Library, domain: str) -> bool:
    """Say whether an empty batch through dspqueue is answered; tried once for each firmware."""
    identity = cache.identity(library, domain)
    known = cache.recall(identity, "dspqueue")
    if not isinstance(known, bool):
        known = library.has_dspqueue and _try_queue(library, domain)
        cache.remember(identity, "dspqueue", known)
    return known


def _try_queue(library: Library, domain: str) -> bool:
    request, reply = messages.Request(0), messages.reply()
    try:
        worker = Worker(library.path, domain, transport="dspqueue", deadline=QUEUE_SECONDS)
        with contextlib.closing(worker):
            worker.prepare(request.data, reply)()
            messages.check(request, reply)
    except NpurtError:
        return False
    return True


def demote_queue(library: Library, domain: str) -> None:
    """Remember that dspqueue failed in use."""
    cache.remember(cache.identity(library, domain), "dspqueue", False)


def capacity(library: Library, domain: str) -> int:
    """Return how many bytes a session can map, measured once for each firmware.

    A step less than what worked: the DSP needs addresses of its own.  Half of the free memory of
    this machine is the limit of what is tried; a measurement that ends there is not kept.
    """
    identity = cache.identity(library, domain)
    known = cache.recall(identity, "capacity")
    if isinstance(known, int):
        return known
    found, limited = _measure(library, domain)
    if not limited:
        cache.remember(identity, "capacity", found)
    return found


def _measure(library: Library, domain: str) -> tuple[int, bool]:
    """Return bytes, and whether this machine's memory was the limit."""
    limit = min(available_memory() // 2, MOST)
    mapped = 0
    try:
        worker = Worker(library.path, domain, deadline=MEASURE_SECONDS)
        with contextlib.closing(worker):
            while mapped + STEP <= limit:
                worker.allocate(STEP)
                mapped += STEP
    except DeviceFull:
        return max(mapped - STEP, 0), False
    return max(mapped - STEP, 0), limit < MOST


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the bytes that programs can still take, as the kernel estimates them."""
    rows = dict(line.split(":") for line in meminfo.read_text().splitlines())
    return int(rows["MemAvailable"].split()[0]) * 1024
