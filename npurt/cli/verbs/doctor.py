"""`npurt doctor`: find the causes that prevent an NPU from running, and their remedies."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npurt.runtime.open import registry

if TYPE_CHECKING:
    from npurt.runtime.api.doctor import Diagnosis


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "doctor",
        help="find why an NPU does not run, and how to fix it",
        description="Exit status 0: an NPU can run; 1: no NPU can run; 2: invalid usage.",
    )
    parser.add_argument(
        "-dev",
        "--device",
        metavar="NAME",
        help=f"{registry.listed(registry.usual_names())} (default: all NPUs)",
    )
    parser.add_argument("--json", action="store_true",
                        help="print one JSON object with all evidence")  # fmt: skip
    parser.add_argument("--bundle", type=Path, metavar="FILE",
                        help="write the anonymised evidence to a .tar.gz file")  # fmt: skip
    parser.add_argument("--from", dest="source", type=Path, metavar="BUNDLE",
                        help="diagnose another machine from its bundle")  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Examine the devices, print the report, and write the bundle if requested."""
    from npurt.doctor import anonymous, board, bundle
    from npurt.doctor.system import Recorder, Replay
    from npurt.runtime.api import doctor

    looked_for = doctor.checklists(args.device)
    if args.source:
        system = Recorder(Replay(bundle.read(args.source)))
    else:
        system = doctor.this_machine(looked_for)
    found = doctor.examine(looked_for, system)
    settings = [] if args.source else doctor.settings()
    page = board.page(system)
    report = "\n".join(_lines(found, settings, page))
    if args.json:
        kinds = [diagnosis.as_json() for diagnosis in found]
        print(json.dumps({"kinds": kinds, "page": page, "settings": settings}))
    else:
        print(report)
    if args.bundle:
        for kind in looked_for:
            kind.collect(system)
        bundle.write(args.bundle, system.evidence, report, anonymous.secrets())
        if not args.json:
            print(f"\n{args.bundle} contains:\n{bundle.README}")
    return 0 if any(diagnosis.runs for diagnosis in found) else 1


def _lines(
    found: "list[Diagnosis]", settings: list[dict[str, Any]], page: str | None = None
) -> Iterator[str]:
    """Yield the lines of the report."""
    if settings:
        yield "settings"
    for row in settings:
        value = "" if row["value"] is None else f" = {row['value']}"
        yield f"  {row['name']}{value}  (default {row['default']!r}) {row['help']}"
    if settings:
        yield ""
    for diagnosis in found:
        yield from _diagnosis(diagnosis)
    if not any(diagnosis.runs or diagnosis.simulated for diagnosis in found):
        names = [
            f"-dev {each.simulators[0]}" for each in registry.own_backends() if each.simulators
        ]
        yield f"without an NPU, {registry.listed(names, 'and')} run everything simulated"
    if page:
        yield f"from the flashed card to the first text on this board: see {page}"


def _diagnosis(diagnosis: "Diagnosis") -> Iterator[str]:
    yield f"{diagnosis.kind}{' (simulated)' if diagnosis.simulated else ''}"
    if diagnosis.absent:
        yield f"  -     {diagnosis.absent}"
    waiting = 0
    for finding in diagnosis.findings:
        result = finding.result
        if finding.waits:
            waiting += 1
            continue
        state = result.state.upper() if result.state == "fail" else result.state
        yield f"  {state:5} {finding.check.name:13} {result.what}"
        if result.command and finding is not diagnosis.first:
            yield f"{'':21}-> {result.command}"
    if waiting:
        yield f"  -     {waiting} more checks wait until the failed checks pass"
    if diagnosis.first:
        yield f"start here: {diagnosis.first.check.name}: {diagnosis.first.result.command}"
