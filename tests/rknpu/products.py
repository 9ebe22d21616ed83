"""Helpers that run whole products on an opened driver."""

import numpy as np

from npurt.rknpu.driver.base import CoreTasks
from npurt.rknpu.plan import images
from npurt.rknpu.plan.proof import Role
from npurt.rknpu.plan.tiling import plan, plan_weights

GARBAGE = 0x5A


def elements(format, shape, seed):
    """Return random elements of a format; floats have few bits, so tf32 and fp16 are exact."""
    rng = np.random.default_rng(seed)
    if format.bits <= 8:
        half = 1 << (format.bits - 1)
        return rng.integers(-half, half, shape, dtype=np.int8)
    values = rng.integers(-1024, 1025, shape) / 512
    return values.astype(np.float16 if format.bits == 16 else np.float32)


def buffers(driver, product, core):
    """Allocate A, B and C of a core, with exactly the sizes of its plan."""
    space = driver.spaces[core]
    return (
        space.alloc(product.a_bytes, Role.INPUT, "A"),
        space.alloc(product.weights.image_bytes(core), Role.INPUT, "B"),
        space.alloc(product.c_bytes[core], Role.OUTPUT, "C"),
    )


def core_tasks(product, core, a, b, c):
    tiles = product.tiles[core]
    return CoreTasks(
        [tile.task for tile in tiles],
        [(a.address + tile.a, b.address + tile.b, c.address + tile.c) for tile in tiles],
    )


def fill(buffer, image):
    with buffer.cpu_access(write=True) as memory:
        memory[:] = image


class Prepared:
    """A prepared job for a product of matrices in the NPU's memory."""

    def __init__(self, driver, a, b, format, layout, *, m=None, tile=None, **cut):
        weights = plan_weights(format, *b.shape, **cut)
        self.plan = plan(weights, m or len(a), layout, **(tile or {}))
        self.cores = range(len(weights.cores))
        self.buffers = [buffers(driver, self.plan, core) for core in self.cores]
        for core, (_, weight, result) in enumerate(self.buffers):
            fill(weight, images.weights_image(b, weights, core))
            fill(result, GARBAGE)
        self.set(a)
        self.driver = driver
        self.job = driver.prepare([core_tasks(self.plan, i, *self.buffers[i]) for i in self.cores])

    def set(self, a):
        for feature, _, _ in self.buffers:
            fill(feature, images.features_image(a, self.plan))

    def run(self):
        self.driver.run(self.job)
        return images.results_matrix(self.results(), self.plan)

    def results(self):
        copies = []
        for _, _, result in self.buffers:
            with result.cpu_access(write=False) as memory:
                copies.append(memory.copy())
        return copies

    def free(self):
        self.job.free()
        for group in self.buffers:
            for buffer in group:
                buffer.free()
