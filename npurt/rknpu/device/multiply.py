"""Run products with any number of rows, in steps that fit the time limit and the memory."""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from npurt.device.device import F32, MAX_ROWS
from npurt.errors import DeviceFull
from npurt.rknpu.device.needs import FEW_ROWS, rows_within
from npurt.rknpu.device.prepared import by_scheme
from npurt.rknpu.device.product import Product
from npurt.rknpu.device.weight_store import WeightStore
from npurt.rknpu.device.weights import RkPacked
from npurt.rknpu.driver.native.host import I8, I32


def multiply(store: WeightStore, x: F32, weights: Sequence[RkPacked], outs: Sequence[F32]) -> None:
    """Write the products of x with all weights to *outs*.

    Raises:
        NumericsError: x holds NaN or infinity.
        DeviceFull: The NPU has no memory for the results of a single row.
        DriverError: The NPU failed.
    """

    def run(first: int, end: int) -> None:
        if end - first == len(x):
            _multiply_at_once(store, x, weights, outs)
        else:
            rows = slice(first, end)
            _multiply_at_once(store, x[rows], weights, [out[rows] for out in outs], first)

    _in_steps(store, weights, len(x), run)


def multiply_i8(store: WeightStore, a: I8, weight: RkPacked, y: I32) -> None:
    """Write the exact ``a @ weight.T`` to *y*.  Errors as `multiply`."""

    def run(first: int, end: int) -> None:
        ((product, _),) = store.calls.take([weight], end - first)
        product.run_i8(a[first:end], y[first:end])

    _in_steps(store, [weight], len(a), run)


# --- Rows of a step -------------------------------------------------------------------------------


@functools.cache
def rows_prepared(rows: int) -> int:
    """Round *rows* up to a number of rows for which products are prepared."""
    step = 1 if rows <= 16 else 16 if rows <= 128 else 64
    return -(-rows // step) * step


def prepared_below(rows: int) -> int:
    """Return the largest result of `rows_prepared` that is at most half of *rows*, or 0."""
    return next((n for n in range(rows // 2, 0, -1) if rows_prepared(n) == n), 0)


def _in_steps(
    store: WeightStore, weights: Sequence[RkPacked], rows: int, run: Callable[[int, int], None]
) -> None:
    """Call *run* for intervals of *rows* that fit the job's time limit and memory."""
    if store.evicted:
        store.upload_missing(weights)
    step = _max_rows(store, weights, rows)
    while True:
        try:
            for start in range(0, rows, step):
                if store.dropped:
                    store.free_dropped()
                run(start, min(start + step, rows))
            return
        except DeviceFull:
            step = prepared_below(min(step, rows))
            if not step:
                raise
            store.short[tuple([w.number for w in weights])] = step


def _max_rows(store: WeightStore, weights: Sequence[RkPacked], rows: int) -> int:
    """Return the number of rows to multiply at once."""
    short = store.short and store.short.get(tuple([w.number for w in weights]))
    if short:
        return short
    if rows <= FEW_ROWS:
        return FEW_ROWS
    return min(
        rows_within(
            store.driver.planned_s,
            tuple(part.plan for i in which for part in weights[i].parts),
            scheme.passes,
            MAX_ROWS,
        )
        for scheme, which in by_scheme(weights)
    )


# --- One call -------------------------------------------------------------------------------------


def _multiply_at_once(
    store: WeightStore, x: F32, weights: Sequence[RkPacked], outs: Sequence[F32], first: int = 0
) -> None:
    """Multiply at most `_max_rows` rows; in errors, *first* is the number of the first row."""
    for product, which in store.calls.take(weights, rows_prepared(len(x))):
        results = outs if len(which) == len(outs) else [outs[i] for i in which]
        if product.rows == len(x):
            product.run(x, results, first)
        else:
            _run_padded(product, x, results, first)


def _run_padded(product: Product, x: F32, outs: Sequence[F32], first: int) -> None:
    """Run a product that was prepared for more rows than x has; pad x with zeros."""
    padded = np.zeros((product.rows, x.shape[1]), np.float32)
    padded[: len(x)] = x
    wide = [np.empty((product.rows, out.shape[1]), np.float32) for out in outs]
    product.run(padded, wide, first)
    for out, result in zip(outs, wide, strict=True):
        out[:] = result[: len(x)]
