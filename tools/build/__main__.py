"""Run the build from the command line: `python -m tools.build --help`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.build import (
    PACKAGE,
    PRODUCTS,
    TARGETS,
    BuildError,
    build_library,
    compile_executable,
    host,
    library_sources,
    make,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the build from the command line; return 0 on success, 1 on failure, 2 on wrong usage."""
    parser = argparse.ArgumentParser(description="Compile the C code of npurt, in place.")
    parser.add_argument("--target", choices=TARGETS, help="architecture (default: this machine's)")
    parser.add_argument("--out", type=Path, help="build only the CPU kernels, into this file")
    parser.add_argument("--define", action="append", default=[], metavar="NAME[=VALUE]")
    parser.add_argument(
        "--executable", nargs="+", type=Path, metavar="FILE.c",
        help="link these files and the CPU kernels into a static program, the file --out",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", default=[], choices=[product.name for product in PRODUCTS]
    )
    args = parser.parse_args(argv)
    if (args.executable or args.define) and not args.out:
        parser.error("--executable and --define need --out")
    try:
        target = args.target or host()
        if args.executable:
            sources = [*library_sources(), *args.executable]
            compile_executable(sources, target, args.out, defines=args.define)
        elif args.out:
            build_library(target, args.out, defines=args.define)
        else:
            make(PACKAGE, target, args.only)
    except BuildError as error:
        print(f"build: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
