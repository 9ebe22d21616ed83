"""Count the Python code that one decoded token, or one product, runs: files, functions, depth.

    python bench/walk.py --models tests/data/models/llama3/llama3-q8_0.gguf
    python bench/walk.py --models MODEL --devices cpu hexagon:sim --list     # the functions
    python bench/walk.py --json

Counted are the functions of the package npurt. The counts do not depend on the machine's speed. A
reader who follows a token through the code reads at least these files. With many experts or several
caches the counts may differ by a few from token to token; the seventh token is counted.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import npurt

PACKAGE = str(Path(npurt.__file__).parent)
DEVICES = ("cpu", "rknpu:sim", "hexagon:sim")
TOKENS_BEFORE = 6  # the first tokens make buffers and probes


class Walk(NamedTuple):
    """The functions that ran, in the order of first calls, and the depth of the stack."""

    functions: dict[tuple[str, int, str], int]  # (file, line, name) -> calls
    depth: int

    @property
    def files(self) -> list[str]:
        """The files of the functions, in the order of first calls."""
        return list(dict.fromkeys(file for file, _, _ in self.functions))


def walk(action: Callable[[], Any]) -> Walk:
    """Run *action* and return the functions of npurt that it ran."""
    calls: Counter[tuple[str, int, str]] = Counter()
    depth = deepest = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal depth, deepest
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return
        if event == "call":
            calls[code.co_filename, code.co_firstlineno, code.co_qualname] += 1
            depth += 1
            deepest = max(deepest, depth)
        elif event == "return":
            depth -= 1

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return Walk(dict(calls), deepest)


def of_token(model: str, device: str) -> Walk:
    """Return the walk of one decoded token."""
    with npurt.Llama(model, device, n_ctx=256, verify="off", progress=False) as llm:
        tokens = iter(llm.generate([1, 2, 3, 4], max_tokens=12, temperature=0, stream=True))
        for _ in range(TOKENS_BEFORE):
            next(tokens)
        return walk(lambda: next(tokens))


def of_product(device: str) -> Walk:
    """Return the walk of one `npurt.matmul` with a packed weight."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 256), np.float32)
    w = npurt.pack(rng.standard_normal((256, 128), np.float32), "q8_0", device=device)
    npurt.matmul(x, w)
    npurt.matmul(x, w, verify="off")
    return walk(lambda: npurt.matmul(x, w, verify="off"))


def main() -> None:
    """Print a table, JSON, or the functions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=[], help="GGUF files")
    parser.add_argument("--devices", nargs="*", default=DEVICES)
    parser.add_argument("--list", action="store_true", help="list the functions")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = {("npurt.matmul", device): of_product(device) for device in args.devices}
    for model in args.models:
        found |= {(Path(model).name, device): of_token(model, device) for device in args.devices}
    rows = [
        {"what": what, "device": device, "files": len(each.files),
         "functions": len(each.functions), "depth": each.depth}
        for (what, device), each in found.items()
    ]  # fmt: skip
    if args.json:
        print(json.dumps(rows))
        return
    print(f"{'':28} {'device':12} {'files':>6} {'functions':>10} {'depth':>6}")
    for row, each in zip(rows, found.values(), strict=True):
        print("{what:28} {device:12} {files:6} {functions:10} {depth:6}".format(**row))
        for (file, line, name), calls in each.functions.items() if args.list else ():
            print(f"{calls:7} {Path(file).relative_to(PACKAGE)}:{line} {name}")


if __name__ == "__main__":
    main()
