"""How much memory an engine gives to keys and values."""

from pathlib import Path

from npurt.runtime.open.arguments import integer

SHARE = 4  # the budget is this part of the free memory
LEAST = 64 << 20  # bytes, where the system does not say how much is free


def kv_budget(given: int | None) -> int:
    """Return *given*, or a quarter of the memory that is free now, in bytes."""
    if given is not None:
        return integer("kv_bytes", given, 1)
    return max(LEAST, free_memory() // SHARE)


def free_memory() -> int:
    """Return the memory that programs can have without swapping, in bytes; 0 if unknown."""
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
