"""`npurt skel`: compile code for the DSP, or check it before the DSP loads it."""

import argparse
import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npurt.cli.arguments import options
from npurt.errors import SettingError

if TYPE_CHECKING:
    from npurt.hexagon.doctor.elf import SharedObject


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser("skel", help="compile, check or describe code for the Hexagon")
    parser.add_argument("action", choices=("verify", "info", "build"))
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE",
                        help="the skel; with build: the C files")  # fmt: skip
    parser.add_argument(
        "--arch", type=_arch, metavar="v68", help="version of the DSP that will load the skel"
    )
    parser.add_argument("--entry", metavar="SYMBOL",
                        help="the skel's entry function, which the URI names")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--idl", type=Path, metavar="FILE.idl",
                        help="with build: the skel's interface")  # fmt: skip
    parser.add_argument("-o", "--out", type=Path, metavar="FILE.so",
                        help="with build: the new file (default: libNAME_skel.so)")  # fmt: skip
    parser.set_defaults(run=run)


def _arch(text: str) -> int:
    from npurt.hexagon.doctor.loadable import VERSIONS

    if not re.fullmatch(r"v?\d\d", text) or int(text[-2:]) not in VERSIONS:
        known = f"v{VERSIONS[0]} to v{VERSIONS[-1]}"
        raise argparse.ArgumentTypeError(f"{text!r} is not a version of {known}")
    return int(text[-2:])


def run(args: argparse.Namespace) -> int:
    """Build, verify or describe a skel; return 1 if the DSP would not load it."""
    if args.action == "build":
        return _verify(_build(args), args)
    if len(args.files) > 1 or args.idl or args.out:
        raise SettingError(
            f"skel {args.action} takes one file, and neither --idl nor --out",
            remedy="name one skel; --idl and --out are for npurt skel build",
        )
    return _info(args) if args.action == "info" else _verify(args.files[0], args)


def _build(args: argparse.Namespace) -> Path:
    from npurt.hexagon import idl
    from npurt.hexagon.session import own_skel

    if args.idl is None:
        raise SettingError(
            "skel build needs the interface of the skel",
            remedy="name it with --idl FILE.idl; examples/own_skel has one",
        )
    if args.out:
        options.require_apart(args.out, *args.files, args.idl)
    interface = idl.load(args.idl)
    out = args.out or Path(f"lib{interface.name}_skel.so")
    own_skel.build(args.files, interface, out, arch=f"v{args.arch or 68}")
    args.entry = args.entry or f"{interface.name}_skel_handle_invoke"
    return out


def _info(args: argparse.Namespace) -> int:
    from npurt.hexagon.doctor import elf

    about = _describe(elf.read(options.bytes_of(args.files[0])))
    print(json.dumps(about) if args.json else "\n".join(_lines(about)))
    return 0


def _verify(file: Path, args: argparse.Namespace) -> int:
    from npurt.hexagon.doctor import loadable

    data = options.bytes_of(file)
    findings = loadable.verify(data, arch=args.arch, entry=args.entry)
    loads = all(finding.level != "error" for finding in findings)
    if args.json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"file": str(file), "ok": loads, "findings": rows}))
    else:
        for finding in findings:
            print(f"{finding.level}: {finding.what}\n  remedy: {finding.remedy}")
        print(f"{file}: {'should load' if loads else 'would not load'}")
    return 0 if loads else 1


def _describe(skel: "SharedObject") -> dict[str, Any]:
    """Return the properties of a skel by name."""
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
