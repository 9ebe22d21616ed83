"""`npurt plan`: estimate the formats, memory, errors and speed of a model on an NPU."""

import argparse
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npurt.backend import Backend
from npurt.cli.arguments import options
from npurt.runtime.open import registry

if TYPE_CHECKING:
    from npurt.graph.graph import Graph
    from npurt.llm.arch.reading import Description
    from npurt.llm.file.mapped import MappedGGUF
    from npurt.llm.measure.division import Share
    from npurt.llm.measure.estimate import Divergence, WeightEstimate
    from npurt.llm.measure.memory import MemoryNeeds
    from npurt.llm.measure.speed import Rates


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
    rounding = [each.name for each in registry.own_backends() if each.rounding]
    parser.add_argument("--device", choices=rounding, default=rounding[0])
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
        if args.graph or args.dot:
            _print_graph(args, described.graph(described.config.n_context).graph)
            return 0
        device = registry.BACKENDS[args.device]()
        plan = _planned(device, file, described, here)
    if here and not args.quick and described.config.causal:  # encoders have no logits
        from npurt.llm.measure.estimate import divergence

        plan.divergence = divergence(here, device.simulators[0])
    _print_json(plan) if args.json else _print_table(plan)
    return 0


def _planned(
    device: Backend, file: "MappedGGUF", described: "Description", path: Path | None
) -> "ModelEstimates":
    """Return the plan of a model on all devices.

    Args:
        device: The device whose rounding is estimated.
        file: The file of the model, or its header.
        described: The description in the header.
        path: The path of the file if all of it is on this machine.
    """
    from npurt.llm.measure import division, estimate
    from npurt.llm.measure.memory import needs
    from npurt.llm.measure.speed import speeds

    config = described.config
    model = described.graph(config.n_context)
    assert device.rounding
    rounding = device.rounding()
    rows = list(estimate.estimates(path, rounding) if path else estimate.expected(model, rounding))
    plan = ModelEstimates(
        device=device.name,
        downloaded=path is not None,
        memory=needs(file),
        rows=rows,
        rates={device.name: []},  # the first in the report
        host=division.host_rates(model, config),
        shares=[division.share_of_cpu(model)],
    )
    for each in registry.backends():
        if each.estimator is None:
            continue
        estimator, expected = each.estimator(), rows
        if each is device:
            nbytes = sum(row.nbytes for row in rows)
            plan.shares.append(division.share(model, estimator, nbytes))
        else:
            expected = list(estimate.expected(model, each.rounding() if each.rounding else None))
            plan.shares.append(division.share(model, estimator))
        plan.rates[each.name] = speeds(config, expected, estimator)
        plan.notes += [estimator.note] * bool(estimator.note)
    return plan


@dataclass
class ModelEstimates:
    """The estimates for a model."""

    device: str  # the device of `rows`
    downloaded: bool
    memory: "MemoryNeeds"
    rows: "list[WeightEstimate]"
    rates: "dict[str, list[Rates]]"  # by the name of the device, `device` first
    host: tuple[float, float]
    shares: "list[Share]"
    notes: list[str] = field(default_factory=list)  # ops other than products on NPUs
    divergence: "Divergence | None" = None


def _print_json(plan: ModelEstimates) -> None:
    prompt, decode = plan.host
    print(json.dumps({
        "downloaded": plan.downloaded,
        "memory": asdict(plan.memory),
        "devices": [asdict(each) for each in plan.shares],
        "tensors": [asdict(row) for row in plan.rows],
        "bytes": sum(row.nbytes for row in plan.rows),
        "forms": Counter(row.form for row in plan.rows),
        "divergence": asdict(plan.divergence) if plan.divergence else None,
        **{_key(plan, name): _as_json(rates) for name, rates in plan.rates.items()},
        "cpu_at_most": {"prompt": prompt, "decode": decode},
    }))  # fmt: skip


def _key(plan: ModelEstimates, device: str) -> str:
    """Return the key of the speed of *device* in JSON."""
    return "speed" if device == plan.device else f"{device}_speed"


def _as_json(rates: "list[Rates]") -> Any:
    """Return the rates of the boards; of a device with one board, the rates of this board."""
    made = [each.as_json() for each in rates]
    return made[0] if len(made) == 1 else made


def _print_table(plan: ModelEstimates) -> None:
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
    for rates in plan.rates.values():
        for each in rates:
            print(f"  {each.board.title}: prompt of {each.prompt_tokens} {_range(each.prompt)}, "
                  f"decoding {_range(each.decode)}")  # fmt: skip
    if apart:
        print(f"predicted KL divergence {apart.mean:.1e} on average, {apart.worst:.1e} at most; "
              f"the same most likely token {100 * apart.same_best:.1f} % of the time "
              f"(simulated, {apart.tokens} tokens)")  # fmt: skip
    if not plan.downloaded:
        print("only the header was downloaded: errors are unknown, and schemes are assumed; "
              "`npurt models fetch` downloads the model")  # fmt: skip


def _print_devices(plan: ModelEstimates) -> None:
    """Print the memory, the weights of each device, and the CPU's speed."""
    from npurt.backend.host_cost import TITLE

    need = plan.memory
    print(f"memory: {need.weights / 1e9:.2f} GB of weights, {need.kv_cache / 1e9:.2f} GB of KV "
          f"cache for {need.positions} positions; Python and the vocabulary need 0.1 to 0.2 GB "
          "more")  # fmt: skip
    total = plan.shares[0].weights
    for share in plan.shares:
        why = "; ".join(f"{n} on the CPU: {reason}" for reason, n in share.others.items())
        print(f"{share.device}: {share.weights} of {total} weights, {share.nbytes / 1e6:.0f} MB"
              + (f" ({why})" if why else ""))  # fmt: skip
    print("; ".join(["the CPU computes all other ops", *plan.notes]))
    prompt, decode = plan.host
    print(f"tokens/s of the CPU of {TITLE}, at most: prompt {prompt:.3g}, decoding "
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
