"""Flip every single bit of a good list, and count the detected flips.

    python -m tests.sim_rknpu.mutation

A flip is detected if the driver reports an error or the output is not the product.  It need not be
detected in bits that the hardware is known to ignore:

    CORE 0x3010 bit 0        QD_EN, for a raw output
    DPU 0x4050 bit 1         OD_BYPASS, for a raw output
    CNA 0x1024 bits 29..16   DATAIN_CHANNEL_REAL
    CNA 0x1010 bits 13..4    FEATURE_GRAINS, when the flip leaves more than the height
    CNA 0x107C bits 27..0    LINE_STRIDE, when there is one line or one group of four
"""

import argparse
from dataclasses import dataclass

import numpy as np

from tests.sim_rknpu import client
from tests.sim_rknpu.bench import Bench, operands
from tests.sim_rknpu.lists import SHORT, Task

PROGRAMS = {
    "int8 row 4x64x64": (client.Rocket, Task(4, 64, 64)),
    "int8 row 1x96x32": (client.Rocket, Task(1, 96, 32)),
    "int8 native-w 5x96x64": (client.Rocket, Task(5, 96, 64, "native-w")),
    "int8 native-h 64x64x64, short": (
        client.Rknpu,
        Task(64, 64, 64, "native-h", enable=SHORT),
    ),
    "fp16 row 3x64x32": (client.Rknpu, Task(3, 64, 32, "row", ("fp16", "fp32"))),
    "fp16 to fp16 native-w 3x64x32": (
        client.Rknpu,
        Task(3, 64, 32, "native-w", ("fp16", "fp16")),
    ),
    "int4 native-w 3x64x64": (client.Rknpu, Task(3, 64, 64, "native-w", ("int4", "int16"))),
}


@dataclass
class Count:
    """The number of flips outside the ignored bits, and the flips that were not detected."""

    tried: int
    missed: list[tuple[int, int, int]]  # word, its position, bit

    @property
    def share(self):
        return 1 - len(self.missed) / self.tried


def does_not_matter(task, word, bit):
    """Return whether a flip is one of the documented don't-cares."""
    value, offset, bit = word >> 16 & 0xFFFFFFFF, word & 0xFFFF, bit - 16
    _, height, one_by_one = task.cube()
    if bit < 0 or bit >= 32:
        return False
    if offset == 0x1010:
        return 4 <= bit <= 13 and ((value ^ 1 << bit) >> 4 & 0x3FF) > height
    if offset == 0x107C:
        return bit < 28 and height <= (1 if one_by_one else 4)
    return (offset, bit) in ((0x3010, 0), (0x4050, 1)) or (offset == 0x1024 and 16 <= bit < 30)


def shows(bench, words, expected):
    """Return whether a run of *words* differs from a good run."""
    bench.put(words)
    bench.fill()
    try:
        got = bench.run()
    except OSError:
        return True
    return got.tobytes() != expected.tobytes()


def measure(kind, task):
    """Flip every bit of the list of *task*."""
    a, b = operands(task)
    count = Count(0, [])
    with kind() as driver:
        bench = Bench(driver, task, a, b)
        bench.fill()
        expected = bench.run().copy()
        good = bench.words.copy()
        assert not shows(bench, good, expected)
        for i, word in enumerate(good.tolist()):
            for bit in range(64):
                if does_not_matter(bench.task, word, bit):
                    continue
                mutant = good.copy()
                mutant[i] = np.uint64(word ^ 1 << bit)
                count.tried += 1
                if not shows(bench, mutant, expected):
                    count.missed.append((word, i, bit))
        assert not shows(bench, good, expected)
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-v", action="store_true", help="print the flips that show nothing")
    verbose = parser.parse_args().v
    client.configure("hang_ms=0.01 log=0")
    for name, (kind, task) in PROGRAMS.items():
        count = measure(kind, task)
        print(f"{name:32} {100 * count.share:6.2f} % of {count.tried} flips show")  # noqa: T201
        if verbose:
            for word, position, bit in count.missed:
                print(f"    word {position} {word:#018x} bit {bit}")  # noqa: T201


if __name__ == "__main__":
    main()
