"""`npurt regcmd`: decode, check or run an RK3588 NPU program; print the program of a product."""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npurt.cli.verbs import regcmd_run


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "regcmd", help="decode, write, check or run a program of the RK3588's NPU"
    )
    kinds = parser.add_subparsers(required=True, metavar="WHAT")

    reader = kinds.add_parser(
        "decode", help="print the register and value of each word of a program"
    )
    reader.add_argument("file", type=Path, help="little-endian 64-bit words, or JSON hexadecimal; "
                        "-: standard input")  # fmt: skip
    reader.set_defaults(run=decode)

    writer = kinds.add_parser("matmul", help="print the program of one product C = A x B^T")
    for letter, meaning in (
        ("m", "rows of A and C"), ("k", "columns of A and B"), ("n", "rows of B"),
    ):  # fmt: skip
        writer.add_argument(f"--{letter}", type=int, required=True, help=meaning)
    writer.add_argument("--dtype", choices=("int8", "fp16"), default="int8", help="default: int8")
    writer.add_argument("--layout", choices=("row", "native-w", "native-h"),
                        default="row", help="layout of A and C; default: row")  # fmt: skip
    for letter, meaning in (("a", "A"), ("w", "the packed B"), ("c", "C")):
        writer.add_argument(f"--{letter}", type=regcmd_run.address, required=True, metavar="ADDR",
                            help=f"NPU address of {meaning}")  # fmt: skip
    writer.add_argument("--profile", choices=("full", "short"), default="full",
                        help="with DPU_RDMA (both drivers) or without; default: full")  # fmt: skip
    writer.set_defaults(run=matmul)

    regcmd_run.add(kinds)
    for command in (reader, writer):
        command.add_argument("--json", action="store_true", help="print one JSON object")


def decode(args: argparse.Namespace) -> int:
    """Decode and list the words of a program in a file."""
    return _print(regcmd_run.words_of(args.file), args, {})


def matmul(args: argparse.Namespace) -> int:
    """Print the program of one product, as a single task."""
    from npurt.rknpu.isa import program
    from npurt.rknpu.isa.formats import FORMATS
    from npurt.rknpu.isa.layout import Layout
    from npurt.rknpu.isa.lower import Profile
    from npurt.rknpu.isa.task import Task

    m, k, n = args.m, args.k, args.n
    task = Task(FORMATS[args.dtype], Layout(args.layout), m, k, n, rows=m, columns=k)
    words = program.single(task, args.a, args.w, args.c, Profile(args.profile))
    for one, other in _overlapping(program.spans(task, args.a, args.w, args.c)):
        print(f"npurt: warning: {one} and {other} overlap at these addresses", file=sys.stderr)
    named = ("m", "k", "n", "dtype", "layout", "profile")
    return _print(words, args, {name: getattr(args, name) for name in named})


def _overlapping(spans: dict[str, range]) -> Iterator[tuple[str, str]]:
    """Yield the names of each pair of matrices whose addresses overlap."""
    for (one, first), (other, second) in itertools.combinations(spans.items(), 2):
        if max(first.start, second.start) < min(first.stop, second.stop):
            yield one, other


def _print(words: list[int], args: argparse.Namespace, about: dict[str, Any]) -> int:
    from npurt.rknpu.isa import regcmd

    lines = [regcmd.describe(word) for word in words]
    if args.json:
        listing = [
            {"register": x.name, "value": x.value, "fields": x.fields, "reserved": x.reserved}
            for x in lines
        ]
        print(json.dumps(about | {"words": [f"{w:#018x}" for w in words], "listing": listing}))
    else:
        for i, line in enumerate(lines):
            print(f"{i:5}  {line}")
    return 0
