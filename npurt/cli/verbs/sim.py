"""`npurt sim`: list the driver simulators, or run a program on one."""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from npurt.base.library import path_of
from npurt.errors import DeviceNotFound, NpurtError
from npurt.settings import SIM_FASTRPC, SIM_RKNPU, preloading


@dataclass(frozen=True, slots=True)
class Simulator:
    """A library that simulates a driver."""

    name: str
    library: str  # path relative to the package
    settings: str  # name of the simulator's environment variable
    about: str


SIMULATORS = (
    Simulator(
        "fastrpc",
        "hexagon/sim/libcdsprpc_sim.so",
        SIM_FASTRPC,
        "Qualcomm CDSP: libcdsprpc's interface; skels run under qemu-hexagon",
    ),
    Simulator(
        "rknpu",
        "rknpu/sim/librknpu_sim.so",
        SIM_RKNPU,
        "RK3588 NPU: the ioctls of the rocket and rknpu drivers, preloaded",
    ),
)
PRELOADED = "rknpu"  # simulates device nodes, so any program can run on it unchanged


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser("sim", help="list the driver simulators, or run a program on one")
    names = [simulator.name for simulator in SIMULATORS]
    parser.add_argument("--path", choices=names, help="print the path of a simulator's library")
    parser.add_argument("--json", action="store_true",
                        help="print one JSON array instead of a table")  # fmt: skip
    parser.add_argument(
        "command",
        nargs="*",
        metavar="-- PROGRAM ...",
        help="run this program on a simulated RK3588 of its own",
    )
    parser.set_defaults(run=run, usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Print a simulator's path, or list the simulators, or run a program on one."""
    if args.command and (args.path or args.json):
        args.usage_error("a program cannot be combined with --path or --json")
    if args.command:
        run_program(args.command)
    if args.path:
        print(built(args.path))
        return 0
    rows = [
        {
            "name": simulator.name,
            "built": path_of(simulator.library).exists(),
            "path": str(path_of(simulator.library)),
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


def run_program(command: Sequence[str]) -> NoReturn:
    """Replace this process with *command*, with the RK3588 simulator preloaded.

    Raises:
        DeviceNotFound: The simulator was not built.
        NpurtError: The program cannot be run.
    """
    environment = preloading(str(built(PRELOADED)))
    try:
        os.execvpe(command[0], list(command), environment)
    except OSError as error:
        raise NpurtError(
            f"cannot run {command[0]}: {error.strerror}",
            remedy="name a program on PATH or by its path, after --",
        ) from error


def built(name: str) -> Path:
    """Return the library of the simulator *name*.

    Raises:
        DeviceNotFound: The library was not built.
    """
    libraries = {simulator.name: simulator.library for simulator in SIMULATORS}
    library = path_of(libraries[name])
    if not library.exists():
        raise DeviceNotFound(
            f"{library} does not exist",
            remedy="install a wheel of npurt, or build it: python -m tools.build",
        )
    return library
