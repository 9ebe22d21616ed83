"""Test that equal blocks, whose rounding errors add up, cause no false alarm."""

import numpy as np
import pytest

import npurt
from npurt.device.verify import is_right, probe_of
from npurt.quant.tensor import QTensor

N, K = 64, 2048
SECRETS = 100  # a bound for independent errors fails for most of these inputs


@pytest.fixture(scope="module")
def device():
    with npurt.open_device("hexagon:sim") as opened:
        yield opened


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q4_1", "q4_k", "q6_k"])
@pytest.mark.parametrize("x", [1.0, 0.3, -7.77, "repeated"])
def test_there_is_no_alarm(device, kind, x):
    values = np.ones((N, K), np.float32)
    values[1::2] = np.tile(np.random.default_rng(1).standard_normal(256), K // 256)
    tensor = QTensor.quantize(values, kind)
    packed = device.pack(tensor)
    row = np.random.default_rng(2).standard_normal(32) if x == "repeated" else np.full(32, x)
    a = np.tile(row, K // 32)[None].astype(np.float32)
    y = np.empty((1, N), np.float32)
    device.matmul(a, packed, y)
    multiplied, sizes = device.multiplied(a, packed), device.magnitudes(a, packed)

    for _ in range(SECRETS):
        probe = probe_of("w", packed)
        assert is_right(probe, packed, multiplied, y, magnitudes=sizes)


@pytest.mark.parametrize("x", [1.0, "random"])
def test_a_wrong_element_is_found(device, x):
    rng = np.random.default_rng(3)
    packed = device.pack(QTensor.quantize(np.ones((N, K), np.float32), "q8_0"))
    a = np.full((1, K), x, np.float32) if x != "random" else rng.standard_normal((1, K), np.float32)
    y = np.empty((1, N), np.float32)
    device.matmul(a, packed, y)
    y[0, 17] += 0.05 * np.linalg.norm(a) * np.sqrt(K)

    multiplied, sizes = device.multiplied(a, packed), device.magnitudes(a, packed)
    probe = probe_of("w", packed)
    assert not is_right(probe, packed, multiplied, y, magnitudes=sizes)
