"""Checks of a board with an RK3588 NPU, in the order in which to solve problems.

Order and messages follow the causes that users reported; tests/data/doctor/rockchip.json names the
reports.  Sources of names in /sys: Linux rk3588-base.dtsi and drivers/accel/rocket; the vendor's
rk3588s.dtsi and drivers/rknpu, drivers/devfreq.
"""

import re

from npurt.doctor.board import TREE, compatible
from npurt.doctor.check import CheckResult, DoctorCheck, fail, ok, skip, warn
from npurt.doctor.system import Node, System
from npurt.rknpu.doctor import live as live
from npurt.rknpu.doctor import speed as speed
from npurt.rknpu.driver import uapi_rknpu
from npurt.rknpu.driver.system import CHIPS
from npurt.rknpu.plan.tiling import CORES

NPU = "npu@fdab0000"  # the first core, in the device trees of both kernels
DRIVERS = {  # driver -> folder of its devices
    "rocket": speed.ROCKET,
    "rknpu": "/sys/bus/platform/drivers/RKNPU",
}
FIRST_WITH_ROCKET = (6, 18)  # version of Linux
CONFIG = r"CONFIG_(?:DRM_ACCEL_ROCKET|ROCKCHIP_RKNPU)(?:=[ym]| is not set)"
OLDEST = uapi_rknpu.release(uapi_rknpu.OLDEST)
KERNELS = (
    "a kernel with rocket (Linux 6.18 and newer, CONFIG_DRM_ACCEL_ROCKET=m) or the vendor's with "
    f"rknpu {OLDEST} and newer (Armbian: linux-image-vendor-rk35xx), and its device tree"
)


def why_not(system: System) -> str | None:
    """Return the reason why this machine cannot have an RK3588, or None."""
    if "rockchip," in compatible(system):
        return None
    return "this is no board with a Rockchip chip"


def driver_of(system: System) -> str | None:
    """Return the driver that is bound to the cores: ``rocket``, ``rknpu`` or None."""
    for name, folder in DRIVERS.items():
        if cores_of(system, folder):
            return name
    return None


def cores_of(system: System, folder: str) -> int:
    """Return the number of NPU devices that are bound to a platform driver."""
    return sum(name.endswith(".npu") for name in system.names(folder))


def chip(system: System) -> CheckResult:
    """Check that the chip's NPU has the registers of the RK3588."""
    found = re.findall(r"^rockchip,((?:rk|rv)\d+\w*)$", compatible(system), re.M)
    name = found[-1] if found else ""
    if name.startswith(tuple(CHIPS)):
        return ok(name)
    return fail(
        f"the chip is {name.upper() or 'unknown'}: its NPU has other registers than the RK3588's, "
        "and programs for one can hang the other",
        "npurt run -dev cpu; the simulator runs here, too: npurt probe -dev rknpu:sim",
    )


def board(system: System) -> CheckResult:
    """Report the board and its kernel; an unknown board is no error."""
    model = system.text(f"{TREE}/model") or "no model in the device tree"
    kernel = system.text("/proc/sys/kernel/osrelease")
    return ok(", ".join(part for part in (model, f"Linux {kernel}" if kernel else "") if part))


def tree(system: System) -> CheckResult:
    """Check that the device tree has the NPU and enables it."""
    if NPU not in system.names(TREE):
        return fail("the device tree has no NPU", KERNELS)
    status = system.text(f"{TREE}/{NPU}/status") or "okay"
    if status in ("okay", "ok"):
        return ok(f"{NPU} is enabled")
    return fail(
        f"the device tree has status {status} for the NPU",
        "a device tree that enables the NPU: of a newer kernel for this board, or an overlay that "
        f"sets status = okay in {NPU}, the other two cores, their IOMMUs and their supply",
    )


