"""`npurt skel`: check and describe shared objects for the DSP."""

import argparse
import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npurt.cli import options

if TYPE_CHECKING:
    from npurt.hexagon.doctor.elf import SharedObject


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser("skel", help="check or describe a shared object for the Hexagon")
    parser.add_argument("action", choices=("verify", "info"))
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument(
        "--arch", type=_arch, metavar="v68", help="version of the DSP that is to load it"
    )
    parser.add_argument("--entry", metavar="SYMBOL", help="symbol that the URI names")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def _arch(text: str) -> int:
    from npurt.hexagon.doctor.loadable import VERSIONS

    if not re.fullmatch(r"v?\d\d", text) or int(text[-2:]) not in VERSIONS:
        known = f"v{VERSIONS[0]} to v{VERSIONS[-1]}"
        raise argparse.ArgumentTypeError(f"{text!r} is no version such as v68, of {known}")
    return int(text[-2:])


def run(args: argparse.Namespace) -> int:
    """Check a file (exit status 1 when it would not load), or describe it."""
    from npurt.hexagon.doctor import elf, loadable

    data = options.bytes_of(args.file)
    if args.action == "info":
        about = _describe(elf.read(data))
        print(json.dumps(about) if args.json else "\n".join(_lines(about)))
        return 0
    findings = loadable.verify(data, arch=args.arch, entry=args.entry)
    loads = all(finding.level != "error" for finding in findings)
    if args.json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"file": str(args.file), "ok": loads, "findings": rows}))
    else:
        for finding in findings:
            print(f"{finding.level}: {finding.what}\n  remedy: {finding.remedy}")
        print(f"{args.file}: {'should load' if loads else 'would not load'}")
    return 0 if loads else 1


def _describe(skel: "SharedObject") -> dict[str, Any]:
    """Return what there is to know, in words."""
    segments = [
        f"kind {s.kind:#x} {s.access!s:3} {s.memory_bytes} bytes at {s.address:#x}, align {s.align}"
        for s in skel.segments
    ]
    return {
        "arch": f"v{skel.arch}",
        "soname": skel.soname,
        "signed": skel.signed,
        "needed": list(skel.needed),
        "exports": list(skel.exports),
        "imports": [name for name, weak in skel.imports.items() if not weak],
        "optional_imports": [name for name, weak in skel.imports.items() if weak],
        "relocations": [f"{kind}: {count}" for kind, count in skel.relocations.items()],
        "segments": segments,
    }


def _lines(about: dict[str, Any]) -> list[str]:
    lines = []
    for name, value in about.items():
        items = value if isinstance(value, list) else [str(value)]
        lines += [f"{name.replace('_', ' ')}:", *(f"    {item}" for item in items)]
    return lines
