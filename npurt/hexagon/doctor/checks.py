"""The checks of a board and its Hexagon, in the order in which they run.

The order and the messages follow the causes that were found in reports: qualcomm/fastrpc (#N),
qualcomm-linux/kernel (K#N), ggml-org/llama.cpp (L#N), and reports to the makers of boards.
"""

import re

from npurt.doctor.board import TREE, compatible
from npurt.doctor.check import CheckResult, DoctorCheck, fail, ok, skip, warn
from npurt.doctor.system import System
from npurt.hexagon.doctor import files, live, packages, shells
from npurt.hexagon.doctor.files import on_linux, remoteproc

NODES = ("/dev/fastrpc-cdsp-secure", "/dev/fastrpc-cdsp")  # in the library's order
VENDOR_NODES = ("/dev/adsprpc-smd-secure", "/dev/adsprpc-smd")  # nodes of the vendor's kernels
HEAP = "/dev/dma_heap/system"


def why_not(system: System) -> str | None:
    """Return the reason why this board cannot have a Hexagon, or None."""
    maker = re.search(
        r"^(rockchip|allwinner|brcm|amlogic|mediatek|nvidia),", compatible(system), re.M
    )
    if maker and not remoteproc(system):
        return f"this is a board of {maker[1]}: it has no Hexagon"
    return None


def machine(system: System) -> CheckResult:
    """Check for 64-bit ARM: only such machines have a Hexagon."""
    name = system.machine()
    if name == "aarch64":
        return ok("64-bit ARM")
    if not name:
        return fail(
            "the evidence does not name its machine; evidence from a simulator never does",
            "npurt doctor -dev hexagon:sim --from BUNDLE",
        )
    return fail(
        f"this machine is {name}, not 64-bit ARM: only the simulator runs here",
        "npurt doctor -dev hexagon:sim",
    )


def board(system: System) -> CheckResult:
    """Report the board; an unknown board is not an error."""
    model = system.text(f"{TREE}/model") or "no device tree"
    soc = system.text("/sys/devices/soc0/soc_id")
    kernel = system.text("/proc/sys/kernel/osrelease")
    about = [model, f"SoC id {soc}" if soc else "", f"Linux {kernel}" if kernel else ""]
    return ok(", ".join(part for part in about if part))


@on_linux
def dsp(system: System) -> CheckResult:
    """Check that the kernel has the compute DSP as a remote processor."""
    path = remoteproc(system)
    if path:
        return ok(path)
    return packages.unusable(system) or fail(
        "no remote processor is called cdsp: the kernel has no driver for the DSP, or the device "
        "tree has no node for it",
        "sudo modprobe qcom_q6v5_pas; if that changes nothing: a kernel and device tree for this "
        "board, from its maker",
    )


_REASONS = (  # errno in the kernel's log, its meaning, the remedy; source: K#923, K#1086
    ("-2", "the kernel did not find its firmware", ""),
    (
        "-22",
        "its firmware was refused (-22), because it is not signed for this device",
        "install the firmware that the maker ships for this device, then: sudo reboot",
    ),
    (
        "-110",
        "it was started and did not answer (-110)",
        "sudo reboot; if it happens again, another version of the firmware",
    ),
)


@on_linux
def running(system: System) -> CheckResult:
    """Check that the DSP has been started."""
    path = remoteproc(system)
    state = system.text(f"{path}/state") or "unknown"
    if state in ("running", "attached"):
        return ok(f"the CDSP is {state}")
    start = f"echo start > {path}/state"
    if state == "crashed":
        return fail(
            "the CDSP has crashed: the kernel's log names the code that crashed",
            f"sudo dmesg | grep remoteproc; then: sudo sh -c 'echo stop > {path}/state; {start}'",
        )
    log = "\n".join(system.log("cdsp"))
    errors = re.findall(r"(?:rproc cdsp: |failed with error )(-\d+)", log)
    for errno, reason, command in _REASONS:
        if errors and errors[-1] == errno:
            return fail(f"the CDSP is {state}: {reason}", command or f"sudo sh -c '{start}'")
    return fail(
        f"the CDSP is {state}: perhaps the kernel tried to start it before its firmware was there",
        f"sudo sh -c '{start}'",
    )


@on_linux
def driver(system: System) -> CheckResult:
    """Check that FastRPC's driver has created its device nodes."""
    misc = system.names("/sys/class/misc")
    if any(name.startswith(("fastrpc-cdsp", "adsprpc-smd")) for name in misc):
        return ok("the FastRPC driver has the CDSP")
    if "fastrpc" in system.names("/sys/module"):
        return fail(
            "the FastRPC driver is loaded, but has no node for the CDSP: the device tree lacks the "
            "fastrpc node of the CDSP, or the DSP has only just started",
            "sudo dmesg | grep fastrpc; if the output does not mention cdsp: a device tree for "
            "this board, from its maker",
        )
    return fail(
        "the FastRPC driver is not loaded",
        "sudo modprobe fastrpc; if the module is missing: a kernel with CONFIG_QCOM_FASTRPC",
    )


