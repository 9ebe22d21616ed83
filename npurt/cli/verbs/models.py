"""`npurt models`: list the models in the catalogue and on this machine, or fetch models."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npurt.cli.arguments.options import GOES_ON, INTERRUPTED
from npurt.cli.output.tables import plain
from npurt.errors import NpurtError, SettingError

if TYPE_CHECKING:
    from npurt.models.stored import StoredModel

COLUMNS = ("name", "size", "licence", "memory", "source", "path")


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser("models", help="list or fetch models", mixed=True)
    parser.add_argument("action", nargs="?", choices=("list", "fetch"), default="list")
    parser.add_argument("names", nargs="*", metavar="NAME",
                        help="models to fetch: names of the list, hf:USER/REPO or https URLs "
                        "(default: all of the catalogue)")  # fmt: skip
    parser.add_argument("--folder", type=Path,
                        help="folder of the catalogue's models (default: NPURT_MODELS, else "
                        "models in the user's cache)")  # fmt: skip
    parser.add_argument("--yes", action="store_true",
                        help="fetch all of the catalogue without asking")  # fmt: skip
    parser.add_argument("--json", action="store_true",
                        help="print one JSON array instead of a table")  # fmt: skip
    parser.set_defaults(run=run, usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """List the models with their local paths, or fetch models and print their paths."""
    if args.action == "fetch":
        return fetch(args)
    if args.names:
        args.usage_error("only `fetch` takes names")
    from npurt.models.catalogue import ABOUT
    from npurt.models.hub import Hub
    from npurt.models.location import folders
    from npurt.models.stored import stored

    where = [args.folder] if args.folder else folders()
    rows = [row(model) for model in stored(where, None if args.folder else Hub.usual())]
    if args.json:
        print(json.dumps(rows))
        return 0
    print(plain(COLUMNS, [_cells(each) for each in rows]))
    print("\nmemory: weights and KV cache of the default context; Python and the vocabulary need "
          "0.1 to 0.2 GB more")  # fmt: skip
    print(ABOUT)
    return 0


def row(model: "StoredModel") -> dict[str, Any]:
    """Return the row of *model* in the list; unknown values are None."""
    from npurt.models.catalogue import CATALOGUE

    known = CATALOGUE.get(model.name)
    found: dict[str, Any] = {"name": model.name, "file": "", "source": model.source, "path": None}
    if known:
        return found | {
            "file": known.file,
            "bytes": known.nbytes,
            "license": known.licence,
            "memory": known.memory,
            "path": str(model.files[0]) if model.files else None,
        }
    licence, memory = _header(model.files[0])
    return found | {
        "file": model.files[0].name,
        "bytes": sum(file.stat().st_size for file in model.files),
        "license": licence,
        "memory": memory,
        "path": str(model.files[0]),
    }


def fetch(args: argparse.Namespace) -> int:
    """Fetch models and print their paths; ask the user before fetching the whole catalogue."""
    from npurt.models import catalogue
    from npurt.models.location import default_folder, locate

    folder = args.folder or default_folder()
    if not args.names and not args.yes:
        _ask(folder)
    paths = []
    for name in args.names or catalogue.CATALOGUE:
        other = ":" in name  # a model of a hub, or a URL
        try:
            paths.append(str(locate(name) if other else catalogue.fetch(name, folder)))
        except KeyboardInterrupt:
            print(GOES_ON.format(name), file=sys.stderr)
            if args.json:
                print(json.dumps({"interrupted": True, "paths": paths}))
            return INTERRUPTED
        if not args.json:
            print(paths[-1], flush=True)
    if args.json:
        print(json.dumps(paths))
    return 0


def _ask(folder: Path) -> None:
    """Ask whether to fetch the missing models of the catalogue.

    Raises:
        SettingError: The answer is not yes.
    """
    from npurt.models.catalogue import CATALOGUE, find

    missing = {name: model for name, model in CATALOGUE.items() if not find(name, folder)}
    if not missing:
        return
    total = sum(model.nbytes for model in missing.values())
    print(f"fetch {', '.join(missing)} ({_size(total)}) into {folder}? [y/N] ",
          end="", file=sys.stderr, flush=True)  # fmt: skip
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise SettingError(
            "nothing was fetched", remedy="answer y, name the models that you want, or give --yes"
        )


def _header(path: Path) -> tuple[str | None, int | None]:
    """Return the licence in a file's metadata and the model's memory; None if unknown."""
    from npurt.llm.file.gguf import GGUF
    from npurt.llm.measure.memory import memory

    licence = None
    try:
        with GGUF(path) as file:
            stated = file.metadata.get("general.license")
            licence = stated if isinstance(stated, str) else None
            return licence, memory(file)
    except NpurtError:  # list the file even if npurt does not support it
        return licence, None


def _cells(found: dict[str, Any]) -> list[str]:
    """Return a row of the table, with "-" for unknown values."""
    return [
        found["name"],
        _size(found["bytes"]),
        _shown(found["license"]),
        _size(found["memory"]),
        found["source"],
        found["path"] or "not fetched",
    ]


def _size(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / 1e9:.2f} GB"


def _shown(text: str | None) -> str:
    """Return up to 20 printable characters of *text*, or "-" if *text* is empty or None."""
    return "".join(c for c in text if c.isprintable())[:20] if text else "-"
