"""Weights and inputs for tests of a device, and checks of its products."""

import numpy as np

from npurt.quant.tensor import QTensor


def tensor(n, k, kind="q8_0", seed=0):
    rng = np.random.default_rng(seed)
    return QTensor.quantize(rng.standard_normal((n, k)).astype(np.float32), kind)


def inputs(m, k, seed=1):
    return np.random.default_rng(seed).standard_normal((m, k)).astype(np.float32)


def multiply(device, x, packed):
    out = np.full((len(x), packed.n), np.nan, np.float32)
    device.matmul(x, packed, out)
    return out


def assert_is_product(device, x, packed, y):
    """Check y against the operands that the device reports, and those operands against the inputs.

    y must be within eight standard errors of rounding, as in verification; x within half a
    step of 1/127 of the largest of 32, and a bit; w within 2^-10 of a row, as the layout promises.
    """
    rounded = device.multiplied(x, packed).astype(np.float64)
    weights = packed.multiplied(slice(None)).astype(np.float64)
    bound = 8 * device.magnitudes(x, packed)[:, None] * packed.error(slice(None))
    assert (abs(y - rounded @ weights.T) <= bound).all()

    steps = abs(x.reshape(len(x), -1, 32)).max(axis=2) / 127
    assert (abs(x - rounded).reshape(*steps.shape, 32) <= 0.51 * steps[..., None] + 1e-30).all()
    exact = packed.tensor.dequantize().astype(np.float64)
    off = np.sqrt(((weights - exact) ** 2).sum(axis=1))
    assert (off <= 2.0**-10 * np.sqrt((exact**2).sum(axis=1))).all()
