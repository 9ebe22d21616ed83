"""`python -m npurt.hexagon.idl FILE.idl`: check an interface, list it, or write its C."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from npurt.base.files import replacing
from npurt.errors import NpurtError
from npurt.hexagon.idl import Interface, load
from npurt.hexagon.idl.header import header, prototype
from npurt.hexagon.idl.interface import DIGEST, digest
from npurt.hexagon.idl.python import python
from npurt.hexagon.idl.skel import skel


def rows(interface: Interface) -> list[dict[str, object]]:
    """Return a description of each method, for programs that make bindings."""
    return [
        {
            "id": m.id,
            "name": m.name,
            "prototype": prototype(interface.name, m),
            "sent": m.sent.size,
            "answer": m.answer.size,
            "params": [{"name": p.name, "mode": p.mode} for p in m.params],
        }
        for m in interface.methods
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 success, 1 failure, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="npurt.hexagon.idl", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE.idl")
    parser.add_argument("--c", type=Path, metavar="DIR", help="write NAME.h and NAME_skel.c there")
    parser.add_argument("--python", type=Path, metavar="FILE", help="write Python code to FILE")
    parser.add_argument("--json", action="store_true", help="list the interface as one object")
    args = parser.parse_args(argv)
    out = sys.stdout
    try:
        interface = load(args.file)
        if args.c:
            write(interface, args.c)
        if args.python:
            write_python(interface, args.file, args.python)
    except NpurtError as error:
        sys.stderr.write(f"idl: {error}\n")
        return 1
    if args.json:
        table = {"name": interface.name, "version": interface.version, "uri": interface.uri}
        out.write(json.dumps(table | {"methods": rows(interface)}) + "\n")
    elif not (args.c or args.python):
        out.write(f"{interface.uri}\n")
        out.writelines(f"{row['id']:3}  {row['prototype']}\n" for row in rows(interface))
    return 0


def write(interface: Interface, folder: Path) -> tuple[Path, Path]:
    """Write the C of *interface* to *folder*; return the header and the skel.

    Raises:
        NpurtError: The files cannot be written.
    """
    texts = {f"{interface.name}.h": header(interface), f"{interface.name}_skel.c": skel(interface)}
    paths = [folder / name for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        _write(path, text)
    return paths[0], paths[1]


def write_python(interface: Interface, source: Path, out: Path) -> None:
    """Write *interface* as Python code to *out*, with the digest of the IDL file *source*.

    Raises:
        NpurtError: The file cannot be written.
    """
    _write(out, f"{python(interface)}{DIGEST} = {digest(source.read_bytes())!r}\n")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise NpurtError(
            f"cannot write to {path.parent}: {error}", remedy="choose another folder"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
