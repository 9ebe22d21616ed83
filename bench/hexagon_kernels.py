"""Count the instruction packets of the Hexagon kernels with qemu-hexagon; the counts are exact.

A packet is the group of instructions that a hardware thread issues at a time: a measure of work,
not of time. The counts include the quantiser and the whole product with float32 results.

    python bench/hexagon_kernels.py [--arch v68 v73] [--json]
    python bench/hexagon_kernels.py --delta       the gated delta net
    python bench/hexagon_kernels.py --model       the constants of npurt/hexagon/plan/packets.py
    python bench/hexagon_kernels.py --update      write the counts that the tests compare with
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests/, which is not installed

from npurt.hexagon.layout import images
from npurt.hexagon.layout.formats import BY_NAME, FORMATS
from npurt.hexagon.plan.packets import LoopPackets
from tests.cpu import cases, delta_cases
from tests.hexagon import delta_kernel
from tests.hexagon.kernels import Driver
from tests.hexagon.weights import groups

COUNTS = Path(__file__).resolve().parents[1] / "tests/data/hexagon/packets.json"
DELTA_COUNTS = COUNTS.with_name("delta_packets.json")
SHAPE = (1536, 8960)  # (K, N) of the table: the feed-forward layers of Qwen2.5 1.5B
SMALL = (640, 160)  # (K, N) of the test: odd steps, tiles not a multiple of four
ROWS = (1, 4, 32, 128)
ARCHS = ("v68", "v73")


def image(name: str, k: int, n: int) -> np.ndarray:
    """Return an image of zeros: the executed packets do not depend on the content."""
    return np.zeros(images.image_bytes(BY_NAME[name], n, k), np.uint8)


def count(driver: Driver, name: str, m: int, k: int, n: int, group: int) -> dict[str, object]:
    """Run one product and return its row of the table."""
    x = np.random.default_rng(0).standard_normal((m, k)).astype(np.float32)
    answer = driver.run(x, image(name, k, n), name, n, group=group)
    quantise, multiply = answer.quantise_packets, answer.multiply_packets
    return {
        "format": name, "m": m, "k": k, "n": n, "group": group,
        "quantise": quantise, "multiply": multiply,
        "mac_per_packet": m * k * n / (quantise + multiply),
        "quantise_per_element": quantise / (m * k),
    }  # fmt: skip


def small_counts(driver: Driver) -> dict[str, list[int]]:
    """Return the test's counts: packets of quantiser and product, by format, rows and group."""
    counts = {}
    for fmt in FORMATS:
        for m in (1, 4, 7):
            for group in groups(fmt.name):
                row = count(driver, fmt.name, m, *SMALL, group)
                counts[f"{fmt.name} m={m} group={group}"] = [row["quantise"], row["multiply"]]
    return counts


def loops(driver: Driver, name: str) -> tuple[LoopPackets, LoopPackets]:
    """Return the packets of a format's loops: per step, and per tile in addition.

    The packets are differences between products, which excludes calls and quantisers.
    """

    def packets(m: int, steps: int, tiles: int) -> int:
        n, group = images.TILE * tiles, groups(name)[0]
        return driver.run(
            np.ones((m, images.STEP * steps), np.float32),
            image(name, images.STEP * steps, n), name, n, group=group,
        ).multiply_packets  # fmt: skip

    found = []
    for m, tiles, parts in ((4, 4, 4), (1, 4, 1), (1, 1, 1)):
        few, many = (
            (packets(m, steps, 4 + tiles) - packets(m, steps, 4)) / parts for steps in (8, 16)
        )
        found.append(((many - few) / 8, 2 * few - many))
    each, fixed = zip(*found, strict=True)
    return LoopPackets(*each), LoopPackets(*fixed)


