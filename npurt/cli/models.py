"""`npurt models`: list and fetch known models."""

import argparse
import json
from pathlib import Path
from typing import Any

from npurt.settings import MODELS, read


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser("models", help="list or fetch known models")
    parser.add_argument("action", nargs="?", choices=("list", "fetch"), default="list")
    parser.add_argument("names", nargs="*", metavar="NAME", help="models to fetch; none: all")
    parser.add_argument("--folder", type=Path, help="where they are kept (NPURT_MODELS)")
    parser.add_argument("--json", action="store_true", help="one JSON array instead of a table")
    parser.set_defaults(run=run, usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """List the catalogue with what is already there, or fetch and print paths."""
    from npurt import models

    folder = args.folder or Path(read(MODELS, str))
    if args.action == "fetch":
        paths = []
        for name in args.names or models.CATALOGUE:
            paths.append(str(models.fetch(name, folder)))
            if not args.json:
                print(paths[-1])
        if args.json:
            print(json.dumps(paths))
        return 0
    if args.names:
        args.usage_error("only `fetch` takes names")
    rows = []
    for name, model in models.CATALOGUE.items():
        here = models.find(name, folder)
        rows.append({"name": name, "file": model.file, "path": str(here) if here else None})
    if args.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print(f"{row['name']:20}  {row['path'] or 'not fetched'}")
    return 0
