"""`npurt quantize`: write a GGUF file again with another type."""

import argparse
import json
from pathlib import Path
from typing import Any

from npurt.cli.arguments import options

TYPES = (
    "f32, f16, bf16, q8_0, q6_k, q5_k, q5_1, q5_0, q4_k, q4_1, q4_0, iq4_nl or mxfp4; or of mixed "
    "types as llama.cpp's: q5_k_m, q5_k_s, q4_k_m, q4_k_s or mxfp4_moe"
)


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "quantize",
        help="write a GGUF file again with another type",
        description="Write a GGUF file again with another type.  All matrices get it; a mixed type "
        "gives some of them more bits, as in llama.cpp.  Norms and other vectors stay float32, and "
        "the output matrix gets Q6_K when the type has less than 8 bits (docs/convert.md).",
    )
    parser.add_argument("file", metavar="MODEL", help=options.MODEL)
    parser.add_argument("output", metavar="OUT.gguf", type=Path, help="the new file")
    parser.add_argument("type", metavar="TYPE", help=TYPES)
    parser.add_argument("--tensor-type", metavar="PATTERN=TYPE", action="append", default=[],
                        help="type of the matrices whose names have PATTERN, a regular expression; "
                        "may be repeated, the first that fits counts")  # fmt: skip
    parser.add_argument("--imatrix", metavar="FILE", type=Path,
                        help="importance matrix of llama-imatrix: errors of columns that matter "
                        "more are made smaller")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object when it is done")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the file and print its size."""
    from npurt.llm.convert.mixture import Override
    from npurt.llm.convert.requantise import requantise
    from npurt.llm.convert.types import chosen

    kind = chosen(args.type)  # before a download
    overrides = [Override.parse(text) for text in args.tensor_type]
    source = options.located(args.file)
    options.require_output(args.output, source)
    again = requantise(source, args.output, kind, overrides=overrides,
                       importance=args.imatrix)  # fmt: skip
    print_written(args, {"source": str(source), "type": kind, "quantised_before": again})
    return 0


def print_written(args: argparse.Namespace, told: dict[str, Any]) -> None:
    """Print path and size of the new file ``args.output``: a line, or JSON with *told*."""
    nbytes = args.output.stat().st_size
    if args.json:
        print(json.dumps({"path": str(args.output), "bytes": nbytes, **told}))
    else:
        print(f"{args.output}: {nbytes / 1e6:.1f} MB, {told['type']}")
