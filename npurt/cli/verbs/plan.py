"""`npurt plan`: estimate the formats, memory, errors and speed of a model on an NPU."""

import argparse
import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npurt.cli.arguments import options

if TYPE_CHECKING:
    from npurt.graph.graph import Graph
    from npurt.llm.measure.division import Share
    from npurt.llm.measure.estimate import Divergence, WeightEstimate
    from npurt.llm.measure.hexagon_speed import HexagonRates
    from npurt.llm.measure.memory import Memory
    from npurt.llm.measure.speed import Rates

DEVICES = {"rknpu": "rknpu:sim"}  # device -> simulator that measures its divergence


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "plan",
        help="estimate a model's memory, error and speed on an NPU",
        description="Estimate a model's memory, error and speed on an NPU.  If the model is on a "
        "server (https URL, hf:USER/REPO), only its header is downloaded.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("file", nargs="?", metavar="MODEL", help=options.MODEL)
    source.add_argument("-m", "--model", dest="option", metavar="MODEL",
                        help="the same as MODEL")  # fmt: skip
    source.add_argument("-hf", "--hf-repo", dest="option", type=options.of_hub, metavar="REPO",
                        help=options.REPO)  # fmt: skip
    parser.add_argument("--device", choices=tuple(DEVICES), default="rknpu")
    parser.add_argument("--quick", action="store_true",
                        help="do not measure the divergence in the simulator")  # fmt: skip
    parser.add_argument("--graph", action="store_true",
                        help="print the model's graph of ops instead")  # fmt: skip
    parser.add_argument("--dot", action="store_true",
                        help="print the graph in Graphviz' language")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a row for each matrix, the totals and the predicted divergence, or print the graph.

    If the model is on a server, only its header is downloaded.
    """
    from npurt.llm.arch.reading import describe
    from npurt.llm.file.gguf import GGUF
    from npurt.llm.file.remote import RemoteGGUF
    from npurt.models.location import look_up

    with options.goes_on(args.file or args.option):
        source = look_up(args.file or args.option)
    here = source if isinstance(source, Path) else None
    with GGUF(source) if isinstance(source, Path) else RemoteGGUF(source) as file:
        described = describe(file)
        model = described.graph(described.config.n_context)
        if args.graph or args.dot:
            _print_graph(args, model.graph)
            return 0
        from npurt.llm.measure import division, estimate
        from npurt.llm.measure.hexagon_speed import hexagon_speed
        from npurt.llm.measure.memory import needs
        from npurt.llm.measure.speed import speeds

        rows = list(estimate.estimates(here) if here else estimate.expected(model))
        plan = Plan(
            downloaded=here is not None,
            memory=needs(file),
            rows=rows,
            rates=speeds(described.config, rows),
            hexagon=hexagon_speed(described.config, rows),
            host=division.host_rates(model, described.config),
            shares=division.shares(model, rows),
        )
    if here and not args.quick and described.config.causal:  # encoders have no logits
        plan.divergence = estimate.divergence(here, DEVICES[args.device])
    _print_json(plan) if args.json else _print_table(plan)
    return 0


@dataclass
class Plan:
    """The estimates for a model."""

    downloaded: bool
    memory: "Memory"
    rows: "list[WeightEstimate]"
    rates: "list[Rates]"
    hexagon: "HexagonRates"
    host: tuple[float, float]
    shares: "list[Share]"
    divergence: "Divergence | None" = None


def _print_json(plan: Plan) -> None:
    prompt, decode = plan.host
    print(json.dumps({
        "downloaded": plan.downloaded,
        "memory": asdict(plan.memory),
        "devices": [asdict(each) for each in plan.shares],
        "tensors": [asdict(row) for row in plan.rows],
        "bytes": sum(row.nbytes for row in plan.rows),
        "forms": Counter(row.form for row in plan.rows),
        "divergence": asdict(plan.divergence) if plan.divergence else None,
        "speed": [asdict(each) for each in plan.rates],
        "hexagon_speed": asdict(plan.hexagon),
        "cpu_at_most": {"prompt": prompt, "decode": decode},
    }))  # fmt: skip


def _print_table(plan: Plan) -> None:
    rows, apart = plan.rows, plan.divergence
    nbytes = sum(row.nbytes for row in rows)
    width = max(len(row.tensor) for row in rows)
    print(f"{'tensor':{width}}  {'N x K':>14}  {'file':6}  {'scheme':10}  {'error':>8}  {'MB':>8}")
    for row in rows:
        shape = " x ".join(map(str, row.shape))
        error = "-" if row.error is None else f"{row.error:.1e}"
        print(f"{row.tensor:{width}}  {shape:>14}  {row.dtype:6}  {row.form:10}  "
              f"{error:>8}  {row.nbytes / 1e6:8.2f}")  # fmt: skip
    _print_devices(plan)
    schemes = ", ".join(f"{n} {scheme}" for scheme, n in Counter(row.form for row in rows).items())
    print(f"{len(rows)} weights ({schemes}), {nbytes / 1e6:.0f} MB on the NPU")
    print("expected tokens/s, including the host's work: estimates of cost models that were "
          "fitted to published measurements; npurt was never timed on an NPU")  # fmt: skip
    for each in plan.rates:
        clock = "the driver's clock" if each.stock else "with a frequency patch"
        print(f"  {each.driver} at {each.mhz:.0f} MHz, {clock}: prompt of {each.prompt_tokens} "
              f"{_range(each.prompt)}, decoding {_range(each.decode)}")  # fmt: skip
    dsp = plan.hexagon
    print(f"  Hexagon v{dsp.arch} of a {dsp.board}, {dsp.threads} threads at {dsp.mhz:.0f} MHz: "
          f"prompt of {dsp.prompt_tokens} {_range(dsp.prompt)}, "
          f"decoding {_range(dsp.decode)}")  # fmt: skip
    if apart:
        print(f"predicted KL divergence {apart.mean:.1e} on average, {apart.worst:.1e} at most; "
              f"the same most likely token {100 * apart.same_best:.1f} % of the time "
              f"(simulated, {apart.tokens} tokens)")  # fmt: skip
    if not plan.downloaded:
        print("only the header was downloaded: errors are unknown, and schemes are assumed; "
              "`npurt models fetch` downloads the model")  # fmt: skip


def _print_devices(plan: Plan) -> None:
    """Print the memory, the weights of each device, and the CPU's speed."""
    need = plan.memory
    print(f"memory: {need.weights / 1e9:.2f} GB of weights, {need.kv_cache / 1e9:.2f} GB of KV "
          f"cache for {need.positions} positions; Python and the vocabulary need 0.1 to 0.2 GB "
          "more")  # fmt: skip
    total = plan.shares[0].weights
    for share in plan.shares:
        why = "; ".join(f"{n} on the CPU: {reason}" for reason, n in share.others.items())
        print(f"{share.device}: {share.weights} of {total} weights, {share.nbytes / 1e6:.0f} MB"
              + (f" ({why})" if why else ""))  # fmt: skip
    print("the CPU computes all other ops; a Hexagon also computes delta nets")
    prompt, decode = plan.host
    print(f"tokens/s of the CPU of an RK3588 (four A76), at most: prompt {prompt:.3g}, decoding "
          f"{decode:.3g}")  # fmt: skip


def _range(rates: tuple[float, float, float]) -> str:
    minimum, expected, maximum = rates
    return f"{expected:.3g} ({minimum:.3g} to {maximum:.3g})"


def _print_graph(args: argparse.Namespace, graph: "Graph") -> None:
    from npurt.graph import render

    if args.json:
        print(json.dumps(render.as_dict(graph)))
    elif args.dot:
        print(render.dot(graph), end="")
    else:
        print("\n".join(render.lines(graph)))
