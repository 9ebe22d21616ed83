"""`npurt convert`: convert a checkpoint to a GGUF file."""

import argparse
import os
from pathlib import Path
from typing import Any

from npurt.cli.arguments import options
from npurt.cli.verbs.quantize import TYPES, print_written
from npurt.errors import SettingError


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "convert",
        help="convert a folder of safetensors to a GGUF file",
        description="Convert a folder that transformers saved to a GGUF file: config.json, "
        "tokenizer.json and one or more *.safetensors (docs/convert.md).",
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="folder of the checkpoint")
    parser.add_argument("-o", "--output", metavar="FILE.gguf", type=Path,
                        help="the new file (default: FOLDER-TYPE.gguf beside the "
                        "folder)")  # fmt: skip
    parser.add_argument("--type", default="f16", metavar="TYPE",
                        help=f"{TYPES} (default: f16)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the file and print its size."""
    from npurt.llm.convert.folder import convert
    from npurt.llm.convert.types import chosen

    kind, folder = chosen(args.type), Path(os.path.abspath(args.folder))
    if args.output is None and not folder.name:
        raise SettingError(f"{folder} has no name for the file", remedy="name the file with -o")
    if args.output is None:
        args.output = folder.with_name(f"{folder.name}-{kind}.gguf")
    held = args.folder.iterdir() if os.path.isdir(args.folder) else ()
    options.require_output(args.output, *(file for file in held if file.suffix != ".gguf"))
    convert(args.folder, args.output, kind)
    print_written(args, {"source": str(args.folder), "type": kind})
    return 0
