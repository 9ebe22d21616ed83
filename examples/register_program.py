"""Assemble, check and run a register program of your own on an RK3588.

python examples/register_program.py             # the simulated NPU
python examples/register_program.py --real      # the NPU of this board
"""

import argparse

import numpy as np

from npurt.errors import LayoutError
from npurt.rknpu.driver.detect import open_driver
from npurt.rknpu.driver.execute import execute, spans_of
from npurt.rknpu.driver.system import LinuxKernel, SimulatedKernel
from npurt.rknpu.isa import program, regcmd
from npurt.rknpu.isa.formats import FORMATS
from npurt.rknpu.isa.layout import Layout, pack_weights
from npurt.rknpu.isa.task import Task
from npurt.rknpu.plan.check import check

A, B, C = 0x1000000, 0x2000000, 0x3000000  # addresses in the program; `execute` moves them


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--real", action="store_true", help="use the NPU of this board")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    a = rng.integers(-128, 128, (4, 64), np.int8)
    b = rng.integers(-128, 128, (32, 64), np.int8)
    c = np.empty((4, 32), np.int32)
    int8 = FORMATS["int8"]
    inputs, outputs = {A: a, B: pack_weights(b, int8)}, {C: c}

    task = Task(int8, Layout.ROW, m=4, k=64, n=32, rows=4, columns=64)
    words = program.single(task, A, B, C)
    print(f"word 1 of {len(words)}: {regcmd.describe(words[1])}")
    spans = spans_of(inputs, outputs)
    print(f"the program writes {check(words, spans).proof.results.tolist()}")

    words[-1] ^= 1 << 16  # an ENABLE that starts other blocks
    try:
        check(words, spans)
    except LayoutError as error:
        print(f"refused: {error.what}")
    words[-1] ^= 1 << 16

    driver = open_driver(LinuxKernel() if args.real else SimulatedKernel())
    try:
        execute(driver, words, inputs, outputs)
    finally:
        driver.close()
    exact = np.array_equal(c, a.astype(np.int32) @ b.T)
    print(f"{driver.detail}: the product is {'exact' if exact else 'wrong'}")


if __name__ == "__main__":
    main()