@on_linux
def node(system: System) -> CheckResult:
    """Check that this user may open one of the device nodes."""
    names = NODES if any(system.node(n) for n in NODES) else VENDOR_NODES
    nodes = {name: system.node(name) for name in names}
    there = {name: found for name, found in nodes.items() if found}
    readable = [name for name, found in there.items() if found.read]
    if readable:
        return ok(f"{', '.join(readable)} can be opened")
    if not there:
        return fail(
            f"there is no {NODES[1]}",
            "sudo udevadm trigger; in a container: pass the node and /dev/dma_heap/system to it",
        )
    name = next((n for n in names[::-1] if n in there), names[0])
    return fail(f"no permission to open {name} ({there[name]})", _permit(name, there[name].group))


@on_linux
def heap(system: System) -> CheckResult:
    """Check that this user may open the DMA heap, which provides the memory for sharing."""
    found = system.node(HEAP)
    if found is None:
        return warn(
            f"there is no {HEAP}: the library falls back to memory of the FastRPC driver",
            "a kernel with CONFIG_DMABUF_HEAPS_SYSTEM",
        )
    if found.read:
        return ok(f"{HEAP} can be opened")
    return fail(f"no permission to open {HEAP} ({found})", _permit(HEAP, found.group))


def _permit(path: str, group: str) -> str:
    """Return the command after which this user can open the node *path* of group *group*."""
    if group not in ("root", "0"):
        return f"sudo usermod -aG {group} $USER, then log in again"
    return (
        "install FastRPC's udev rules (Debian, Ubuntu: sudo apt install fastrpc-support), then: "
        "sudo usermod -aG fastrpc $USER, and log in again; until the next boot: "
        f"sudo chmod a+rw {path}"
    )


@on_linux
def daemon(system: System) -> CheckResult:
    """Check that the daemon that logs the DSP's messages of a crash is running."""
    if system.runs("cdsprpcd"):
        return ok("cdsprpcd runs")
    return warn(
        "cdsprpcd does not run: the DSP's log of a crash is lost", "sudo systemctl start cdsprpcd"
    )


def banks(system: System) -> CheckResult:
    """Do not count the free sessions: counting them would mean opening all of them."""
    return skip("not counted: counting would open all free sessions")


CHECKS = (
    DoctorCheck("machine", "a Hexagon sits beside 64-bit ARM cores", machine),
    DoctorCheck("board", "what the board says it is", board, ("machine",)),
    DoctorCheck("remoteproc", "the kernel knows the compute DSP", dsp, ("machine",)),
    DoctorCheck("firmware", "the DSP's program is there", files.firmware, ("remoteproc",)),
    DoctorCheck("running", "the DSP was started", running, ("remoteproc",)),
    DoctorCheck("driver", "FastRPC has the DSP", driver, ("running",)),
    DoctorCheck("node", "this user may call the DSP", node, ("driver",)),
    DoctorCheck("heap", "memory can be shared with the DSP", heap, ("machine",)),
    DoctorCheck("library", "the system's FastRPC library, one of it", live.library, ("machine",)),
    DoctorCheck("capabilities", "the DSP says what it is", live.capabilities, ("library", "node")),
    DoctorCheck("shell", "what processes on the DSP start with", files.shell, ("machine",)),
    DoctorCheck("build", "firmware and shell are of one build", files.build, ("firmware", "shell")),
    DoctorCheck("skel", "npurt's code fits the DSP", live.skel, ("machine",)),
    DoctorCheck(
        "imports",
        "the shell has the functions that npurt's code calls",
        shells.imports,
        ("shell", "skel"),
    ),
    DoctorCheck(
        "checksum",
        "npurt's code has a checksum where the DSP's files have one",
        shells.checksum,
        ("shell", "skel"),
    ),
    DoctorCheck("path", "where the DSP looks for files", files.path, ("machine",)),
    DoctorCheck(
        "session",
        "npurt's code starts on the DSP",
        live.session,
        ("library", "node", "skel"),
        symptom=True,
    ),
    DoctorCheck(
        "transfer", "calls and memory arrive whole", live.transfer, ("session",), symptom=True
    ),
    DoctorCheck(
        "mapping", "memory can be mapped and unmapped", live.mapping, ("transfer",), symptom=True
    ),
    DoctorCheck("dspqueue", "calls without the kernel", live.dspqueue, ("mapping",)),
    DoctorCheck("daemon", "the DSP's log of crashes", daemon, ("machine",)),
    DoctorCheck("banks", "how many sessions are left", banks, ("machine",)),
)
READERS = shells.READERS
LIVE = ("library", "capabilities", "skel", "session", "transfer", "mapping", "dspqueue")
SIMULATED = tuple(check for check in CHECKS if check.name in LIVE)


def collect(system: System) -> None:
    """Collect evidence that no check uses, for the readers of a bundle."""
    for path in (
        "/etc/os-release",
        "/proc/sys/kernel/osrelease",
        f"{TREE}/compatible",
        "/sys/devices/soc0/machine",
        "/sys/module/firmware_class/parameters/path",
    ):
        system.text(path)
    for processor in system.names("/sys/class/remoteproc"):
        for name in ("name", "state", "firmware"):
            system.text(f"/sys/class/remoteproc/{processor}/{name}")
    for folder in ("/sys/class/misc", "/dev/dma_heap", "/dev/accel", "/usr/share/qcom/conf.d"):
        system.names(folder)
    system.log("fastrpc|remoteproc|q6v5|cdsp")
