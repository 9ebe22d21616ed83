"""Device strings of this backend: ``hexagon[:INDEX[/SESSION]]`` and ``hexagon:sim[-vNN]``."""

import re
from dataclasses import dataclass

from npurt.errors import UnknownDevice
from npurt.hexagon.fastrpc.abi import CDSP

SIMULATED_ARCHS = (65, 66, 68, 69, 73, 75, 79, 81)  # those of sim/fastrpc/settings.c
FORM = re.compile(
    r"hexagon(?::(?:(?P<index>[0-9])(?:/(?P<session>[0-9]))?"
    rf"|sim(?:-v(?P<arch>{'|'.join(map(str, SIMULATED_ARCHS))}))?))?"
)


@dataclass(frozen=True, slots=True)
class Name:
    """The parts of a device string."""

    text: str  # the complete device string
    domain: str  # "cdsp"
    session: int | None  # None: any session
    simulated: bool = False
    arch: int | None = None  # version of the simulated DSP; None: the simulator's default, v68


def parse(text: str) -> Name:
    """Parse a device string.

    Raises:
        UnknownDevice: *text* is not a device string of this backend.
    """
    match = FORM.fullmatch(text)
    index = int(match["index"] or 0) if match else len(CDSP)
    if not match or index >= len(CDSP):
        raise UnknownDevice(
            f"{text!r} names no Hexagon",
            remedy="use hexagon, hexagon:0, hexagon:0/1 (session 1), hexagon:sim or "
            "hexagon:sim-v73",
        )
    if "sim" in text:
        return Name(text, "cdsp", None, True, int(match["arch"]) if match["arch"] else None)
    session = int(match["session"]) if match["session"] else None
    full = f"hexagon:{index}" + (f"/{session}" if match["session"] else "")
    return Name(full, list(CDSP)[index], session)
