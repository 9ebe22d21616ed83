"""Compare products in a lost NPU's arithmetic, on the host, with the CPU's own products.

    python bench/lost_npu.py

A ratio is the time of the host in the NPU's arithmetic, divided by the time of device cpu with the
same threads: the median of rounds in turn.  See docs/decisions/039.
"""

import argparse
import statistics
import time

import numpy as np

from npurt.cpu.device import CpuDevice
from npurt.device.host_products import moved_to_host
from npurt.hexagon.device.device import open_hexagon
from npurt.quant.tensor import QTensor
from npurt.rknpu.device.device import open_rknpu

N, K, ROUNDS = 4864, 1024, 21


def seconds(device, x, w, out):
    """Return the time of one product."""
    start = time.perf_counter()
    device.matmul(x, w, out)
    return time.perf_counter() - start


def main():
    """Print a row for each device, format and number of rows."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    rng = np.random.default_rng(0)
    values = rng.standard_normal((N, K)).astype(np.float32) / 32
    cpu = CpuDevice()
    threads = cpu.engine.threads
    print(f"{cpu.caps.detail}; [{N}, {K}]")
    for opened in (open_hexagon("hexagon:sim"), open_rknpu("rknpu:sim")):
        with opened as npu:
            for kind in ("q4_0", "q8_0", "q6_k", "f16"):
                tensor = QTensor.quantize(values, kind)
                own = cpu.pack(tensor)
                moved = moved_to_host(npu.pack(tensor), cpu, threads)
                cells = []
                for rows in (1, 8, 64):
                    x = rng.standard_normal((rows, K)).astype(np.float32)
                    out = np.empty((rows, N), np.float32)
                    pairs = [
                        (seconds(moved.device, x, moved, out), seconds(cpu, x, own, out))
                        for _ in range(ROUNDS)
                    ]
                    host, usual = (statistics.median(side) for side in zip(*pairs, strict=True))
                    cells.append(f"{host / usual:.1f} ({rows * N * K / host / 1e9:.1f} GMAC/s)")
                print(f"| {npu.caps.name}, {kind} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
