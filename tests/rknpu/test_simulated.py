"""Test products through plan, program, driver and simulator against numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npurt.rknpu.driver.detect import open_driver
from npurt.rknpu.isa.formats import FORMATS
from npurt.rknpu.isa.layout import Layout
from tests.oracle import assert_within, gamma
from tests.rknpu.products import Prepared, elements

EXAMPLES = 150


def check(y, a, b, format):
    """Check that integers are exact, and floats within the error of float32 sums of K products.

    The K roundings include the sums of slices of K, which are also added in float32.  A float16
    result is rounded once more, relative to its value.
    """
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    if format.bits <= 8 and format.out != "float32":
        np.testing.assert_array_equal(y, exact)
        return
    total = abs(a.astype(np.float64)) @ abs(b.astype(np.float64)).T
    half = 2.0**-11 * total if format.out == "float16" else 0
    assert_within(y, exact, gamma(a.shape[1] + 1) * total + half)


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_any_product_is_that_of_numpy(driver, data):
    format = FORMATS[data.draw(st.sampled_from(sorted(FORMATS)))]
    layout = data.draw(st.sampled_from(Layout))
    m, k, n = (data.draw(st.integers(1, maximum)) for maximum in (40, 600, 300))
    a, b = elements(format, (m, k), 0), elements(format, (n, k), 1)
    tile = {"max_n": data.draw(st.sampled_from([64, 128, 4096]))}
    if layout is not Layout.NATIVE_H:
        tile["max_m"] = data.draw(st.none() | st.integers(16, 40))

    product = Prepared(
        driver, a, b, format, layout, tile=tile,
        cores=data.draw(st.integers(1, 3)),
        max_k=data.draw(st.none() | st.integers(32, 600)),
    )  # fmt: skip
    y = product.run()
    product.free()

    check(y, a, b, format)


# The first shapes to try on a board: row counts that are no multiple of 4, more than one group of
# kernels, half an entry a line, the longest sums, and tiles of rows that just fit or just do not.
SHAPES = [
    *((m, 64, 64) for m in range(1, 10)),
    (1, 32, 32), (4, 64, 96), (126, 2080, 64), (144, 672, 64), (1, 11008, 64), (2, 11008, 64),
    (160, 2048, 64), (161, 2048, 64), (1, 1536, 9000), (130, 8960, 100), (512, 576, 192),
]  # fmt: skip


@pytest.mark.parametrize("layout", [Layout.ROW, Layout.NATIVE_W])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_shapes_that_others_found_hard_are_exact(driver, shape, layout):
    m, k, n = shape
    a, b = elements(FORMATS["int8"], (m, k), 2), elements(FORMATS["int8"], (n, k), 3)

    product = Prepared(driver, a, b, FORMATS["int8"], layout, rows=m)
    y = product.run()
    product.free()

    np.testing.assert_array_equal(y, a.astype(np.int64) @ b.T)


def test_the_largest_sums_are_exact(driver):
    a = np.full((3, 11264), -128, np.int8)
    b = np.full((32, 11264), -128, np.int8)
    product = Prepared(driver, a, b, FORMATS["int8"], Layout.ROW, rows=1)

    y = product.run()
    product.free()

    assert (y == 128 * 128 * 11264).all()


def test_partial_sums_of_int4_add_up_beyond_int16(driver):
    """Each of two tasks adds 480 products of -8 and -8, which is 30720."""
    a, b = np.full((2, 960), -8, np.int8), np.full((64, 960), -8, np.int8)
    product = Prepared(driver, a, b, FORMATS["int4"], Layout.ROW)

    y = product.run()
    product.free()

    assert (y == 64 * 960).all()


def test_a_prepared_job_runs_again_with_other_features(driver):
    format = FORMATS["int8"]
    b = elements(format, (200, 100), 4)
    product = Prepared(driver, elements(format, (5, 100), 5), b, format, Layout.ROW)

    for seed in range(6, 9):
        a = elements(format, (5, 100), seed)
        product.set(a)
        np.testing.assert_array_equal(product.run(), a.astype(np.int32) @ b.T)
    product.free()


def test_float_products_are_rounded_no_more_than_once(driver):
    """The simulator sums exactly; fp16 results are then the nearest float16."""
    for name, result in (("fp16", np.float32), ("fp16-fp16", np.float16)):
        format = FORMATS[name]
        a, b = elements(format, (7, 96), 10), elements(format, (48, 96), 11)
        product = Prepared(driver, a, b, format, Layout.ROW)

        y = product.run()
        product.free()

        exact = (a.astype(np.float64) @ b.astype(np.float64).T).astype(result)
        np.testing.assert_array_equal(y, exact)


def test_both_drivers_ran_the_same_words(simulator):
    """Both drivers use one generator: the bodies are equal, and only the tails differ."""
    bodies = []
    for name in ("rocket", "rknpu"):
        opened = open_driver(simulator, (name,))
        a, b = elements(FORMATS["int8"], (2, 64), 0), elements(FORMATS["int8"], (6000, 64), 1)
        product = Prepared(opened, a, b, FORMATS["int8"], Layout.ROW, cores=1)
        part = product.job.parts[0]
        with part.program.write() as memory:
            words = memory.view("<u8").reshape(part.count, -1).copy()
        addresses = [index for index in range(128) if words[0, index] & 0xFFFF in (
            0x1070, 0x1110, 0x4020)]  # fmt: skip
        words[:, addresses] = 0
        bodies.append(words[:, :122])
        np.testing.assert_array_equal(product.run(), a.astype(np.int32) @ b.T)
        opened.close()

    np.testing.assert_array_equal(*bodies)
