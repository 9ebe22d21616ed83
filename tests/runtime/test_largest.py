"""Tests of the output matrices of the largest vocabularies, on every device."""

import numpy as np
import pytest

from npurt.quant.tensor import QTensor
from npurt.runtime.open.devices import open_device

SIGMAS = 8  # of the rounding error that `Packed.error` gives; chance does not reach this
SLICE = 1 << 14


@pytest.mark.parametrize("name", ["cpu", "hexagon:sim", "rknpu:sim", "rknpu:sim-vendor"])
@pytest.mark.parametrize("n", [151936, 248320])
def test_every_column_of_the_largest_output_matrices_is_right(name, n):
    rng = np.random.default_rng(n)
    values = rng.standard_normal((n, 64), dtype=np.float32)
    # Rows of different sizes make swapped rows detectable.
    values *= np.exp2(rng.integers(-3, 4, (n, 1))).astype(np.float32)
    x = rng.standard_normal((3, 64), dtype=np.float32)
    y = np.full((3, n), np.nan, np.float32)

    with open_device(name) as device:
        packed = device.pack(QTensor.quantize(values, "q8_0"), int16=True)
        device.matmul(x, packed, y)

        used = device.multiplied(x, packed).astype(np.float64)
        size = device.magnitudes(x, packed)
        size = np.linalg.norm(used, axis=1) if size is None else size
        for start in range(0, n, SLICE):
            rows = slice(start, min(start + SLICE, n))
            expected = used @ packed.multiplied(rows).T
            bound = SIGMAS * size[:, None] * packed.error(rows)
            assert (abs(y[:, rows] - expected) <= bound).all()
    assert np.corrcoef((x @ values.T).ravel(), y.ravel())[0, 1] > 0.999
