"""`npurt devices`: list the devices of this machine, and why others are missing."""

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npurt.runtime.open.devices import Found


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser("devices", help="list the devices, and why one is missing")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON array instead of a table"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one line per device."""
    from npurt.runtime.open.devices import devices
    from npurt.runtime.open.registry import simulators

    rows = devices()
    if args.json:
        print(json.dumps([dataclasses.asdict(row) for row in rows]))
    else:
        for row in rows:
            print(f"{row.device:8}  {'yes' if row.found else 'no':3}  {_short(row)}")
        print(f"simulated, for tests: {', '.join(simulators())}", file=sys.stderr)
        if not all(row.found for row in rows):
            print("npurt doctor shows what is missing, and how to fix it", file=sys.stderr)
    return 0


def _short(row: "Found") -> str:
    """Return the description of a device, or the first reason for its absence."""
    detail = row.detail.removeprefix(f"device {row.device!r} cannot be used: ")
    return detail if row.found else detail.partition("; ")[0]
