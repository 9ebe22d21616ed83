"""Tests of the shortlist: the best logits of an approximate product are computed again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.cpu.device import CpuDevice
from npurt.device.verify import Mode, Sampler
from npurt.quant.tensor import QTensor
from npurt.runtime.execute.shortlist import SIZE, Shortlist
from tests.runtime.fake import FakeDevice, Products


def matrix(n=300, k=64, seed=0):
    values = np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)
    return QTensor.quantize(values, "q8_0")


@given(seed=st.integers(0, 999), rows=st.integers(1, 4), n=st.sampled_from([1, 10, 64, 65, 300]))
def test_candidates_are_exact_and_the_others_untouched(seed, rows, n):
    rng = np.random.default_rng(seed)
    tensor, bias = matrix(n, seed=seed), rng.standard_normal(n).astype(np.float32)
    x = rng.standard_normal((rows, 64)).astype(np.float32)
    exact = x.astype(np.float64) @ tensor.dequantize().T.astype(np.float64) + bias
    approximate = (exact + 0.1 * rng.standard_normal(exact.shape)).astype(np.float32)
    logits = approximate.copy()

    Shortlist(tensor, bias).rescore(x, logits)

    for row in range(rows):
        best = np.argsort(approximate[row])[-SIZE:]
        others = np.setdiff1d(np.arange(n), best)
        # K + 1 roundings of float32, times the norms of the operands
        bound = 65 * 2.0**-24 * (np.linalg.norm(x[row]) * 40 + 10)
        assert abs(logits[row, best] - exact[row, best]).max() <= bound
        np.testing.assert_array_equal(logits[row, others], approximate[row, others])


def test_the_probability_outside_is_counted():
    tensor = matrix()
    x = np.zeros((2, 64), np.float32)  # the exact logits, and so those of the candidates, are 0
    logits = np.zeros((2, 300), np.float32)
    logits[1] = -np.inf
    logits[1, 0] = 1
    shortlist = Shortlist(tensor)

    shortlist.rescore(x, logits)

    assert shortlist.rows == 2
    assert shortlist.worst == pytest.approx(1 - SIZE / 300)
    assert f"{shortlist.outside / 2:.1e} on average" in shortlist.note("a device")


def test_a_device_that_swaps_the_best_two_does_not_change_the_best():
    def meddle(_, y):
        order = np.argsort(y[0])
        y[0, order[-1]], y[0, order[-2]] = y[0, order[-2]], y[0, order[-1]]

    cpu = CpuDevice(2)
    tensor = matrix()
    x = np.random.default_rng(5).standard_normal((1, 64)).astype(np.float32)
    exact = x @ tensor.dequantize().T
    products = Products(
        cpu, tensor, x, device=FakeDevice(cpu, meddle=meddle), head=True, sampler=Sampler(Mode.OFF)
    )

    y = products.run()

    assert y[0].argmax() == exact[0].argmax()
    assert "probability outside" in str(products.ledger.report())


def test_rows_that_are_not_finite_stay():
    tensor, logits = matrix(), np.zeros((1, 300), np.float32)
    logits[0, 7] = np.nan

    Shortlist(tensor).rescore(np.full((1, 64), np.inf, np.float32), logits)

    assert not np.isfinite(logits[0]).all()


def test_the_cpus_own_logits_are_left_alone():
    cpu = CpuDevice(2)
    x = np.ones((1, 64), np.float32)

    products = Products(cpu, matrix(), x, head=True)

    assert "probability outside" not in str(products.ledger.report())
