"""Ollama's verbs for models: `npurt list`, `ps`, `show`, `pull` and `rm`."""

import argparse
import datetime
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npurt.cli.output.tables import plain
from npurt.cli.verbs import models
from npurt.errors import DownloadError, NpurtError, SettingError

if TYPE_CHECKING:
    from npurt.models.stored import StoredModel

HUBS = ("hf.co/", "huggingface.co/", "https://huggingface.co/")  # before USER/REPO, as for Ollama
URL = "http://127.0.0.1:8080"
SECONDS = 10.0  # timeout for a server that sends nothing
FACTS = (
    "context_length",
    "embedding_length",
    "block_count",
    "attention.head_count",
    "expert_count",
)


def add(verbs: Any) -> None:
    """Add the verbs."""
    for name in ("list", "ls"):
        parser = verbs.add_parser(name, help="list the models on this machine")
        parser.add_argument("--json", action="store_true", help="print one JSON array")
        parser.set_defaults(run=list_models)
    parser = verbs.add_parser("ps", help="list the loaded models of a server")
    parser.add_argument("--url", default=URL, help="URL of the server")
    parser.add_argument("--json", action="store_true", help="print the server's answer")
    parser.set_defaults(run=running)
    parser = verbs.add_parser("show", help="describe a model file")
    parser.add_argument("name", metavar="NAME", help="name of `npurt list`, or a file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=show)
    parser = verbs.add_parser("pull", help="download models", mixed=True)
    parser.add_argument("names", nargs="+", metavar="NAME",
                        help="name of `npurt models`, hf:USER/REPO[:QUANT] or "
                        "https URL")  # fmt: skip
    parser.add_argument("--folder", type=Path, help="folder of the catalogue's models")
    parser.add_argument("--json", action="store_true", help="print one JSON array of paths")
    parser.set_defaults(run=pull)
    parser = verbs.add_parser("rm", help="delete downloaded models")
    parser.add_argument("names", nargs="+", metavar="NAME", help="name of `npurt list`")
    parser.set_defaults(run=remove)


def _here() -> "list[StoredModel]":
    """Return the models on this machine."""
    from npurt.models.hub import Hub
    from npurt.models.location import folders
    from npurt.models.stored import stored

    return [model for model in stored(folders(), Hub.usual()) if model.files]


def list_models(args: argparse.Namespace) -> int:
    """Print name, size, date and path of each model."""
    rows: list[dict[str, Any]] = [
        {
            "name": model.name,
            "bytes": sum(file.stat().st_size for file in model.files),
            "modified": model.files[0].stat().st_mtime,
            "path": str(model.files[0]),
        }
        for model in _here()
    ]
    if args.json:
        print(json.dumps(rows))
        return 0
    shown = [
        [row["name"], f"{row['bytes'] / 1e9:.2f} GB", _day(row["modified"]), row["path"]]
        for row in rows
    ]
    print(plain(["name", "size", "modified", "path"], shown))
    if not rows:
        print("there are no models on this machine; npurt models lists some, and npurt pull NAME "
              "downloads one", file=sys.stderr)  # fmt: skip
    return 0


def _day(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d")


def running(args: argparse.Namespace) -> int:
    """Print the loaded models of a server.

    Raises:
        DownloadError: The server cannot be reached, or is no server of npurt or Ollama.
    """
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"{args.url.rstrip('/')}/api/ps", timeout=SECONDS) as answer:
            found = json.load(answer)["models"]
        rows = [
            [str(each["name"]), f"{each.get('size', 0) / 1e9:.2f} GB", str(each.get("details", {})
             .get("quantization_level", "-"))]
            for each in found
        ]  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DownloadError(
            f"{args.url} lists no models: {error}",
            remedy="start a server with npurt serve -m NAME, and give its URL with --url",
        ) from error
    print(json.dumps(found) if args.json else plain(["name", "size", "type"], rows))
    return 0


def _find(name: str) -> "StoredModel":
    """Return the model *name* on this machine: its name, path, or the end of a hub's name.

    Raises:
        SettingError: There is no such model.
    """
    wanted = _reference(name)
    known = _here()
    for model in known:
        if wanted in (model.name, str(model.files[0])) or (
            model.source == "hub" and model.name.startswith((f"{wanted}/", f"{wanted}:"))
        ):
            return model
    raise SettingError(
        f"there is no model {name} on this machine",
        remedy=f"choose one of {', '.join(model.name for model in known)}"
        if known
        else "npurt models lists models, and npurt pull NAME downloads one",
    )


def _reference(name: str) -> str:
    """Return *name* with the prefix hf: instead of a hub's address; see `catalogue.named`."""
    from npurt.models.catalogue import named

    for start in HUBS:
        if name.startswith(start):
            return f"hf:{name.removeprefix(start)}"
    return named(name)


def show(args: argparse.Namespace) -> int:
    """Print the facts in a model's metadata."""
    from npurt.llm.file.gguf import GGUF
    from npurt.llm.measure.memory import memory

    path = Path(args.name) if os.path.exists(args.name) else _find(args.name).files[0]
    with GGUF(path) as file:
        keys, arch = file.metadata, file.architecture
        types: dict[str, int] = {}
        for info in file.tensors.values():
            types[info.format.name] = types.get(info.format.name, 0) + info.nbytes
        facts = {
            "file": str(path),
            "name": keys.get("general.name"),
            "architecture": arch,
            "bytes": sum(part.stat().st_size for part in file.paths),
            "weights": f"{_elements(file) / 1e6:.0f} million",
            "types": ", ".join(sorted(types, key=lambda name: -types[name])),
            **{key: keys.get(f"{arch}.{key}") for key in FACTS},
            "vocabulary": len(keys.get("tokenizer.ggml.tokens", ())),
            "chat template": "tokenizer.chat_template" in keys,
            "licence": keys.get("general.license"),
        }
        try:
            facts["memory"] = f"{memory(file) / 1e9:.2f} GB"
        except NpurtError as error:
            facts["memory"] = f"npurt does not run this model: {error.what}"
    known = {k: v for k, v in facts.items() if isinstance(v, str | int | float) and v != ""}
    if args.json:
        print(json.dumps(known))
        return 0
    for key, value in known.items():
        text = {True: "yes", False: "no"}.get(value) if isinstance(value, bool) else str(value)
        print(f"{key:22} {''.join(c for c in str(text) if c.isprintable())}")
    return 0


def _elements(file: Any) -> int:
    import math

    return sum(math.prod(info.shape) for info in file.tensors.values())


def pull(args: argparse.Namespace) -> int:
    """Download models, as `npurt models fetch`."""
    args.names, args.yes = [_reference(name) for name in args.names], True
    return models.fetch(args)


def remove(args: argparse.Namespace) -> int:
    """Delete the files of models, and print the freed space.

    Raises:
        SettingError: There is no such model; then nothing is deleted.
        NpurtError: A file cannot be deleted.
    """
    for model in [_find(name) for name in args.names]:
        freed = _delete(model.files)
        print(f"{model.name}: {freed / 1e9:.2f} GB freed")
    return 0


def _delete(files: Sequence[Path]) -> int:
    """Delete *files*, and the files of a hub's cache that only they link to; return the bytes."""
    freed = 0
    for file in files:
        target = Path(os.path.realpath(file))
        try:
            freed += target.stat().st_size
            file.unlink()
            if target != file.absolute() and target.parent.name == "blobs":
                target.unlink(missing_ok=True)
        except OSError as error:
            raise NpurtError(
                f"cannot delete {error.filename}: {error.strerror}",
                remedy="let this user write in its folder, or delete the file as its owner",
            ) from error
    return freed
