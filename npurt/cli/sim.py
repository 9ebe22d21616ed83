"""`npurt sim`: the simulated drivers, for any program."""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npurt.errors import DeviceNotFound

PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Simulator:
    """A library that stands for a driver: what it is called, where it lies, what it is."""

    name: str
    library: Path
    settings: str  # environment variable
    about: str


SIMULATORS = (
    Simulator(
        "fastrpc",
        PACKAGE / "hexagon/sim/libcdsprpc_sim.so",
        "NPURT_SIM_FASTRPC",
        "Qualcomm CDSP: libcdsprpc's interface; skels run under qemu-hexagon",
    ),
)


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser("sim", help="the simulated drivers, for any program")
    names = [simulator.name for simulator in SIMULATORS]
    parser.add_argument("--path", choices=names, help="print the library's path, one line")
    parser.add_argument("--json", action="store_true", help="one JSON array instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print where one simulator lies, or what there is."""
    if args.path:
        print(path_of(args.path))
        return 0
    rows = [
        {
            "name": simulator.name,
            "built": simulator.library.exists(),
            "path": str(simulator.library),
            "settings": simulator.settings,
            "about": simulator.about,
        }
        for simulator in SIMULATORS
    ]
    if args.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print(f"{row['name']:8}  {row['about']}\n{'':10}{row['path']}")
    return 0


def path_of(name: str) -> Path:
    """Return the library of the simulator called *name*.

    Raises:
        DeviceNotFound: It was not built.
    """
    library = {simulator.name: simulator.library for simulator in SIMULATORS}[name]
    if not library.exists():
        raise DeviceNotFound(
            f"{library} does not exist",
            remedy="install a wheel of npurt, or build it: python npurt/build.py",
        )
    return library
