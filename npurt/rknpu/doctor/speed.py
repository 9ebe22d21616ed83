"""Checks of what slows the NPU down: clocks, and memory that is short."""

import re

from npurt.doctor.check import Result, ok, skip, warn
from npurt.doctor.system import System
from npurt.rknpu.driver.detect import FILES as WANTED_FILES
from npurt.rknpu.plan.cost import CLOCKS

DEVFREQ = "/sys/class/devfreq"
ROCKET = "/sys/bus/platform/drivers/rocket"
PARKED = ("powersave", "userspace")  # governors that do not follow the load
FULL_NPU_HZ = int(CLOCKS["rknpu"])
CMA_KB = 16 << 10  # less than that free is worth a warning [?]
FILES = 4096  # descriptors; runtimes of this NPU are known to run out of 1024


def npu(system: System) -> Result:
    """A governor may hold the NPU back; the mainline driver never speeds it up."""
    folder = f"{DEVFREQ}/fdab0000.npu"
    if not system.text(f"{folder}/governor"):
        if not system.names(ROCKET):
            return skip(f"nothing in {DEVFREQ} tells the NPU's clock")
        return warn(
            f"no governor: rocket leaves the NPU at the {CLOCKS['rocket'] / 1e6:.0f} MHz that it "
            "starts with, a fifth of what the vendor's driver gives it",
            "a kernel with a frequency patch for rocket; 900 MHz and more need 0.85 V",
        )
    return _clock(system, folder, "the NPU", FULL_NPU_HZ)


def ddr(system: System) -> Result:
    """The memory's clock limits decoding: at 528 MHz it takes twice as long."""
    folder = f"{DEVFREQ}/dmc"
    if not system.text(f"{folder}/governor"):
        return ok("set by the firmware; nothing changes it")
    return _clock(system, folder, "memory", 0)


def _clock(system: System, folder: str, what: str, wanted_hz: int) -> Result:
    """Judge one governor.

    Args:
        wanted_hz: What the frequency may be; 0 for the highest that there is.
    """
    governor = system.text(f"{folder}/governor")
    now, most = (max(_hertz(system, f"{folder}/{name}")) for name in ("cur_freq", "max_freq"))
    highest = max(most, *_hertz(system, f"{folder}/available_frequencies"))
    wanted = min(highest, wanted_hz or highest)
    if governor in PARKED and now < wanted:
        return warn(
            f"{what} is kept at {now // 10**6} of {highest // 10**6} MHz by governor {governor}",
            f"echo performance | sudo tee {folder}/governor",
        )
    if most < wanted:
        return warn(
            f"{what} is limited to {most // 10**6} of {highest // 10**6} MHz",
            f"echo {highest} | sudo tee {folder}/max_freq",
        )
    return ok(f"{governor}, {now // 10**6} MHz now, at most {most // 10**6}")


def _hertz(system: System, path: str) -> list[int]:
    """Return the numbers in a file, and 0."""
    return [0, *(int(word) for word in (system.text(path) or "").split() if word.isdecimal())]


def cma(system: System) -> Result:
    """The vendor's driver takes memory that the kernel reads from the contiguous area."""
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


def files(system: System) -> Result:
    """npurt raises the limit itself as far as it may."""
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
