"""`npurt convert`: make a GGUF file of a checkpoint."""

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
        help="make a GGUF file of a folder of safetensors",
        description="Make a GGUF file of the folder that transformers saves: config.json, "
        "tokenizer.json and *.safetensors, also in several files (docs/convert.md).",
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="the checkpoint")
    parser.add_argument("-o", "--output", metavar="FILE.gguf", type=Path,
                        help="usually FOLDER-TYPE.gguf beside the folder")  # fmt: skip
    parser.add_argument("--type", default="f16", metavar="TYPE",
                        help=f"{TYPES}; usually f16")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object when it is done")
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
