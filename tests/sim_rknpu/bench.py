"""Run one task on either driver, and compute the expected product."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from tests.sim_rknpu import client, lists

SENTINEL = 0xEE
LIST_BYTES = 2048


def operands(task, seed=0):
    """Return random A ``[M, K]`` and B ``[N, K]`` of the task's input type, as stored."""
    rng = np.random.default_rng(seed)
    kind = task.types[0]
    shapes = (task.m, task.k), (task.n, task.k)
    if kind == "int8":
        return tuple(rng.integers(-128, 128, s).astype(np.int8) for s in shapes)
    if kind == "int4":
        return tuple(rng.integers(-8, 8, s).astype(np.int8) for s in shapes)
    values = tuple(rng.standard_normal(s).astype(np.float32) for s in shapes)
    if kind == "fp16":
        return tuple(v.astype(np.float16) for v in values)
    if kind == "bf16":
        return tuple((v.view(np.uint32) >> 16).astype(np.uint16) for v in values)
    return values


def as_float64(values, kind):
    """Return what the NPU takes stored *values* for."""
    if kind == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if kind == "tf32":
        return (values.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)
    return values.astype(np.float64)


def exact(task, a, b):
    """Return A . B^T in float64: exact for integers, far more precise than float32 for floats."""
    kind = task.types[0]
    return as_float64(a, kind) @ as_float64(b, kind).T


@contextmanager
def hangs(driver):
    """Check that the body hangs the NPU: an error on rknpu; no error and stale output on rocket."""
    before = client.report()["refused"]
    if isinstance(driver, client.Rknpu):
        with pytest.raises(OSError, match="ETIMEDOUT"):
            yield
    else:
        yield
    assert client.report()["refused"] == before + 1


class Bench:
    """The buffers of one task, and its list, ready to run as often as wanted."""

    def __init__(self, driver, task, a, b):
        self.driver = driver
        self.a = driver.buffer(lists.pack_a(a, task))
        self.b = driver.buffer(lists.pack_b(b, task))
        self.c = driver.create(task.m * (task.columns or task.n) * task.out_bytes)
        if isinstance(driver, client.Rocket):
            self.list = driver.create(LIST_BYTES)
        else:
            self.list = driver.create(LIST_BYTES, client.LISTS)
            self.entries = driver.create(40, client.TASKS)
        self.task = replace(task, a=self.a.iova, b=self.b.iova, c=self.c.iova)
        self.put(lists.encode(self.task))

    def put(self, words):
        """Write these words as the list, with filler after them."""
        self.words = words
        self.list.bytes[:] = 0
        self.list.bytes[: 8 * len(words)] = words.view(np.uint8)
        self.list.fini()

    def fill(self):
        """Fill the output, so that a missing write is detected."""
        self.c.bytes[:] = SENTINEL
        self.c.fini()

    def untouched(self):
        """Return whether the output is unchanged since `fill`."""
        return bool((self.c.bytes == SENTINEL).all())

    def start(self, *more_outputs, **fields):
        """Submit the list; *fields* replace the default fields of struct rknpu_task."""
        count = len(self.words)
        if isinstance(self.driver, client.Rocket):
            inputs = [self.list, self.a, self.b]
            self.driver.submit([(self.list.iova, count)], inputs, [self.c, *more_outputs])
        else:
            raw = client.entry(self.list.iova, count, self.task.enable, **fields)
            self.entries.bytes[:] = np.frombuffer(raw, np.uint8)
            self.driver.submit(self.entries, 1)

    def run(self, **fields):
        """Run the list; return C ``[M, N]``.

        On rocket a refused task leaves the output as it was; on rknpu it is an OSError.
        """
        self.start(**fields)
        self.c.prep()
        return self.output()

    def output(self):
        return lists.unpack_c(self.c.bytes, self.task)
