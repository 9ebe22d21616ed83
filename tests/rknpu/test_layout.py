"""Test layouts against the index functions of public generators, and test their inverses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import LayoutError
from npurt.rknpu.isa.formats import FORMATS
from npurt.rknpu.isa.layout import (
    Layout,
    arrange,
    from_bytes,
    pack_weights,
    pad,
    restore,
    to_bytes,
    unpack_weights,
)
from npurt.rknpu.plan import images
from npurt.rknpu.plan.tiling import plan, plan_weights

FORM_NAMES = sorted(FORMATS)

# Index of B[n, k] in the image, in elements, from (K, n, k), by gregordinary/rocket-userspace:
# weight_int8(), weight_fp16(), weight_int4(), weight_tf32().  mtx512 has the first two, too.
WEIGHT_INDEX = [
    ((128, 5, 37), {"int8": 1189, "fp16": 677, "int4": 2213, "tf32": 597}),
    ((128, 33, 100), {"int8": 7204, "fp16": 5668, "int4": 7204, "tf32": 5652}),
    ((96, 70, 95), {"int8": 8415, "fp16": 7391, "int4": 10463, "tf32": 7535}),
    ((4096, 31, 4095), {"int8": 131071, "fp16": 131071, "int4": 261119, "tf32": 131071}),
]

# Index of A[m, k] in the native layout, in elements, from (K, M, m, k): feature_data() of both.
NATIVE_INDEX = [
    ((128, 4, 3, 77), {"int8": 317, "fp16": 317}),
    ((64, 7, 6, 63), {"int8": 447, "fp16": 447}),
    ((4096, 9, 2, 3000), {"int8": 26968, "fp16": 27016}),
]


def matrix(format, rows, columns, seed=0):
    """Return a matrix of random elements of the format, to identify positions."""
    rng = np.random.default_rng(seed)
    if format.name == "int4":
        return rng.integers(-8, 8, (rows, columns), dtype=np.int8)
    if format.bits == 8:
        return rng.integers(-128, 128, (rows, columns), dtype=np.int8)
    return rng.standard_normal((rows, columns)).astype(
        {16: np.float16, 32: np.float32}[format.bits]
    )


def one(format, rows, columns, row, column):
    """Return a matrix of zeros with a one at (*row*, *column*)."""
    x = np.zeros((rows, columns), matrix(format, 1, 2).dtype)
    x[row, column] = 1
    return x


def place_of_one(image, format):
    """Return the index of the only nonzero element in a flat image."""
    (index,) = np.flatnonzero(from_bytes(image.reshape(1, -1), format))
    return index


@pytest.mark.parametrize("form_name", ["int8", "fp16", "int4", "tf32"])
@pytest.mark.parametrize(("at", "index"), WEIGHT_INDEX)
def test_weights_lie_where_programs_that_ran_read_them(form_name, at, index):
    k_size, n, k = at
    format = FORMATS[form_name]

    image = pack_weights(one(format, 128, k_size, n, k), format)

    assert place_of_one(image, format) == index[form_name]


@pytest.mark.parametrize("form_name", ["int8", "fp16"])
@pytest.mark.parametrize(("at", "index"), NATIVE_INDEX)
def test_native_features_lie_where_programs_that_ran_read_them(form_name, at, index):
    k_size, rows, m, k = at
    format = FORMATS[form_name]

    for layout in (Layout.NATIVE_W, Layout.NATIVE_H):
        image = arrange(to_bytes(one(format, rows, k_size, m, k), format), layout)
        assert place_of_one(image, format) == index[form_name]


def test_row_is_plain_row_major():
    a = matrix(FORMATS["int8"], 5, 64)

    assert arrange(to_bytes(a, FORMATS["int8"]), Layout.ROW).tobytes() == a.tobytes()


@given(st.sampled_from([8, 16]), st.integers(1, 3), st.integers(0, 10**6))
def test_a_panel_keeps_its_rows_together(p, panels, position):
    """The index is ((m / p) * (K / c2) + k / c2) * p * c2 + (m % p) * c2 + k % c2 [happyme531]."""
    rows, columns, c2 = p * panels, 96, 16
    m, k = divmod(position % (rows * columns), columns)
    layout = Layout(f"panel{p}")

    image = arrange(to_bytes(one(FORMATS["int8"], rows, columns, m, k), FORMATS["int8"]), layout)

    where = ((m // p) * (columns // c2) + k // c2) * p * c2 + (m % p) * c2 + k % c2
    assert place_of_one(image, FORMATS["int8"]) == where


@pytest.mark.parametrize("name", FORM_NAMES)
@given(groups=st.integers(1, 3), steps=st.integers(1, 4), seed=st.integers(0, 99))
def test_weights_come_back(name, groups, steps, seed):
    format = FORMATS[name]
    b = matrix(format, groups * format.group, steps * format.k_step, seed)

    packed = pack_weights(b, format)

    assert packed.shape[:3] == (groups, steps, format.group)
    assert packed[0, 0].size == 1024
    np.testing.assert_array_equal(unpack_weights(packed, format), b)


@pytest.mark.parametrize("name", FORM_NAMES)
@given(layout=st.sampled_from(Layout), units=st.integers(1, 4), steps=st.integers(1, 4))
def test_features_and_results_come_back(name, layout, units, steps):
    format = FORMATS[name]
    a = matrix(format, units * layout.panel_rows, steps * format.k_step)

    image = arrange(to_bytes(a, format), layout)

    assert image.flags.c_contiguous
    np.testing.assert_array_equal(from_bytes(restore(image, layout, len(a)), format), a)


def test_the_low_nibble_comes_first():
    packed = to_bytes(np.array([[1, -2, 7, -8]], np.int8), FORMATS["int4"])

    assert packed.tolist() == [[0xE1, 0x87]]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: to_bytes(np.zeros((1, 32), np.int16), FORMATS["int8"]), "takes int8, not int16"),
        (lambda: to_bytes(np.full((1, 32), 8, np.int8), FORMATS["int4"]), "4 bits"),
        (lambda: to_bytes(np.zeros((1, 31), np.int8), FORMATS["int4"]), "multiple of 32"),
        (lambda: pack_weights(np.zeros((33, 32), np.int8), FORMATS["int8"]), "pad N to 64"),
        (lambda: pack_weights(np.zeros((32, 33), np.int8), FORMATS["int8"]), "and K to 64"),
        (lambda: arrange(np.zeros((4, 40), np.uint8), Layout.ROW), "whole atoms"),
        (lambda: arrange(np.zeros((12, 32), np.uint8), Layout.PANEL8), "pad to 16 rows"),
        (lambda: arrange(np.zeros((0, 32), np.uint8), Layout.NATIVE_W), "0 rows"),
    ],
)
def test_what_does_not_divide_is_refused_with_what_to_pad_to(call, says):
    with pytest.raises(LayoutError, match=says):
        call()


def test_views_that_are_not_contiguous_are_packed_by_value():
    b = matrix(FORMATS["int8"], 64, 128)

    np.testing.assert_array_equal(
        pack_weights(np.asfortranarray(b)[::2, ::2], FORMATS["int8"]),
        pack_weights(b[::2, ::2].copy(), FORMATS["int8"]),
    )


@pytest.mark.parametrize("name", FORM_NAMES)
@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 3), st.sampled_from([None, 64]))
def test_the_weights_of_a_plan_come_back_from_its_cores(name, n, k, cores, max_k):
    format = FORMATS[name]
    weights = plan_weights(format, n, k, cores=cores, max_k=max_k)
    b = matrix(format, n, k)

    parts = [images.weights_image(b, weights, core) for core in range(len(weights.cores))]

    assert [part.size for part in parts] == [
        weights.image_bytes(core) for core in range(len(weights.cores))
    ]
    np.testing.assert_array_equal(images.weights_rows(parts, weights, slice(0, n))[:, :k], b)


def test_the_features_of_a_plan_are_padded_with_zeros():
    weights = plan_weights(FORMATS["int8"], 32, 40)
    product = plan(weights, 5, Layout.PANEL8)
    a = matrix(FORMATS["int8"], 5, 40)

    image = images.features_image(a, product)

    assert image.size == product.a_bytes
    rows = from_bytes(restore(image, Layout.PANEL8, 8), FORMATS["int8"])
    np.testing.assert_array_equal(rows, pad(a, 8, 64))