def print_model(archs: list[str]) -> None:
    """Print the packets of each kernel's loops, measured with the kernel's first format."""
    names = {fmt.kernel: fmt.name for fmt in reversed(FORMATS)}
    for arch in archs:
        with tempfile.TemporaryDirectory() as folder:
            driver = Driver(arch, Path(folder))
            for kernel, name in names.items():
                each, fixed = loops(driver, name)
                print(f"{arch} {kernel:14} a step {tuple(each)}, a tile besides {tuple(fixed)}")
            driver.close()


def delta_count(driver: delta_kernel.Driver, width: int, heads: int, tokens: int, kda: bool) -> int:
    """Return the packets of a call with *tokens* tokens of *heads* heads."""
    shape = {"heads": heads, "width": width, "tokens": tokens, "kda": kda}
    return driver.run(delta_cases.delta(cases.rng_of(0), **shape)).packets


def delta_counts(driver: delta_kernel.Driver) -> dict[str, int]:
    """Return packets by width, heads, tokens, and whether every element of k has a decay."""
    return {
        f"width={width} heads={heads} tokens={tokens} gates={int(kda)}": delta_count(
            driver, width, heads, tokens, kda
        )
        for width in (64, 128)
        for heads, tokens in ((1, 1), (8, 1), (1, 32))
        for kda in (False, True)
    }


def print_deltas(archs: list[str], as_json: bool) -> None:
    """Print packets per token and head, and over the bound: a state loaded twice, stored once."""
    table = {}
    for arch in archs:
        with tempfile.TemporaryDirectory() as folder:
            driver = delta_kernel.Driver(arch, Path(folder))
            table[arch] = delta_counts(driver)
            driver.close()
    if as_json:
        print(json.dumps(table))
        return
    for arch, counts in table.items():
        for name, packets in counts.items():
            width, heads, tokens, _ = (int(part.split("=")[1]) for part in name.split())
            each, bound = packets / (heads * tokens), 2 * width * width / 32
            print(f"{arch} {name:40} {each:8.1f} a token and head, {each / bound:.2f} x the bound")


def main() -> int:
    """Print the counts, or write them to the tests' files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", nargs="+", default=ARCHS)
    parser.add_argument("--formats", nargs="+", default=["q4_0", "q8_0", "q4_k", "q6_k", "i8"])
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--json", action="store_true", help="rows as JSON instead of a table")
    parser.add_argument("--update", action="store_true", help=f"write {COUNTS.name}, for all archs")
    parser.add_argument("--delta", action="store_true", help="the gated delta net")
    parser.add_argument("--model", action="store_true", help="packets of the inner loops")
    args = parser.parse_args()
    if args.model:
        print_model(args.arch)
        return 0
    if args.delta:
        print_deltas(args.arch, args.json)
        return 0
    table = []
    written: dict[str, dict[str, list[int]]] = {}
    deltas: dict[str, dict[str, int]] = {}
    for arch in args.arch:
        with tempfile.TemporaryDirectory() as folder:
            driver = Driver(arch, Path(folder))
            if args.update:
                written[arch] = small_counts(driver)
                of_delta = delta_kernel.Driver(arch, Path(folder))
                deltas[arch] = delta_counts(of_delta)
                of_delta.close()
            else:
                for name in args.formats:
                    for m in args.rows:
                        row = count(driver, name, m, *SHAPE, groups(name)[0])
                        table.append({"arch": arch, **row})
            driver.close()
    if args.update:
        COUNTS.write_text(json.dumps(written, indent=1) + "\n")
        DELTA_COUNTS.write_text(json.dumps(deltas, indent=1) + "\n")
    elif args.json:
        print(json.dumps(table))
    else:
        print(f"{'arch':5} {'format':7} {'M':>4} {'MAC/packet':>10} {'quantiser/element':>18}")
        for row in table:
            print(
                f"{row['arch']:5} {row['format']:7} {row['m']:4} {row['mac_per_packet']:10.1f} "
                f"{row['quantise_per_element']:18.3f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
