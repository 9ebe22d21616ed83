"""Measure the host's time for a call to the DSP: Python and threads, without library and simulator.

Sends a prepared batch (q, k and v of a model, one row) in every round, and subtracts the time
inside remote_handle64_invoke, which the calling thread measures.

    python bench/hexagon_host.py [--rounds 5000] [--width 896]
"""

import argparse
import json
import time

import numpy as np

from npurt.hexagon.device.device import open_hexagon
from npurt.quant.tensor import QTensor


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--width", type=int, default=896, help="a multiple of 32")
    parser.add_argument("--device", default="hexagon:sim")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    sizes = (args.width, args.width // 4, args.width // 4)
    with open_hexagon(args.device) as device:
        tensors = [rng.standard_normal((n, args.width)).astype(np.float32) for n in sizes]
        weights = [device.pack(QTensor.quantize(values, "q4_0")) for values in tensors]
        x = rng.standard_normal((1, args.width)).astype(np.float32)
        outs = [np.empty((1, n), np.float32) for n in sizes]
        line = device._sessions.opened[0].transport._owned.caller._native
        host, inside = [], []
        for _ in range(args.rounds):
            start = time.perf_counter_ns()
            device.matmuls(x, weights, outs)
            whole = time.perf_counter_ns() - start
            host.append((whole - line.nanoseconds) / 1000)
            inside.append(line.nanoseconds / 1000)
    percentiles = {f"host_us_p{p}": round(float(np.percentile(host, p)), 1) for p in (50, 90, 99)}
    print(json.dumps({**percentiles, "inside_us_p50": round(float(np.median(inside)), 1)}))


if __name__ == "__main__":
    main()
