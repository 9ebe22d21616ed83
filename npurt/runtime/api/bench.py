"""Measure one product: time, bytes and error against float64."""

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from npurt.device.device import F32, F64, MAX_EXACT_K, Device, ExactInt8, RowScaledInt8
from npurt.errors import SettingError, UnsupportedOp
from npurt.quant.encode import encodable
from npurt.quant.tensor import QTensor
from npurt.quant.types import Format
from npurt.runtime.open.arguments import integer
from npurt.runtime.open.devices import is_cpu, open_device

INTEGER = "i8"
ELEMENT = 16  # bytes: float64 for the exact product, float32, and the packed weight
# Smallest number of rows for the error.  The int8 rounding error of a Gaussian row of 1536 elements
# varies by 6 % from row to row, so the error of one row would depend on the random numbers.
SAMPLE = 128

Measured = tuple[Callable[[], Any], F64, int]  # the product, its exact result, bytes of the weight


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
        kind: Format of w, or ``i8`` for int8 weights.  With ``i8`` the CPU multiplies int8 by int8
            exactly; another device rounds activations to int8 and has a weight scale for each row.

    Returns:
        ``macs``, ``packets`` of instructions for one product (None if the device does not count
        them), ``bytes`` of the weight on the device, ``seconds`` (the median), ``nmse`` against
        float64 with the dequantised weight, over at least `SAMPLE` rows.  Rows beyond *m* are
        multiplied once, in a separate product that is not timed.

    Raises:
        SettingError: A size is below 1, or this machine has too little memory.
        UnsupportedOp: There is no such *kind*, or the device has no kernel for it.
    """
    for name, size in (("m", m), ("k", k), ("n", n), ("repetitions", repetitions)):
        integer(name, size, 1)
    _require_memory(m, k, n)
    fmt = None if kind == INTEGER else encodable(kind, INTEGER)
    rng = np.random.default_rng(0)
    with open_device(device, threads=threads) as opened:
        row: dict[str, Any] = {"device": opened.caps.name, "type": kind, "m": m, "k": k, "n": n}
        if kind == INTEGER and is_cpu(opened):
            product, exact, nbytes = _integers(opened, m, k, n, rng)
        else:
            product, exact, nbytes = _floats(opened, m, k, n, fmt, rng)
        y, seconds = _time(product, repetitions)
        before = opened.packets()
        product()
        packets = opened.packets() - before
    power = (exact**2).sum()
    error = ((y - exact) ** 2).sum() / power if power else 0.0
    counts = {"macs": m * k * n, "packets": packets or None, "bytes": nbytes}
    return row | counts | {"seconds": seconds, "nmse": float(error)}


def _require_memory(m: int, k: int, n: int) -> None:
    rows = max(m, SAMPLE)
    wanted = ELEMENT * (rows * k + k * n + rows * n)
    have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if wanted > have:
        raise SettingError(
            f"a product of {m} x {k} x {n} needs {wanted / 1e9:.3g} GB to measure, "
            f"this machine has {have / 1e9:.3g} GB",
            remedy="use smaller sizes",
        )


def _integers(device: ExactInt8, m: int, k: int, n: int, rng: np.random.Generator) -> Measured:
    if k > MAX_EXACT_K:
        raise UnsupportedOp(
            f"the CPU has no exact int8 product of K = {k}",
            remedy=f"use K up to {MAX_EXACT_K}",
        )
    a = rng.integers(-128, 128, (m, k)).astype(np.int8)
    b = rng.integers(-128, 128, (k, n)).astype(np.int8)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    return lambda: device.matmul_i8(a, b), exact, b.nbytes


def _floats(
    device: Device, m: int, k: int, n: int, fmt: Format | None, rng: np.random.Generator
) -> Measured:
    rows = max(m, SAMPLE)
    x = rng.standard_normal((rows, k)).astype(np.float32)
    values = rng.standard_normal((n, k)).astype(np.float32)
    if fmt is None:
        if not isinstance(device, RowScaledInt8):
            raise UnsupportedOp(
                f"{device.caps.name} has no products of int8 with a scale for each row",
                remedy="use a block format such as q8_0",
            )
        scales = abs(values).max(axis=1) / np.float32(127)
        packed = device.pack_i8(np.rint(values / scales[:, None]).astype(np.int8), scales)
    else:
        packed = device.pack(QTensor.quantize(values, fmt))
    exact = x.astype(np.float64) @ packed.tensor.dequantize().astype(np.float64).T
    out = np.empty((rows, n), np.float32)
    if rows > m:
        device.matmul(x[m:], packed, out[m:])

    def product() -> F32:
        device.matmul(x[:m], packed, out[:m])
        return out

    return product, exact, packed.nbytes


def _time(product: Any, repetitions: int) -> tuple[Any, float]:
    product()
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        result = product()
        seconds.append(time.perf_counter() - start)
    return result, float(np.median(seconds))
