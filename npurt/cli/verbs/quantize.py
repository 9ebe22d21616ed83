"""`npurt quantize`: convert a GGUF file to another type."""

import argparse
import json
from pathlib import Path
from typing import Any

from npurt.cli.arguments import options

TYPES = (
    "f32, f16, bf16, q8_0, q6_k, q5_k, q5_1, q5_0, q4_k, q4_1, q4_0, iq4_nl or mxfp4; or a mixed "
    "type of llama.cpp: q5_k_m, q5_k_s, q4_k_m, q4_k_s or mxfp4_moe"
)


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "quantize",
        help="convert a GGUF file to another type",
        description="Convert the matrices of a GGUF file to another type.  A mixed type uses more "
        "bits for some matrices, as in llama.cpp.  Norms and other vectors are kept in float32.  "
        "The output matrix becomes Q6_K if the type has less than 8 bits (docs/convert.md).",
    )
    parser.add_argument("file", metavar="MODEL", help=options.MODEL)
    parser.add_argument("output", metavar="OUT.gguf", type=Path, help="the new file")
    parser.add_argument("type", metavar="TYPE", help=TYPES)
    parser.add_argument("--tensor-type", metavar="PATTERN=TYPE", action="append", default=[],
                        help="type of the matrices whose names contain a match of PATTERN, a "
                        "regular expression; may be repeated, the first match decides")  # fmt: skip
    parser.add_argument("--imatrix", metavar="FILE", type=Path,
                        help="importance matrix of llama-imatrix, which weights the errors of "
                        "columns")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the file and print its size."""
    from npurt.llm.convert.mixture import Override
    from npurt.llm.convert.requantise import requantise
    from npurt.llm.convert.types import chosen

    kind = chosen(args.type)  # check the type before a download
    overrides = [Override.parse(text) for text in args.tensor_type]
    source = options.located(args.file)
    options.require_output(args.output, source)
    again = requantise(source, args.output, kind, overrides=overrides,
                       importance=args.imatrix)  # fmt: skip
    print_written(args, {"source": str(source), "type": kind, "quantised_before": again})
    return 0


def print_written(args: argparse.Namespace, told: dict[str, Any]) -> None:
    """Print the path and size of ``args.output`` as a line, or as JSON with the fields *told*."""
    nbytes = args.output.stat().st_size
    if args.json:
        print(json.dumps({"path": str(args.output), "bytes": nbytes, **told}))
    else:
        print(f"{args.output}: {nbytes / 1e6:.1f} MB, {told['type']}")
