"""Which CPUs to use: what this process may run on, how much of it, and which cores are fast.

Reads /proc and /sys only.  `root` lets tests give another machine's tree.
Sources: Linux Documentation, admin-guide/cgroup-v2.rst (cpu.max), cpu-freq/user-guide.rst
(cpuinfo_max_freq) and ABI/testing/sysfs-devices-system-cpu (cpu_capacity).
"""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from npurt.errors import SettingError
from npurt.settings import THREADS, read

FAST = 0.75  # a core is fast when it has this share of the best one's capacity


@dataclass(frozen=True, slots=True)
class Topology:
    """The CPUs to run on."""

    cpus: tuple[int, ...]  # the fast ones this process may use
    pinned: bool  # threads must be kept on them: there are slow ones too
    limit: int  # threads that the cgroup's quota pays for

    @property
    def threads(self) -> int:
        """How many threads to use when nobody says."""
        return max(1, min(len(self.cpus), self.limit))


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None


def fast_cpus(allowed: Iterable[int], root: Path = Path("/")) -> tuple[int, ...]:
    """Return those of *allowed* whose capacity, else highest frequency, is near the best."""
    allowed = sorted(allowed)
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        speeds = {c: _number(root / f"sys/devices/system/cpu/cpu{c}/{name}") for c in allowed}
        known = {c: s for c, s in speeds.items() if s}
        if len(known) == len(allowed):
            best = max(known.values())
            return tuple(c for c in allowed if known[c] >= FAST * best)
    return tuple(allowed)


def quota(root: Path = Path("/")) -> float:
    """Return the CPUs that this process's cgroups pay for; infinite when they set no limit."""
    best = math.inf
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return best
    for line in lines:
        _, controllers, path = line.split(":", 2)
        base = root / "sys/fs/cgroup"
        if controllers == "":
            limits = [_v2(base / str(part).lstrip("/")) for part in (path, *Path(path).parents)]
            best = min(best, *limits)
        elif "cpu" in controllers.split(","):
            best = min(best, _v1(base / "cpu" / path.lstrip("/")), _v1(base / "cpu"))
    return best


def _v2(folder: Path) -> float:
    try:
        limit, period = (folder / "cpu.max").read_text().split()
        return math.inf if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return math.inf


def _v1(folder: Path) -> float:
    limit = _number(folder / "cpu.cfs_quota_us")
    period = _number(folder / "cpu.cfs_period_us")
    return limit / period if limit and period and limit > 0 else math.inf


def topology(root: Path = Path("/"), allowed: Iterable[int] | None = None) -> Topology:
    """Look at this machine, or at the tree under *root*."""
    usable = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    cpus = fast_cpus(usable, root)
    limit = quota(root)
    return Topology(
        cpus=cpus,
        pinned=len(cpus) < len(usable),
        limit=len(cpus) if math.isinf(limit) else max(1, math.floor(limit)),
    )


def threads_to_use(asked: int | None, here: Topology) -> int:
    """Return *asked*, else `NPURT_THREADS`, else what *here* suggests.

    Raises:
        SettingError: The number is negative or absurd.
    """
    count = asked if asked is not None else read(THREADS, int)
    if not 0 <= count <= 256:
        raise SettingError(
            f"{count} threads cannot be had", remedy="ask for 1 to 256, or 0 to let npurt choose"
        )
    return count or here.threads
