"""Choose CPUs and a number of threads by affinity, cgroup quota and speed of the cores.

Reads only /proc and /sys; tests pass the tree of another machine as `root`.
Sources: Linux Documentation, admin-guide/cgroup-v2.rst (cpu.max), cpu-freq/user-guide.rst
(cpuinfo_max_freq) and ABI/testing/sysfs-devices-system-cpu (cpu_capacity).
"""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from npurt.errors import SettingError, brief
from npurt.settings import THREADS, read

FAST = 0.75  # a core is fast if its capacity is at least this fraction of the largest capacity


@dataclass(frozen=True, slots=True)
class Topology:
    """The CPUs to run on."""

    cpus: tuple[int, ...]  # the fast CPUs in this process's affinity mask
    pinned: bool  # pin threads to `cpus`, because there are slower CPUs, too
    limit: int  # CPUs that the cgroup's quota allows, rounded down, at least 1

    @property
    def threads(self) -> int:
        """The default number of threads."""
        return max(1, min(len(self.cpus), self.limit))


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except (OSError, ValueError):  # no such file, or a null byte in its name
        return None


def _number(path: Path) -> float | None:
    try:
        value = float(_text(path) or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def fast_cpus(allowed: Iterable[int], root: Path = Path("/")) -> tuple[int, ...]:
    """Return the fast CPUs of *allowed*: those with at least FAST of the largest capacity.

    If a CPU has no known capacity, maximum frequencies are compared instead; if these are unknown
    as well, all of *allowed* are returned.
    """
    allowed = sorted(allowed)
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        speeds = {c: _number(root / f"sys/devices/system/cpu/cpu{c}/{name}") for c in allowed}
        known = {c: s for c, s in speeds.items() if s}
        if len(known) == len(allowed):
            best = max(known.values())
            return tuple(c for c in allowed if known[c] >= FAST * best)
    return tuple(allowed)


def quota(root: Path = Path("/")) -> float:
    """Return the CPU quota of this process's cgroups in CPUs; infinity if they set no limit."""
    best = math.inf
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        base, limit = root / "sys/fs/cgroup", _v2
        if controllers:
            base, limit = base / "cpu", _v1
        if not controllers or "cpu" in controllers.split(","):
            folders = (path, *map(str, Path(path).parents), "/")
            best = min(best, *(limit(base / folder.lstrip("/")) for folder in folders))
    return best


def _v2(folder: Path) -> float:
    words = (_text(folder / "cpu.max") or "").split()
    return _ratio(*words) if len(words) == 2 else math.inf


def _v1(folder: Path) -> float:
    return _ratio(
        _text(folder / "cpu.cfs_quota_us") or "", _text(folder / "cpu.cfs_period_us") or ""
    )


def _ratio(limit: str, period: str) -> float:
    """Return limit / period in CPUs; infinity if *limit* is "max", 0, negative or no number."""
    try:
        cpus = int(limit) / int(period)
    except (ValueError, ZeroDivisionError, OverflowError):
        return math.inf
    return cpus if cpus > 0 else math.inf


def topology(root: Path = Path("/"), allowed: Iterable[int] | None = None) -> Topology:
    """Return the topology of this machine, read from /proc and /sys under *root*."""
    usable = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    cpus = fast_cpus(usable, root)
    limit = quota(root)
    return Topology(
        cpus=cpus,
        pinned=len(cpus) < len(usable),
        limit=len(cpus) if math.isinf(limit) else max(1, math.floor(limit)),
    )


def threads_to_use(asked: int | None, here: Topology) -> int:
    """Return *asked*, else `NPURT_THREADS`, else the default of *here*; 0 means the default.

    Raises:
        SettingError: The number is negative or above 256.
    """
    count = asked if asked is not None else read(THREADS, int)
    if not 0 <= count <= 256:
        raise SettingError(
            f"cannot start {brief(count)} threads",
            remedy="use 1 to 256, or 0 to let npurt choose",
        )
    return count or here.threads
