"""Multiply two int8 matrices on an RK3588 with buffers and a register program of your own.

python examples/rocket_buffer.py             # the simulated NPU
python examples/rocket_buffer.py --real      # /dev/accel/accel0 or the vendor's node
"""

import argparse

import numpy as np

from npurt.rknpu.driver.base import CoreTasks
from npurt.rknpu.driver.detect import open_driver
from npurt.rknpu.driver.system import LinuxKernel, SimulatedKernel
from npurt.rknpu.isa.formats import FORMATS
from npurt.rknpu.plan import images
from npurt.rknpu.plan.proof import Role
from npurt.rknpu.plan.tiling import plan, plan_weights


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--real", action="store_true", help="use the NPU of this board")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    a = rng.integers(-128, 128, (4, 64), np.int8)
    b = rng.integers(-128, 128, (32, 64), np.int8)

    weights = plan_weights(FORMATS["int8"], *b.shape, cores=1)
    product = plan(weights, len(a))
    driver = open_driver(LinuxKernel() if args.real else SimulatedKernel())
    try:
        space = driver.spaces[0]
        features = space.alloc(product.a_bytes, Role.INPUT, "A")
        weight = space.alloc(weights.image_bytes(0), Role.INPUT, "B")
        result = space.alloc(product.c_bytes[0], Role.OUTPUT, "C")
        for buffer in (features, weight, result):
            print(f"{buffer.name}: {buffer.nbytes} bytes at {buffer.address:#x}")
        with features.cpu_access(write=True) as memory:
            memory[:] = images.features_image(a, product)
        with weight.cpu_access(write=True) as memory:
            memory[:] = images.weights_image(b, weights, 0)
        tiles = product.tiles[0]
        addresses = [
            (features.address + t.a, weight.address + t.b, result.address + t.c) for t in tiles
        ]
        job = driver.prepare([CoreTasks([t.task for t in tiles], addresses)])  # proven not to hang
        driver.run(job)
        with result.cpu_access(write=False) as memory:
            c = images.results_matrix([memory.copy()], product)
        job.free()
    finally:
        driver.close()
    exact = np.array_equal(c, a.astype(np.int32) @ b.T)
    print(f"{driver.detail}: the product is {'exact' if exact else 'wrong'}")


if __name__ == "__main__":
    main()
