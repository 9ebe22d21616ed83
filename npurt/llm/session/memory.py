"""Choose the memory budget of a KV cache, and read the machine's free memory."""

from pathlib import Path

from npurt.runtime.open.arguments import integer

SHARE = 4  # the budget is 1 / SHARE of the free memory
MIN_BYTES = 64 << 20  # bytes; the smallest budget, also if the free memory is unknown


def kv_budget(given: int | None) -> int:
    """Return *given*, or else a quarter of the free memory, in bytes."""
    if given is not None:
        return integer("kv_bytes", given, 1)
    return max(MIN_BYTES, free_memory() // SHARE)


def free_memory() -> int:
    """Return the memory available to programs without swapping, in bytes; 0 if unknown."""
    return _meminfo("MemAvailable:")


def total_memory() -> int:
    """Return the memory of the machine, in bytes; 0 if unknown."""
    return _meminfo("MemTotal:")


def _meminfo(name: str) -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    found = (line.split() for line in lines if line.startswith(name))
    return next((int(words[1]) << 10 for words in found), 0)
