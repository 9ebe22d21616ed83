"""`npurt skel`: compile code for the DSP, check it before the DSP loads it, add a checksum."""

import argparse
import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npurt.cli.arguments import options
from npurt.errors import LayoutError, NpurtError, SettingError

if TYPE_CHECKING:
    from npurt.hexagon.doctor.elf import SharedObject


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser("skel", help="compile, check or describe code for the Hexagon")
    parser.add_argument("action", choices=("verify", "info", "build", "checksum"))
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE",
                        help="the skel; with build: the C files")  # fmt: skip
    parser.add_argument(
        "--arch", type=_arch, metavar="v68", help="version of the DSP that will load the skel"
    )
    parser.add_argument("--entry", metavar="SYMBOL",
                        help="the skel's entry function, which the URI names")  # fmt: skip
    parser.add_argument("--shell", type=Path, metavar="FILE",
                        help="with verify: the shell that must export the imports")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--idl", type=Path, metavar="FILE.idl",
                        help="with build: the skel's interface")  # fmt: skip
    parser.add_argument("-o", "--out", type=Path, metavar="FILE.so",
                        help="with build: the new file (default: libNAME_skel.so); with checksum: "
                        "the file with the checksum section, which some DSPs require")  # fmt: skip
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
    if len(args.files) > 1 or args.idl or (args.out and args.action != "checksum"):
        raise SettingError(
            f"skel {args.action} takes one file, and no option of another action",
            remedy="name one skel; --idl is for npurt skel build, --out for build and checksum",
        )
    actions = {"info": _info, "checksum": _checksum}
    action = actions.get(args.action)
    return action(args) if action else _verify(args.files[0], args)


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

    data = options.bytes_of(args.files[0])
    about = _describe(elf.read(data)) | {"checksum": _state_of_checksum(data)}
    print(json.dumps(about) if args.json else "\n".join(_lines(about)))
    return 0


def _checksum(args: argparse.Namespace) -> int:
    from npurt.base.files import replacing
    from npurt.hexagon.session import checksum

    if args.out is None:
        raise SettingError(
            "skel checksum needs the name of the new file",
            remedy="name it with -o FILE; it may be the old file",
        )
    data = checksum.with_checksum(options.bytes_of(args.files[0]))
    try:
        with replacing(args.out) as file:
            file.write(data)
    except OSError as error:
        raise NpurtError(
            f"cannot write {args.out}: {error.strerror}", remedy="choose another --out"
        ) from error
    return _verify(args.out, args)


def _verify(file: Path, args: argparse.Namespace) -> int:
    from npurt.hexagon.doctor import elf, loadable

    data = options.bytes_of(file)
    arch, names = args.arch, None
    if args.shell:
        compiled, names = elf.exports(options.bytes_of(args.shell))
        arch = arch or compiled
    findings = loadable.verify(data, arch=arch, entry=args.entry, name=file.name, names=names)
    loads = all(finding.level != "error" for finding in findings)
    if args.json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"file": str(file), "ok": loads, "findings": rows}))
    else:
        for finding in findings:
            print(f"{finding.level}: {finding.what}\n  remedy: {finding.remedy}")
        print(f"{file}: {'should load' if loads else 'would not load'}")
    return 0 if loads else 1


def _state_of_checksum(data: bytes) -> str:
    from npurt.hexagon.session import checksum

    try:
        found = checksum.find(data)
    except LayoutError as error:
        return error.what
    if found is None:
        return "none"
    right = "right" if found.stated == found.computed else f"wrong: {found.computed:#010x}"
    return f"{found.stated:#010x}, {right}"


def _describe(skel: "SharedObject") -> dict[str, Any]:
    """Return the properties of a skel by name."""
    segments = [
        f"kind {s.kind:#x} {s.access!s:3} {s.memory_bytes} bytes at {s.address:#x}, align {s.align}"
        for s in skel.segments
    ]
    return {
        "arch": f"v{skel.arch}",
        "abi": skel.abi,
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
