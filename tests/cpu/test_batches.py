"""Tests of the number of pool runs that open a model: one run packs many weights."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt import Llama
from npurt.cpu.device import CpuDevice
from npurt.cpu.pool import program
from npurt.cpu.pool.engine import CpuThreadPool
from npurt.cpu.pool.program import BATCH, batches
from npurt.quant.tensor import QTensor
from tests.cpu import cases
from tests.llm import tiny


@pytest.fixture
def runs(monkeypatch):
    """Return a list to which each run of a pool appends its number of ops."""
    counts, run = [], CpuThreadPool.run

    def counted(self, ops, count, table):
        counts.append(count)
        return run(self, ops, count, table)

    monkeypatch.setattr(CpuThreadPool, "run", counted)
    return counts


@given(st.lists(st.integers(0, 2 * BATCH), max_size=20))
def test_batches_have_all_weights_in_order_and_end_when_they_are_full(sizes):
    found = list(batches(sizes))

    assert [i for batch in found for i in batch] == list(range(len(sizes)))
    for batch in found:
        *before, last = (sizes[i] for i in batch)
        assert sum(before) < BATCH
        assert sum(before) + last >= BATCH or batch.stop == len(sizes)


def test_weights_of_one_batch_are_one_run(runs):
    rng = np.random.default_rng(0)
    tensors = [cases.weight(rng, "q4_0", n, 64) for n in (16, 5, 33)]
    tensors.insert(1, QTensor.quantize(np.empty((0, 64), np.float32), "q8_0"))
    done = []

    with CpuDevice(2) as device:
        packed = device.pack_all(tensors, done.append)
        alone = [device.pack(tensor) for tensor in tensors]

    assert done == [0, 1, 2, 3]
    assert runs[0] == 3
    for one, other in zip(packed, alone, strict=True):
        np.testing.assert_array_equal(one.image.data, other.image.data)


def test_a_weight_is_done_before_those_of_the_next_batch_are_packed(monkeypatch, runs):
    monkeypatch.setattr(program, "BATCH", 1)
    rng = np.random.default_rng(0)
    tensors = [cases.weight(rng, "q4_0", 16, 64) for _ in range(3)]
    done = []

    with CpuDevice(2) as device:
        device.pack_all(tensors, lambda i: done.append((i, len(runs))))

    assert done == [(0, 1), (1, 2), (2, 3)]


def test_opening_a_model_is_two_runs(runs):
    """One run packs the weights, and one makes the probes of their products."""
    with Llama(tiny.path("llama3", "q8_0"), "cpu", n_ctx=64, verify="sample", progress=False):
        assert len(runs) == 2
        assert runs[0] == runs[1] > 10
