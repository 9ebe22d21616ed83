"""Name the packages with the files that a board's DSP needs.

packages.tsv lists boards with their package; its head states its sources.  Other boards of the same
chip have other firmware, so their package is only a hint.
"""

import functools
import re
from importlib.resources import files
from typing import NamedTuple

from npurt.doctor.board import compatible
from npurt.doctor.check import CheckResult, fail
from npurt.doctor.system import System
from npurt.hexagon.session import installed

FIRMWARE = "firmware-qcom-dsp"  # the firmware package; each package of files needs its own version
PREFIX = "hexagon-dsp-binaries-"
COPY = "or copy the files from the maker's image to /usr/lib/dsp/cdsp"
# Other names of chips: in device trees, and in the folders of files.
ALIASES = {
    "msm8916": "apq8016",
    "msm8996": "apq8096",
    "qcs6490": "qcm6490",
    "qrb2210": "qcm2290",
    "sdm850": "sdm845",
}


def _chip(name: str) -> str:
    return ALIASES.get(name, name)


class BoardPackage(NamedTuple):
    """A row of packages.tsv."""

    model: str
    package: str
    folder: str
    version: str  # "v68"; "-": there is no shell for unsigned processes; "?": unknown

    @property
    def chip(self) -> str:
        """The name of the board's chip."""
        return _chip(self.folder.partition("/")[0])

    @property
    def name(self) -> str:
        """The name of the package."""
        return PREFIX + self.package


@functools.cache
def boards() -> tuple[BoardPackage, ...]:
    """Return the boards with a package."""
    text = (files(__package__) / "packages.tsv").read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return tuple(BoardPackage(*line.split("\t")) for line in lines)


def _same_chip(system: System) -> list[BoardPackage]:
    """Return the boards with the chip of this board, which the device tree names."""
    chips = {_chip(name) for name in re.findall(r"^qcom,([a-z0-9]+)", compatible(system), re.M)}
    return [board for board in boards() if board.chip in chips]


def without_unsigned(system: System) -> bool:
    """Return whether no file for this board's chip starts unsigned processes on its CDSP."""
    same = _same_chip(system) or [b for b in boards() if b.model == installed.model(system)]
    return bool(same) and all(board.version == "-" for board in same)


def unusable(system: System) -> CheckResult | None:
    """Return the failure of a board on whose DSP no unsigned code can run, or None."""
    if not without_unsigned(system):
        return None
    return fail(
        "for this board's chip, no shell for unsigned code on a CDSP exists, so npurt's code, "
        "which is not signed, cannot run on its DSP",
        "use the CPU: npurt run -dev cpu",
    )


def pair(system: System) -> str:
    """Return the packages of this board's DSP files and firmware, or "" for an unknown board."""
    exact = [board for board in boards() if board.model == installed.model(system)]
    return f"{exact[0].name} {FIRMWARE}" if exact else ""


def install(system: System) -> str:
    """Return how to install this board's DSP files and the firmware of the same version."""
    both = pair(system)
    if both:
        return (
            f"sudo apt install {both} (Debian, Ubuntu; both of one version), then: sudo reboot; "
            f"{COPY}"
        )
    same = sorted({board.name for board in _same_chip(system)})
    if same:
        return (
            "install the DSP files of this board, of the same release as its firmware: apt search "
            f"{PREFIX[:-1]} (other boards with this chip have {', '.join(same)}, each with "
            f"{FIRMWARE} of the same version), {COPY}"
        )
    return (
        "install the DSP files of this board, of the same release as its firmware: apt search "
        f"{PREFIX[:-1]} (in Debian, each with {FIRMWARE} of the same version), {COPY}"
    )
