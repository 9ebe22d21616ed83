"""Identify the board, and find its page in docs/boards."""

import re

from npurt.doctor.system import System

TREE = "/sys/firmware/devicetree/base"
# Page of a board -> pattern of a line of `compatible` in its device tree.  Sources: Linux,
# arch/arm64/boot/dts; for Orange Pi also the vendor's kernels.
PAGES = {
    "dragon-q6a": r"radxa,dragon-q6a$",
    "rb3gen2": r"qcom,qcs6490-rb3gen2",
    "rock-5": r"radxa,rock-5",
    "orange-pi-5": r"(?:xunlong,|rockchip,rk3588s?-)orangepi-5",
    "raspberry-pi-5": r"raspberrypi,5",
    "snapdragon-x": r"qcom,(?:x1[ep]\d+|glymur)",
}


def compatible(system: System) -> str:
    """Return the names of the board and its chip in the device tree, one a line."""
    return system.text(f"{TREE}/compatible") or ""


def page(system: System) -> str | None:
    """Return the path of the document about this board, or None."""
    names = compatible(system)
    for name, pattern in PAGES.items():
        if re.search(f"^{pattern}", names, re.M):
            return f"docs/boards/{name}.md"
    return None
