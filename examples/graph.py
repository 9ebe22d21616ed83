"""Build a graph, run it in float64 and on a device, and print the inputs of each part.

python examples/graph.py            # on numpy
python examples/graph.py -dev toy   # on a device of another package (examples/toy_npu)
python examples/graph.py -dev hexagon:sim   # products on the DSP, other ops on the CPU
"""

import argparse

import numpy as np

import npurt
from npurt.device.segment import Limits
from npurt.graph.builder import Builder
from npurt.graph.interpreter import Interpreter
from npurt.graph.render import lines
from npurt.graph.rows import Rows
from npurt.graph.state import States
from npurt.graph.tensor import Dim
from npurt.runtime.execute.executor import Executor
from npurt.runtime.open.devices import open_host
from npurt.runtime.report.ledger import Ledger

D, F = Dim("D", 64), Dim("F", 96)


class Weights:
    """Random weights with the interface of `npurt.device.segment.Weights`."""

    def __init__(self, graph):
        rng = np.random.default_rng(0)
        self._tensors = {
            name: npurt.QTensor.quantize(rng.standard_normal(shape).astype(np.float32) / 8, "q8_0")
            for name, shape in (("gate", (96, 64)), ("up", (96, 64)), ("down", (64, 96)))
        } | {"norm": npurt.QTensor.quantize(np.ones(64, np.float32), "f32")}

    def quantised(self, name):
        return self._tensors[name]

    def values(self, name):
        return self._tensors[name].dequantize()


def feed_forward():
    """Return the graph of a layer's feed-forward part, from ``x`` to ``y``."""
    b = Builder("feed-forward")
    x = b.input("x", D)
    h = b.rms_norm("normed", x, b.constant("norm", D), 1e-6)
    gate = b.matmul("gated", h, b.constant("gate", F, D, dtype="q8_0"), role="gate")
    up = b.matmul("upped", h, b.constant("up", F, D, dtype="q8_0"), role="up")
    unit = b.gated_unit("unit", gate, up)
    down = b.matmul("downed", unit, b.constant("down", D, F, dtype="q8_0"), role="down")
    b.output(b.add("sum", x, down), "y")
    return b.build()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-dev", "--device", default="numpy", help="device that runs graphs")
    args = parser.parse_args()
    graph = feed_forward()
    print("\n".join(lines(graph)))
    weights = Weights(graph)
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)

    exact = Interpreter(graph, weights.values).run({"x": x}, Rows.of(3), States(graph))["y"]

    ledger = Ledger(args.device)
    with npurt.open_device(args.device) as device, open_host() as other:
        limits = Limits(rows=16, positions=16)
        executor = Executor(graph, device, other, weights, limits, ledger)
        for part in executor.parts:
            names = ", ".join(type(op).__name__ for op in part.graph.ops)
            print(f"{part.actual}: {names}; given {sorted(part.graph.given)}")
        y = executor.run({"x": x}, Rows.of(3))["y"]
        error = ((y - exact) ** 2).sum() / (exact**2).sum()
        print(ledger.report().line())
    print(f"squared error relative to float64: {error:.1e}")


if __name__ == "__main__":
    main()
