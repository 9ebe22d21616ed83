"""Checks of causes of a slow NPU: clocks, little contiguous memory, few open files."""

import re

from npurt.doctor.check import CheckResult, ok, skip, warn
from npurt.doctor.system import System
from npurt.rknpu.driver.detect import FILES as WANTED_FILES
from npurt.rknpu.plan.cost import CLOCKS

DEVFREQ = "/sys/class/devfreq"
ROCKET = "/sys/bus/platform/drivers/rocket"
PARKED = ("powersave", "userspace")  # governors that do not follow the load
FULL_NPU_HZ = int(CLOCKS["rknpu"])
CMA_KB = 16 << 10  # a warning appears if less contiguous memory is free [?]
FILES = 4096  # file descriptors; some runtimes of this NPU need more than 1024


def npu(system: System) -> CheckResult:
    """Check the NPU's clock: a governor may limit it, and rocket never raises it."""
    folder = f"{DEVFREQ}/fdab0000.npu"
    if not system.text(f"{folder}/governor"):
        if not system.names(ROCKET):
            return skip(f"{DEVFREQ} does not show the NPU's clock")
        return warn(
            f"no governor: rocket leaves the NPU at its initial {CLOCKS['rocket'] / 1e6:.0f} MHz, "
            "a fifth of the clock with the vendor's driver",
            "a kernel with a frequency patch for rocket; 900 MHz and more need 0.85 V",
        )
    return _clock(system, folder, "the NPU", FULL_NPU_HZ)


def ddr(system: System) -> CheckResult:
    """Check the memory's clock, which limits decoding: at 528 MHz a token takes twice as long."""
    folder = f"{DEVFREQ}/dmc"
    if not system.text(f"{folder}/governor"):
        return ok("set by the firmware; nothing changes it")
    return _clock(system, folder, "memory", 0)


def _clock(system: System, folder: str, what: str, wanted_hz: int) -> CheckResult:
    """Check the frequency and the governor of one clock.

    Args:
        wanted_hz: Frequency that is enough; 0 means the highest available one.
    """
    governor = system.text(f"{folder}/governor")
    now, maximum = (max(_hertz(system, f"{folder}/{name}")) for name in ("cur_freq", "max_freq"))
    highest = max(maximum, *_hertz(system, f"{folder}/available_frequencies"))
    wanted = min(highest, wanted_hz or highest)
    if governor in PARKED and now < wanted:
        return warn(
            f"{what} is kept at {now // 10**6} of {highest // 10**6} MHz by governor {governor}",
            f"echo performance | sudo tee {folder}/governor",
        )
    if maximum < wanted:
        return warn(
            f"{what} is limited to {maximum // 10**6} of {highest // 10**6} MHz",
            f"echo {highest} | sudo tee {folder}/max_freq",
        )
    return ok(f"{governor}, {now // 10**6} MHz now, at most {maximum // 10**6}")


def _hertz(system: System, path: str) -> list[int]:
    """Return a 0 and the numbers in a file; the 0 is the result for a file without numbers."""
    return [0, *(int(word) for word in (system.text(path) or "").split() if word.isdecimal())]


def cma(system: System) -> CheckResult:
    """Check that enough contiguous memory (CMA), which the vendor's driver uses, is free."""
    memory = dict(re.findall(r"^(\w+): +(\d+) kB$", system.text("/proc/meminfo") or "", re.M))
    total, free = int(memory.get("CmaTotal", 0)), int(memory.get("CmaFree", 0))
    if not memory:
        return skip("/proc/meminfo cannot be read")
    if not total:
        return ok("there is no contiguous area; memory goes through the IOMMU")
    if free < min(CMA_KB, total // 2):
        return warn(
            f"{free >> 10} of {total >> 10} MiB of contiguous memory are free",
            "end programs that use camera or display; or boot with cma=256M",
        )
    return ok(f"{free >> 10} of {total >> 10} MiB of contiguous memory are free")


def files(system: System) -> CheckResult:
    """Check the hard limit of open files; npurt raises the soft limit by itself."""
    limits = system.text("/proc/self/limits") or ""
    found = re.search(r"^Max open files\s+(\S+)\s+(\S+)", limits, re.M)
    if not found:
        return skip("/proc/self/limits cannot be read")
    hard = found[2]
    if hard.isdecimal() and int(hard) < FILES:
        return warn(
            f"no more than {hard} files may be open at once",
            f"echo '* hard nofile {WANTED_FILES}' | sudo tee /etc/security/limits.d/npurt.conf, "
            f"and log in again; in a container: --ulimit nofile={WANTED_FILES}",
        )
    return ok(f"up to {hard} may be open")