def driver(system: System) -> CheckResult:
    """Check that one of the two drivers is bound to the cores."""
    name = driver_of(system)
    if name:
        return ok(f"{name} has the NPU")
    kernel = system.text("/proc/sys/kernel/osrelease") or ""
    config = _config(system, kernel)
    if "rocket" in system.names("/sys/module"):
        return fail(
            "the driver rocket is loaded and has no core; loaded late, it finds the NPU's supply "
            "switched off",
            "sudo dmesg | grep -e rocket -e npu; if it says nothing else: rocket in the initramfs, "
            "or a kernel with CONFIG_DRM_ACCEL_ROCKET=y",
        )
    if "CONFIG_DRM_ACCEL_ROCKET=m" in config:
        return fail("the driver rocket is not loaded", "sudo modprobe rocket")
    if "CONFIG_ROCKCHIP_RKNPU=m" in config:
        return fail("the driver rknpu is not loaded", "sudo modprobe rknpu")
    if "CONFIG_DRM_ACCEL_ROCKET is not set" in config:
        return fail(f"Linux {kernel} was built without CONFIG_DRM_ACCEL_ROCKET", KERNELS)
    return fail(f"Linux {kernel or 'of unknown version'} has no driver{_age(kernel)}", KERNELS)


def _config(system: System, kernel: str) -> list[str]:
    """Return the lines of the kernel's configuration about the two drivers."""
    for path in (f"/boot/config-{kernel}", "/proc/config.gz"):
        found = system.matches(path, CONFIG)
        if found:
            return found
    return []


def _age(kernel: str) -> str:
    version = re.match(r"(\d+)\.(\d+)", kernel)
    if version and (int(version[1]), int(version[2])) < FIRST_WITH_ROCKET:
        return ": rocket came with Linux 6.18, and this is not the vendor's kernel"
    return ""


def nodes_of(system: System) -> dict[str, Node]:
    """Return the device nodes of the driver that is bound to the cores."""
    if driver_of(system) == "rocket":
        paths = [f"/dev/accel/{name}" for name in system.names("/dev/accel")]
    else:
        paths = [
            f"/dev/dri/{name}"
            for name in system.names("/sys/class/drm")
            if re.fullmatch(r"renderD\d+|card\d+", name)
            and "DRIVER=RKNPU" in (system.text(f"/sys/class/drm/{name}/device/uevent") or "")
        ]
        paths.sort(key=lambda path: "render" not in path)
    found = {path: system.node(path) for path in paths}
    return {path: node for path, node in found.items() if node}


def node(system: System) -> CheckResult:
    """Check that this user may open one of the device nodes."""
    nodes = nodes_of(system)
    usable = [path for path, node in nodes.items() if node.read and node.write]
    if usable:
        return ok(f"{usable[0]} can be opened")
    if nodes:
        path, found = next(iter(nodes.items()))
        return fail(
            f"no permission to open {path} ({found})",
            f"sudo usermod -aG {found.group} $USER, then log in again"
            if found.group != "root"
            else f"sudo chgrp render {path} && sudo chmod 660 {path}; sudo usermod -aG render "
            "$USER, then log in again; a udev rule makes it last",
        )
    if driver_of(system) == "rknpu" and system.node("/dev/rknpu"):
        return fail(
            "there is /dev/rknpu, but no DRM node: this rknpu was built with DMA_HEAP",
            "a kernel with CONFIG_ROCKCHIP_RKNPU_DRM_GEM=y instead of ..._DMA_HEAP",
        )
    folder = "/dev/accel" if driver_of(system) == "rocket" else "/dev/dri"
    return fail(
        f"the driver has the NPU, but there is no node in {folder}",
        f"sudo udevadm trigger; in a container: pass {folder} in",
    )


