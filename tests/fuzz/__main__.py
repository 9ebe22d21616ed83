"""Run fuzz targets: `python -m tests.fuzz [TARGET ...]`, by default with the fixed inputs of CI."""

import argparse
import itertools
import sys
from pathlib import Path

from tests.fuzz import frame


def arguments():
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(frame.NAMES))
    parser.add_argument("--native", action="store_true", help="only targets that run C")
    parser.add_argument("--seed", type=int, help="the first; by default 0, after the corpus")
    parser.add_argument("--runs", type=int, help="inputs of each target; by default those of CI")
    parser.add_argument("--seconds", type=float, help="share so much time among targets instead")
    parser.add_argument("--jobs", "-j", type=int, default=2, help="processes")
    parser.add_argument("--most", type=int, default=3, help="failures of a target to stop after")
    parser.add_argument("--plant", default="", help="put this known defect of the target back")
    parser.add_argument("--verbose", "-v", action="store_true", help="say why inputs were refused")
    parser.add_argument("--input", type=Path, action="append", help="try the input of this file")
    args = parser.parse_args()
    unknown = set(args.targets) - set(frame.NAMES)
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(frame.NAMES)}")
    return args


def asked(args, name):
    if args.input:
        return iter([{"input": frame.read(path)} for path in args.input])
    runs = args.runs
    if runs is None and args.seconds is None:
        runs = frame.load(name).RUNS
    if args.seed is None:  # as in CI
        return itertools.chain(frame.known(name), frame.fresh(0, runs, args.seconds))
    return frame.fresh(args.seed, runs, args.seconds)


def main():
    args = arguments()
    known = [name for name in frame.NAMES if not args.native or frame.native(name)]
    names = args.targets or known
    if args.seconds is not None:
        args.seconds /= len(names)
    failed = False
    for name in names:
        result = frame.campaign(
            name, asked(args, name), jobs=args.jobs, plant=args.plant, max_failures=args.most
        )
        print(result.line(), flush=True)
        for why, count in (+result.refusals).most_common() if args.verbose else ():
            print(f"{count:8} {why:.100}")
        for failure in result.failures:
            failed = True
            print(f"\nFAILED {failure.command}\n  input: {failure.path()}\n{failure.why}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
