"""`npurt bench`: tokens per second, as in llama-bench; `npurt bench matmul`: one matrix product."""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from npurt.cli.arguments import options
from npurt.cli.output.tables import markdown

PROMPTS = (512,)
DRAFT_LENGTHS = (1, 2, 3, 4, 6, 8)
COLUMNS = ("model", "size", "params", "device", "threads", "test", "t/s", "+-")


def add(verbs: Any) -> None:
    """Add the verb and its subcommand matmul."""
    parser = verbs.add_parser("bench", help="measure prefill, decode or one matrix product")
    parser.add_argument("-m", "--model", action="append", default=[], metavar="FILE",
                        help=f"{options.MODEL}; may be repeated")  # fmt: skip
    parser.add_argument("-hf", "--hf-repo", dest="model", action="append", type=options.of_hub,
                        metavar="REPO", help=options.REPO)  # fmt: skip
    parser.add_argument("-p", "--n-prompt", "--prompt", type=_counts, metavar="N[,N]",
                        help="tokens of each prefill test; 0: none (default: 512)")  # fmt: skip
    parser.add_argument("-n", "--n-gen", "--gen", type=_counts, default="128", metavar="N[,N]",
                        help="tokens of each decode test; 0: none")  # fmt: skip
    parser.add_argument("-d", "--n-depth", type=int, default=0, metavar="N",
                        help="tokens in the KV cache before each test")  # fmt: skip
    parser.add_argument("-r", "--repetitions", type=int, default=5, metavar="N",
                        help="runs of each test")  # fmt: skip
    parser.add_argument("--parallel", type=_positive, metavar="N[,N]",
                        help="numbers of concurrent sequences to measure, such as "
                        "1,2,4,8")  # fmt: skip
    parser.add_argument("--shared-prefix", type=int, metavar="N",
                        help="with --parallel: number of first tokens that all prompts "
                        "share")  # fmt: skip
    options.add_device(parser)
    options.add_compute(parser)
    parser.add_argument("--report", action="store_true",
                        help="also print which device computed what")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print a JSON list of rows")
    parser.add_argument("--compare", metavar="FILE",
                        help="print ratios to the rows of an earlier --json run")  # fmt: skip
    _add_spec(parser.add_argument_group("speculative decoding"))
    parser.set_defaults(run=run, usage_error=parser.error)
    _add_matmul(parser.add_subparsers(metavar="[matmul]"))


def _add_spec(group: Any) -> None:
    group.add_argument("--spec", action="store_true",
                       help="measure several draft lengths with four prompts; needs "
                       "-md")  # fmt: skip
    options.add_draft(group)
    group.add_argument("-devd", "--device-draft", metavar="NAME",
                       help="device of a draft model (default: cpu)")  # fmt: skip
    group.add_argument("--draft-n", type=_positive, metavar="N[,N]",
                       help="tokens per draft (default: 1,2,3,4,6,8; with --parallel: up to "
                       "8)")  # fmt: skip
    group.add_argument("--plot", metavar="FILE",
                       help="plot the speedups to a PNG, SVG or PDF file")  # fmt: skip


def _add_matmul(verbs: Any) -> None:
    parser = verbs.add_parser("matmul", help="measure one product y[m, n] = x[m, k] w[n, k]^T")
    for size in "mkn":
        parser.add_argument(f"--{size}", type=int, required=True, metavar="N",
                            help=f"size {size} of the shapes")  # fmt: skip
    parser.add_argument("--type", type=_format, default="q4_0", metavar="FORMAT",
                        help="format of w; i8: int8 by int8, exact on the CPU; on an NPU, int8 "
                        "weights with a scale for each row")  # fmt: skip
    parser.add_argument("-dev", "--device", metavar="NAME", help=options.DEVICE)
    parser.add_argument("-t", "--threads", type=options.number, metavar="N",
                        help=options.THREADS)  # fmt: skip
    parser.add_argument("-r", "--repetitions", type=int, default=20, metavar="N",
                        help="runs of the product")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_matmul)