def version(system: System) -> CheckResult:
    """Check that the vendor's driver is not older than `OLDEST`, whose structs npurt uses."""
    if driver_of(system) == "rocket":
        return ok("rocket has one interface so far")
    told = system.text("/sys/kernel/debug/rknpu/version") or system.text("/proc/rknpu/version")
    log = "\n".join(system.log("Initialized rknpu"))
    found = re.search(r"v(\d+\.\d+\.\d+)", told or "") or re.search(r"rknpu (\d+\.\d+\.\d+)", log)
    release = found[1] if found else live.version(system)
    if not release:
        return skip("only root may read the driver's version")
    if tuple(map(int, release.split("."))) < tuple(map(int, OLDEST.split("."))):
        return fail(f"the driver rknpu is {release}, and npurt needs {OLDEST} or newer", KERNELS)
    return ok(f"rknpu {release}")


def iommu(system: System) -> CheckResult:
    """Check that the IOMMU is on: without it the NPU needs contiguous memory, which is scarce."""
    if driver_of(system) == "rocket":
        return ok("rocket always uses it")
    status = system.text(f"{TREE}/iommu@fdab9000/status") or "okay"
    log = system.log(r"rknpu iommu is (?:en|dis)abled|rknpu iommu device-node not found")
    if status not in ("okay", "ok") or any("non-iommu" in line for line in log):
        return fail(
            "the NPU runs without its IOMMU",
            "a device tree with status = okay in iommu@fdab9000 (rknpu_mmu)",
        )
    return ok("enabled")


def cores(system: System) -> CheckResult:
    """Check that rocket has all cores, which are separate devices for it."""
    if driver_of(system) == "rknpu":
        return ok("rknpu manages all cores as one device")
    count = cores_of(system, DRIVERS["rocket"])
    if count < CORES and "rk3583" not in compatible(system):
        return warn(
            f"only {count} of {CORES} cores: products take {CORES / count:.1f} times as long",
            f"a device tree that enables npu@fdac0000 and npu@fdad0000: head {TREE}/npu@*/status",
        )
    return ok(f"{count} cores")


CHECKS = (
    DoctorCheck("chip", "programs fit one family of chips", chip),
    DoctorCheck("board", "what the board says it is", board, ("chip",)),
    DoctorCheck("tree", "the device tree enables the NPU", tree, ("chip",)),
    DoctorCheck("driver", "one of two drivers has the NPU", driver, ("tree",)),
    DoctorCheck("node", "this user may use it", node, ("driver",)),
    DoctorCheck("version", "the driver is not too old", version, ("driver",)),
    DoctorCheck("iommu", "memory need not be in one piece", iommu, ("driver",)),
    DoctorCheck("cores", "all cores are there", cores, ("driver",)),
    DoctorCheck("npu-clock", "the NPU is not slowed down", speed.npu, ("driver",)),
    DoctorCheck("ddr-clock", "memory is not slowed down", speed.ddr, ("driver",)),
    DoctorCheck("cma", "there is memory in one piece", speed.cma, ("driver",)),
    DoctorCheck("files", "enough files may be open", speed.files, ("driver",)),
    DoctorCheck("alone", "nobody else uses the NPU", live.alone, ("node", "version", "iommu")),
    DoctorCheck("open", "npurt can open it", live.opens, ("alone",)),
    DoctorCheck("products", "its results are right", live.products, ("open",), symptom=True),
)
SIMULATED = tuple(check for check in CHECKS if check.name in ("alone", "open", "products"))


def collect(system: System) -> None:
    """Record evidence that no check needs, for the reader of a bundle."""
    for path in (
        "/etc/os-release",
        "/proc/sys/kernel/osrelease",
        "/proc/cmdline",
        "/sys/kernel/debug/rknpu/load",
        "/sys/kernel/debug/clk/clk_summary",
    ):
        system.text(path)
    for core in ("fdab0000", "fdac0000", "fdad0000"):
        system.text(f"{TREE}/npu@{core}/status")
    for folder in ("/dev/accel", "/dev/dri", "/dev/dma_heap", "/sys/class/devfreq"):
        system.names(folder)
    system.log("(?i)rocket|rknpu|fda[bcd]0000")
