"""`npurt devices`: which devices this machine has, and why it lacks the others."""

import argparse
import dataclasses
import json
from typing import Any


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser("devices", help="list the devices, and why one is missing")
    parser.add_argument("--json", action="store_true", help="one JSON array instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one line a device."""
    from npurt.runtime.open.devices import devices

    rows = devices()
    if args.json:
        print(json.dumps([dataclasses.asdict(row) for row in rows]))
    else:
        for row in rows:
            print(f"{row.device:8}  {'yes' if row.found else 'no':3}  {row.detail}")
    return 0
