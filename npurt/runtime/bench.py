"""One product, measured: time, bytes and error against float64."""

import time
from typing import Any

import numpy as np

from npurt.cpu.device import MAX_EXACT_K, CpuDevice
from npurt.errors import SettingError, UnsupportedOp
from npurt.quant.tensor import QTensor
from npurt.runtime.devices import open_device

INTEGER = "i8"


def bench_matmul(
    m: int,
    k: int,
    n: int,
    kind: str,
    *,
    device: str | None = None,
    threads: int | None = None,
    repetitions: int = 20,
) -> dict[str, Any]:
    """Measure ``y[m, n] = x[m, k] @ w[n, k].T`` on Gaussian data.

    Args:
        kind: Format of w, or ``i8``: int8 by int8, exact.

    Returns:
        ``macs``, ``packets`` (None where the device does not count them), ``bytes`` of the weight
        on the device, ``seconds`` (the median), ``nmse`` against float64 on the dequantised weight.
    """
    if min(m, k, n, repetitions) < 1:
        raise SettingError(
            f"a product of {m} x {k} x {n}, {repetitions} times, cannot be measured",
            remedy="use sizes and repetitions of at least 1",
        )
    rng = np.random.default_rng(0)
    with open_device(device, threads=threads) as opened:
        row: dict[str, Any] = {"device": opened.caps.name, "type": kind, "m": m, "k": k, "n": n}
        if kind == INTEGER:
            if not isinstance(opened, CpuDevice) or k > MAX_EXACT_K:
                raise UnsupportedOp(
                    f"{opened.caps.name} has no exact int8 product of K = {k}",
                    remedy=f"use -dev cpu and K up to {MAX_EXACT_K}",
                )
            a = rng.integers(-128, 128, (m, k)).astype(np.int8)
            b = rng.integers(-128, 128, (k, n)).astype(np.int8)
            exact = a.astype(np.float64) @ b.astype(np.float64)
            nbytes = b.nbytes
            y, seconds = _time(lambda: opened.matmul_i8(a, b), repetitions)
        else:
            x = rng.standard_normal((m, k)).astype(np.float32)
            tensor = QTensor.quantize(rng.standard_normal((n, k)).astype(np.float32), kind)
            packed = opened.pack(tensor)
            exact = x.astype(np.float64) @ tensor.dequantize().astype(np.float64).T
            out = np.empty((m, n), np.float32)
            nbytes = packed.nbytes
            _, seconds = _time(lambda: opened.matmul(x, packed, out), repetitions)
            y = out
    power = (exact**2).sum()
    error = ((y - exact) ** 2).sum() / power if power else 0.0
    counts = {"macs": m * k * n, "packets": None, "bytes": nbytes}
    return row | counts | {"seconds": seconds, "nmse": float(error)}


def _time(product: Any, repetitions: int) -> tuple[Any, float]:
    product()
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        result = product()
        seconds.append(time.perf_counter() - start)
    return result, float(np.median(seconds))
