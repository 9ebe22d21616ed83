"""`npurt probe`: a first test on an RK3588 board: compare small products with numpy."""

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npurt.rknpu.doctor.probe import Outcome


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "probe",
        help="RK3588: compare small products with numpy",
        description="Exit status 0: all products are right; 1: one is not; 2: invalid usage.",
    )
    parser.add_argument("-dev", "--device", default="rknpu", metavar="NAME",
                        help="rknpu, rknpu:sim or rknpu:sim-vendor; default: rknpu")  # fmt: skip
    parser.add_argument("--unsafe", action="store_true",
                        help="also run trials that may hang the NPU until a reboot")  # fmt: skip
    parser.add_argument("--json", action="store_true",
                        help="print one JSON object instead of a table")  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the trials, and print a row after each trial."""
    from npurt.rknpu.doctor.probe import probe
    from npurt.rknpu.driver.names import connection

    system, connect = connection(args.device)
    outcomes: list[Outcome] = []
    for outcome in probe(connect, unsafe=args.unsafe):
        if not args.json and not outcomes:
            print(f"{args.device}{' (simulated)' if system.simulated else ''}")
            print(_columns("trial", "M x K x N", "result", "wall", "driver", "model", ""))
        outcomes.append(outcome)
        if not args.json:
            print(_row(outcome), flush=True)
    right = all(outcome.state == "ok" for outcome in outcomes)
    if args.json:
        rows = [dataclasses.asdict(outcome) for outcome in outcomes]
        about = {"device": args.device, "simulated": system.simulated, "ok": right}
        print(json.dumps(about | {"trials": rows}))
    else:
        print(_summary(outcomes, simulated=system.simulated))
    return 0 if right else 1


def _columns(*words: str) -> str:
    return "{:18} {:>13}  {:8} {:>8} {:>8} {:>8}  {}".format(*words).rstrip()


def _row(outcome: "Outcome") -> str:
    times = (outcome.seconds, outcome.driver_seconds, outcome.model_seconds)
    told = ["-" if seconds is None else f"{1e6 * seconds:.0f} us" for seconds in times]
    return _columns(outcome.name, outcome.shape, outcome.state, *told, outcome.what)


def _summary(outcomes: "list[Outcome]", *, simulated: bool) -> str:
    from npurt.rknpu.plan.cost import CLOCKS

    clocks = ", ".join(f"{name} {hz / 1e6:.0f} MHz" for name, hz in CLOCKS.items())
    bad = [outcome for outcome in outcomes if outcome.state != "ok"]
    times = (
        "driver and model: both the cost model's estimate, because the NPU is simulated"
        if simulated
        else "driver: the driver's measurement; model: the cost model's estimate at the clock that "
        f"the driver sets ({clocks})"
    )
    if not bad:
        return f"all {len(outcomes)} right; {times}"
    return f"{len(bad)} of {len(outcomes)} not right; start with the first: {bad[0].name}; {times}"
