"""`npurt plan`: formats, bytes, errors and speed to expect of a model on an NPU."""

import argparse
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from npurt.cli import options

DEVICES = {"rknpu": "rknpu:sim"}  # and the simulator that predictions are measured on


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser("plan", help="estimate a model's size, error and speed on an NPU")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("file", nargs="?", metavar="MODEL", help=options.MODEL)
    source.add_argument("-m", "--model", dest="option", metavar="MODEL", help="the same")
    source.add_argument("-hf", "--hf-repo", dest="option", type=options.of_hub, metavar="REPO",
                        help=options.REPO)  # fmt: skip
    parser.add_argument("--device", choices=tuple(DEVICES), default="rknpu")
    parser.add_argument("--quick", action="store_true", help="do not evaluate a text in simulation")
    parser.add_argument("--graph", action="store_true", help="print the model's ops instead")
    parser.add_argument("--dot", action="store_true", help="as --graph, in Graphviz' language")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a row for each matrix, totals, and the divergence to expect; or the graph."""
    from npurt.models.location import locate

    path = locate(args.file or args.option)
    if args.graph or args.dot:
        return _print_graph(args, path)
    from npurt.llm.measure.estimate import divergence, estimates
    from npurt.llm.measure.speed import speeds

    rows = list(estimates(path))
    rates = speeds(path, rows)
    apart = None if args.quick else divergence(path, DEVICES[args.device])
    nbytes = sum(row.nbytes for row in rows)
    if args.json:
        print(json.dumps({
            "tensors": [asdict(row) for row in rows],
            "bytes": nbytes,
            "forms": Counter(row.form for row in rows),
            "divergence": asdict(apart) if apart else None,
            "speed": [asdict(each) for each in rates],
        }))  # fmt: skip
        return 0
    width = max(len(row.tensor) for row in rows)
    print(f"{'tensor':{width}}  {'N x K':>14}  {'file':6}  {'scheme':10}  {'error':>8}  {'MB':>8}")
    for row in rows:
        shape = " x ".join(map(str, row.shape))
        print(f"{row.tensor:{width}}  {shape:>14}  {row.dtype:6}  {row.form:10}  "
              f"{row.error:8.1e}  {row.nbytes / 1e6:8.2f}")  # fmt: skip
    schemes = ", ".join(f"{n} {scheme}" for scheme, n in Counter(row.form for row in rows).items())
    print(f"{len(rows)} weights ({schemes}), {nbytes / 1e6:.0f} MB on the NPU")
    print("tokens/s to expect, host included, by a model fitted to others' measurements; npurt was "
          "never timed on an NPU")  # fmt: skip
    for each in rates:
        clock = "as the driver leaves it" if each.stock else "with a frequency patch"
        print(f"  {each.driver} at {each.mhz:.0f} MHz, {clock}: prompt of {each.prompt_tokens} "
              f"{_range(each.prompt)}, decoding {_range(each.decode)}")  # fmt: skip
    if apart:
        print(f"predicted KL divergence {apart.mean:.1e} on average, {apart.worst:.1e} at most; "
              f"the same best token {100 * apart.same_best:.1f} % of the time "
              f"(simulated, {apart.tokens} tokens)")  # fmt: skip
    return 0


def _range(rates: tuple[float, float, float]) -> str:
    least, expected, most = rates
    return f"{expected:.3g} ({least:.3g} to {most:.3g})"


def _print_graph(args: argparse.Namespace, path: Path) -> int:
    from npurt.graph import render
    from npurt.llm.arch.reading import describe
    from npurt.llm.file.gguf import GGUF

    with GGUF(path) as file:
        described = describe(file)
        graph = described.graph(described.config.n_context).graph
    if args.json:
        print(json.dumps(render.as_dict(graph)))
    elif args.dot:
        print(render.dot(graph), end="")
    else:
        print("\n".join(render.lines(graph)))
    return 0