def _counts(text: str) -> list[int]:
    """Parse a list of counts such as ``128,512``; drop zeros."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of counts such as 128,512")
    return [int(part) for part in parts if int(part)]


def _positive(text: str) -> list[int]:
    """Parse a list of counts of at least 1, such as ``1,4,8``."""
    if len(counts := _counts(text)) <= text.count(","):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of counts of at least 1")
    return counts


def _format(text: str) -> str:
    """Parse the name of a format, or ``i8``."""
    from npurt.quant.types import BY_NAME
    from npurt.runtime.api.bench import INTEGER

    if text.lower() not in (INTEGER, *BY_NAME):
        raise argparse.ArgumentTypeError(
            f"there is no format {text!r}; choose {INTEGER} or one of {', '.join(BY_NAME)}"
        )
    return text.lower()


def run(args: argparse.Namespace) -> int:
    """Measure every model and print a table, JSON, or the ratio to an earlier run."""
    from npurt.llm.measure.bench import bench

    if not args.model:
        args.usage_error("the following arguments are required: -m/--model")
    if args.parallel is not None or args.shared_prefix is not None:
        return run_parallel(args)
    if args.spec or args.draft or args.plot or args.device_draft or args.draft_n is not None:
        return run_spec(args)
    before = rows_of(args.compare) if args.compare else {}
    rows: list[dict[str, Any]] = []

    def measure() -> None:
        for name in args.model:
            _, report = bench(
                options.located(name),
                prompts=PROMPTS if args.n_prompt is None else args.n_prompt,
                generations=args.n_gen,
                depth=args.n_depth,
                repetitions=args.repetitions,
                on_row=rows.append,
                **options.compute(args),
            )
            if args.report:
                print(report.table(), file=sys.stderr)

    status = _run(args, measure, rows, table)
    if args.compare:
        print(compare(rows, before), file=sys.stderr if args.json else sys.stdout)
    return status


def run_parallel(args: argparse.Namespace) -> int:
    """Measure one model with several concurrent sequences."""
    from npurt.cli.output import parallel_table
    from npurt.llm.measure.parallel import bench_parallel

    prompts = PROMPTS if args.n_prompt is None else args.n_prompt
    if args.parallel is None or (len(args.model), len(prompts), len(args.n_gen)) != (1, 1, 1):
        args.usage_error("--parallel needs one -m/--model, one -p/--n-prompt and one -n/--n-gen")
    if args.compare or args.n_depth or args.spec or args.plot:
        args.usage_error("--parallel cannot be used with --compare, -d/--n-depth, --spec or --plot")
    if args.draft_n is not None and len(args.draft_n) != 1:
        args.usage_error("--parallel needs one --draft-n: the maximum number of tokens per draft")
    rows: list[dict[str, Any]] = []

    def measure() -> None:
        _, report = bench_parallel(
            options.located(args.model[0]),
            parallel=args.parallel,
            prompt=prompts[0],
            generated=args.n_gen[0],
            shared=args.shared_prefix or 0,
            repetitions=args.repetitions,
            draft=args.draft and options.draft_path(args.draft),
            draft_max=args.draft_n[0] if args.draft_n else None,
            draft_device=args.device_draft,
            on_row=rows.append,
            progress=False,
            **options.compute(args),
        )
        print(report.table() if args.report else "\n".join(report.notes), file=sys.stderr)

    return _run(args, measure, rows, parallel_table.table)


def run_spec(args: argparse.Namespace) -> int:
    """Measure one model with one draft, prompt by prompt."""
    from npurt.cli.output import spec_table
    from npurt.llm.measure.speculation import bench_spec

    if not (args.spec and args.draft) or len(args.model) != 1 or len(args.n_gen) != 1:
        args.usage_error("--spec needs one -m/--model, one -md/--draft and one -n/--n-gen")
    if args.compare or args.report or args.n_depth or args.n_prompt is not None:
        args.usage_error(
            "--spec cannot be used with --compare, --report, -d/--n-depth or -p/--n-prompt"
        )
    if args.plot:
        options.require_apart(args.plot, args.model[0], args.draft)
        spec_table.require_plot(args.plot)
    rows: list[dict[str, Any]] = []

    def measure() -> None:
        bench_spec(
            options.located(args.model[0]),
            options.draft_path(args.draft),
            numbers=DRAFT_LENGTHS if args.draft_n is None else args.draft_n,
            tokens=args.n_gen[0],
            repetitions=args.repetitions,
            on_rows=rows.extend,
            draft_device=args.device_draft,
            **options.compute(args),
        )

    status = _run(args, measure, rows, spec_table.table)
    if args.plot and rows:
        spec_table.plot(rows, args.plot)
    return status


def _run(
    args: argparse.Namespace,
    measure: Callable[[], None],
    rows: list[dict[str, Any]],
    table: Callable[[list[dict[str, Any]]], str],
) -> int:
    """Call *measure*, print *rows* even after Ctrl-C, and return the exit status."""
    interrupted = False
    try:
        measure()
    except KeyboardInterrupt:
        interrupted = True
    if args.json:
        print(json.dumps({"interrupted": True, "rows": rows} if interrupted else rows))
    elif rows:
        print(table(rows))
    if not interrupted:
        return 0
    print(f"[stopped; finished rows: {len(rows)}]", file=sys.stderr)
    return options.INTERRUPTED


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a markdown table."""
    lines = []
    for row in rows:
        lines.append(
            (
                row["model"],
                f"{row['size'] / 2**20:.2f} MiB",
                f"{row['parameters'] / 1e6:.2f} M",
                row["device"],
                str(row["threads"]),
                row["test"],
                f"{row['tokens_per_second']:.2f}",
                f"{row['deviation']:.2f}",
            )
        )
    return markdown(COLUMNS, lines)


def rows_of(path: str) -> dict[tuple[str, str], float]:
    """Return the tokens per second of each (model, test) in the file *path*.

    Raises:
        NpurtError: The file cannot be read, or does not contain rows of ``bench --json``.
    """
    from npurt.base.files import parsed
    from npurt.cli.arguments.options import text_of
    from npurt.errors import NpurtError

    try:
        return {
            (r["model"], r["test"]): float(r["tokens_per_second"]) for r in parsed(text_of(path))
        }
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise NpurtError(
            f"{path} does not contain rows of `npurt bench --json`",
            remedy="make it with: npurt bench -m FILE --json > FILE.json",
        ) from error


def compare(rows: list[dict[str, Any]], before: dict[tuple[str, str], float]) -> str:
    """Return a line for each test with the ratio of its rate in *rows* to its rate in *before*."""
    lines = []
    for row in rows:
        then, now = before.get((row["model"], row["test"])), row["tokens_per_second"]
        said = f"{then:.2f} -> {now:.2f}, ratio {now / then:.3f}" if then else "not in the file"
        lines.append(f"{row['model']} {row['test']}: {said}")
    return "\n".join(lines)


def run_matmul(args: argparse.Namespace) -> int:
    """Measure one matrix product."""
    from npurt.runtime.api.bench import bench_matmul

    row = bench_matmul(
        args.m,
        args.k,
        args.n,
        args.type,
        device=args.device,
        threads=args.threads,
        repetitions=args.repetitions,
    )
    if args.json:
        print(json.dumps(row))
    else:
        for name, value in row.items():
            print(f"{name:8}  {value}")
    return 0
