"""Check files: the DSP's firmware, the shell of its processes, and search paths.

Sources for the folders that are searched: Linux,
Documentation/driver-api/firmware/fw_search_path.rst; qualcomm/fastrpc, README and
src/fastrpc_config_parser.c; linux-msm/hexagon-dsp-binaries.
"""

import functools
import re
from collections.abc import Callable

from npurt.doctor.board import TREE
from npurt.doctor.check import Result, fail, ok, skip, warn
from npurt.doctor.system import System

SHELL = "fastrpc_shell_unsigned_3"  # 3 is the domain id of the CDSP
BUILD = r"(?:[A-Z]*DSP|NSP)\.[A-Z]+\.\d[\w.-]+"  # "CDSP.HT.2.5.c3-00130-KODIAK-1"
# folders with conf.d, to which its paths are relative; the second is Debian's
BASES = ("/usr/share/qcom", "/usr/share/hexagon-dsp")
SHELL_FOLDERS = (
    "/usr/lib/dsp",
    "/usr/lib/rfsa/adsp",
    "/vendor/dsp",
    "/vendor/lib/rfsa/adsp",
    "/dsp",
)
PATHS = ("DSP_LIBRARY_PATH", "ADSP_LIBRARY_PATH")  # the second is read if the first is not set
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


def on_linux(look: Callable[[System], Result]) -> Callable[[System], Result]:
    """Return a check that calls *look*, except on Android: apps cannot read the files there."""

    @functools.wraps(look)
    def looked(system: System) -> Result:
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
def firmware(system: System) -> Result:
    """Check that the firmware file, with which the kernel starts the DSP, exists."""
    path = firmware_file(system)
    if path:
        return ok(path)
    name = system.text(f"{remoteproc(system)}/firmware") or "(of unknown name)"
    return fail(
        f"the DSP's firmware /lib/firmware/{name} is missing",
        "sudo apt install linux-firmware (Debian: firmware-qcom-soc, RadxaOS: "
        "radxa-firmware-qcs6490), or copy it from the maker's image; then: sudo reboot",
    )


def configured(system: System) -> dict[str, str]:
    """Return FastRPC's configuration for this board: DSP_LIBRARY_PATH, CDSP_ARCH.

    The files are YAML with two levels: models of boards, and keys with values for each model.
    """
    model = system.text(f"{TREE}/model") or ""
    found: dict[str, str] = {}
    for base in BASES:
        for name in system.names(f"{base}/conf.d"):
            if name.endswith(".yaml"):
                found |= _of_model(system.text(f"{base}/conf.d/{name}") or "", model)
    return found


def _of_model(yaml: str, model: str) -> dict[str, str]:
    found: dict[str, str] = {}
    here = False
    for line in yaml.splitlines():
        head = re.fullmatch(r"""\s+["']?(.*?)["']?:\s*""", line)
        pair = re.fullmatch(r"""\s+(\w+):\s*["']?(.*?)["']?\s*""", line)
        if head:
            here = head[1] == model
        elif pair and here:
            found[pair[1]] = pair[2]
    return found


def shell_folders(system: System) -> list[str]:
    """Return the folders in which FastRPC looks for the shell, in order."""
    folders = []
    for name in PATHS:
        folders += [item for item in system.environment(name).split(";") if item.startswith("/")]
    board = configured(system).get("DSP_LIBRARY_PATH")
    if board:
        folders += [f"{base}/{board}" for base in BASES]
    folders += SHELL_FOLDERS
    return [f"{folder}{sub}" for folder in folders for sub in ("/cdsp", "")]


def shell_file(system: System) -> str | None:
    """Return the path of the shell of unsigned processes, or None."""
    paths = [f"{folder}/{SHELL}" for folder in shell_folders(system)]
    return next((path for path in paths if system.node(path)), None)


@on_linux
def shell(system: System) -> Result:
    """Check that the shell of unsigned processes exists; npurt's code is not signed."""
    path = shell_file(system)
    if path:
        return ok(path)
    return fail(
        f"there is no {SHELL} in {', '.join(shell_folders(system)[1::2])}: only signed code could "
        "start on the DSP",
        "install the DSP files of this board, of the same release as its firmware: apt search "
        "hexagon-dsp-binaries, or copy them from the maker's image to /usr/lib/dsp/cdsp",
    )


@on_linux
def build(system: System) -> Result:
    """Check that firmware and shell have the same build (#188, #231, #325, #377)."""
    paths = firmware_file(system), shell_file(system)
    builds = [system.matches(path, BUILD) if path else None for path in paths]
    if not builds[0] or not builds[1]:
        unknown = " and ".join(str(p) for p, b in zip(paths, builds, strict=True) if not b)
        return skip(f"the build of {unknown} is unknown")
    same = set(builds[0]) & set(builds[1])
    if same:
        return ok(", ".join(sorted(same)))
    return fail(
        f"firmware {', '.join(builds[0])} and shell {', '.join(builds[1])} are of two builds, "
        "the usual cause of 0x80000600, 0x8000054f and timeouts",
        f"install firmware and DSP files of one release; here: {paths[0]} and {paths[1]}",
    )


def path(system: System) -> Result:
    """Check that ";" separates the folders: a list with ":" means one folder, which is missing."""
    for name in PATHS:
        value = system.environment(name)
        if ":" in value:
            mended = value.replace(":", ";")
            return warn(
                f"{name}={value} has ':', not ';': it means one folder, which does not exist",
                f"export {name}='{mended}'",
                suspect=True,
            )
    return ok(
        "; ".join(f"{n}={system.environment(n)}" for n in PATHS if system.environment(n))
        or "nothing set"
    )
