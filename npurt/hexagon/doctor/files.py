"""Check files: the DSP's firmware, the shell of its processes, and search paths.

Source for the folders of firmware: Linux, Documentation/driver-api/firmware/fw_search_path.rst;
`npurt.hexagon.session.installed` finds the shell.
"""

import functools
from collections.abc import Callable

from npurt.doctor.check import CheckResult, fail, ok, skip, warn
from npurt.doctor.system import System
from npurt.hexagon.doctor import evidence, packages
from npurt.hexagon.session import installed

BUILD = r"(?:[A-Z]*DSP|NSP)\.[A-Z]+\.\d[\w.-]+"  # "CDSP.HT.2.5.c3-00130-KODIAK-1"
PACKED = ("", ".zst", ".xz")
HIDDEN = "Android hides this from apps"


def remoteproc(system: System) -> str | None:
    """Return the folder of the compute DSP's remote processor."""
    root = "/sys/class/remoteproc"
    named = {name: system.text(f"{root}/{name}/name") or "" for name in system.names(root)}
    found = [n for n, dsp in named.items() if dsp == "cdsp"] + [
        n for n in named if "cdsp" in named[n]
    ]
    return f"{root}/{found[0]}" if found else None


def android(system: System) -> bool:
    """Return whether the system is Android, which hides most of the machine from apps."""
    return bool(system.environment("ANDROID_ROOT"))


def on_linux(look: Callable[[System], CheckResult]) -> Callable[[System], CheckResult]:
    """Return a check that calls *look*, except on Android: apps cannot read the files there."""

    @functools.wraps(look)
    def looked(system: System) -> CheckResult:
        return skip(HIDDEN) if android(system) else look(system)

    return looked


def firmware_file(system: System) -> str | None:
    """Return the path of the DSP's firmware, or None."""
    name = system.text(f"{remoteproc(system)}/firmware")
    kernel = system.text("/proc/sys/kernel/osrelease")
    custom = system.text("/sys/module/firmware_class/parameters/path")
    base = "/lib/firmware"
    folders = [custom, f"{base}/updates/{kernel}", f"{base}/updates", f"{base}/{kernel}", base]
    for folder in filter(None, folders):
        for packed in PACKED:
            if name and system.node(f"{folder}/{name}{packed}"):
                return f"{folder}/{name}{packed}"
    return None


@on_linux
def firmware(system: System) -> CheckResult:
    """Check that the firmware file, with which the kernel starts the DSP, exists."""
    path = firmware_file(system)
    if path:
        return ok(path)
    name = system.text(f"{remoteproc(system)}/firmware") or "(of unknown name)"
    return fail(
        f"the DSP's firmware /lib/firmware/{name} is missing",
        "sudo apt install linux-firmware (Debian: firmware-qcom-dsp or firmware-qcom-soc, "
        "RadxaOS: radxa-firmware-qcs6490), or copy it from the maker's image; then: sudo reboot",
    )


@on_linux
def shell(system: System) -> CheckResult:
    """Check that the shell of unsigned processes exists; npurt's code is not signed."""
    domain = evidence.domain(system)
    path = installed.shell_file(system, domain)
    if path:
        return ok(path)
    unusable = packages.unusable(system)
    if unusable:
        return unusable
    signed = installed.signed_shell(system, domain)
    if signed:
        return fail(
            f"there is {signed}, which starts signed code only, and no "
            f"{installed.shell_names(domain)[0]} for npurt's code, which is not signed",
            f"{packages.install(system)}; if these files have no unsigned shell either, use the "
            "CPU: npurt run -dev cpu",
        )
    return fail(
        f"there is no {installed.shell_names(domain)[0]} in "
        f"{', '.join(installed.folders(system, domain)[1::2])}: only signed code could start on "
        "the DSP",
        packages.install(system),
    )


@on_linux
def build(system: System) -> CheckResult:
    """Check that firmware and shell have the same build (#188, #231, #325, #377)."""
    shell = installed.shell_file(system, evidence.domain(system))
    paths = firmware_file(system), shell
    builds = [system.matches(path, BUILD) if path else None for path in paths]
    if not builds[0] or not builds[1]:
        unknown = " and ".join(str(p) for p, b in zip(paths, builds, strict=True) if not b)
        return skip(f"the build of {unknown} is unknown")
    same = set(builds[0]) & set(builds[1])
    if same:
        return ok(", ".join(sorted(same)))
    both = packages.pair(system)
    return fail(
        f"firmware {', '.join(builds[0])} and shell {', '.join(builds[1])} are of two builds, "
        "the usual cause of 0x80000600, 0x8000054f and timeouts",
        f"install firmware and DSP files of one release; here: {paths[0]} and {paths[1]}"
        + (f"; Debian, Ubuntu: sudo apt install {both}, both of one version" if both else ""),
    )


def path(system: System) -> CheckResult:
    """Check that ";" separates the folders: a list with ":" means one folder, which is missing."""
    for name in installed.PATHS:
        value = system.environment(name)
        if ":" in value:
            mended = value.replace(":", ";")
            return warn(
                f"{name}={value} has ':', not ';': it means one folder, which does not exist",
                f"export {name}='{mended}'",
                suspect=True,
            )
    return ok(
        "; ".join(f"{n}={system.environment(n)}" for n in installed.PATHS if system.environment(n))
        or "nothing set"
    )
