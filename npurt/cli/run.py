"""`npurt run`: continue a prompt."""

import argparse
import contextlib
import dataclasses
import json
import sys
from typing import Any

from npurt.cli import options


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser("run", help="continue a prompt")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("-p", "--prompt", metavar="TEXT", help="text to continue")
    source.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a file")
    options.add_model(parser)
    options.add_sampling(parser)
    parser.add_argument("--report", action="store_true", help="print the ledger at the end")
    parser.add_argument("--trace", metavar="FILE", help="write a timeline to FILE, for Perfetto")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end, no stream")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Stream the text to stdout and the account to stderr."""
    from npurt.llm.decode.model import Llama

    prompt = args.prompt if args.file is None else options.text_of(args.file)
    with Llama(options.model_path(args), **options.model(args)) as llm:
        pieces = []
        with llm.trace(args.trace) if args.trace else contextlib.nullcontext():
            for piece in llm.generate(prompt, stream=True, **options.sampling(args)):
                pieces.append(piece)
                if not args.json:
                    print(piece, end="", flush=True)
        report = llm.report()
        if args.json:
            said = llm.timing.speculation
            timing = dataclasses.asdict(llm.timing) | {
                "prefill_rate": llm.timing.prefill_rate,
                "decode_rate": llm.timing.decode_rate,
                "speculation": said.figures() if said else None,
            }
            text = "".join(pieces)
            print(
                json.dumps({"text": text, "timing": timing, "report": json.loads(report.to_json())})
            )
            return 0
        print()
        if llm.timing.finish == "context":
            print("[the context is full; use a larger -c, or --context-shift]", file=sys.stderr)
        if args.report:
            print(report.table(), file=sys.stderr)
        print(f"{llm.timing.line()}; {report.line()}", file=sys.stderr)
    return 0
