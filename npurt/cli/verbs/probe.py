"""`npurt probe`: a first test on an RK3588 board: compare small products with numpy."""

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from npurt.errors import UnknownDevice
from npurt.runtime.open import registry

if TYPE_CHECKING:
    from npurt.backend.probe import DeviceProbe, Outcome


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "probe",
        help="RK3588: compare small products with numpy",
        description="Exit status 0: all products are right; 1: one is not; 2: invalid usage.",
    )
    names = _names()
    parser.add_argument("-dev", "--device", default=names[0], metavar="NAME",
                        help=f"{registry.listed(names)}; default: {names[0]}")  # fmt: skip
    parser.add_argument("--unsafe", action="store_true",
                        help="also run trials that may hang the NPU until a reboot")  # fmt: skip
    parser.add_argument("--json", action="store_true",
                        help="print one JSON object instead of a table")  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the trials, and print a row after each trial."""
    backend = registry.backend_of(args.device)
    if backend is None or backend.probe is None:
        raise UnknownDevice(
            f"npurt has no trials for device {args.device!r}",
            remedy=f"use {registry.listed(_names())}",
        )
    probe = backend.probe(args.device, args.unsafe)
    outcomes: list[Outcome] = []
    for outcome in probe.outcomes:
        if not args.json and not outcomes:
            print(f"{args.device}{' (simulated)' if probe.simulated else ''}")
            print(_columns("trial", "M x K x N", "result", "wall", "driver", "model", ""))
        outcomes.append(outcome)
        if not args.json:
            print(_row(outcome), flush=True)
    right = all(outcome.state == "ok" for outcome in outcomes)
    if args.json:
        rows = [dataclasses.asdict(outcome) for outcome in outcomes]
        about = {"device": args.device, "simulated": probe.simulated, "ok": right}
        print(json.dumps(about | {"trials": rows}))
    else:
        print(_summary(outcomes, probe))
    return 0 if right else 1


def _names() -> list[str]:
    """Return the device strings of npurt's own devices that have trials."""
    rows = [each for each in registry.own_backends() if each.probe]
    return [name for each in rows for name in (each.name, *each.simulators)]


def _columns(*words: str) -> str:
    return "{:18} {:>13}  {:8} {:>8} {:>8} {:>8}  {}".format(*words).rstrip()


def _row(outcome: "Outcome") -> str:
    times = (outcome.seconds, outcome.driver_seconds, outcome.model_seconds)
    told = ["-" if seconds is None else f"{1e6 * seconds:.0f} us" for seconds in times]
    return _columns(outcome.name, outcome.shape, outcome.state, *told, outcome.what)


def _summary(outcomes: "list[Outcome]", probe: "DeviceProbe") -> str:
    bad = [outcome for outcome in outcomes if outcome.state != "ok"]
    if not bad:
        return f"all {len(outcomes)} right; {probe.times}"
    first = f"start with the first: {bad[0].name}"
    return f"{len(bad)} of {len(outcomes)} not right; {first}; {probe.times}"
