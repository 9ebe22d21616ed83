"""Tests of `matmul` and `pack` against numpy: dtypes, formats, shapes, layouts and refusals."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npurt
from npurt.errors import LayoutError, NumericsError, UnsupportedOp
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME
from tests.cpu import cases
from tests.runtime.products import (
    assert_float_product,
    assert_packed_product,
    batches,
    layouts,
    numbers,
    read_only,
    relaid,
    seeds,
)

ENCODABLE = [name for name in BY_NAME if name not in ("q2_k", "q3_k", "iq4_xs")]
SCALES = np.array([0, 1, -0.5, 0.0123, 6e-8, 300], np.float16)  # products do not overflow float32


# --- int8 -----------------------------------------------------------------------------------------


@given(seeds, st.integers(0, 40), st.integers(0, 70), st.integers(0, 40), layouts, layouts)
def test_int8_products_are_exact_for_every_shape_and_layout(seed, m, k, n, of_a, of_b):
    a = relaid(numbers(seed, (m, k), np.int8), of_a)
    b = relaid(numbers(seed + 1, (k, n), np.int8), of_b)

    y = npurt.matmul(a, b)

    assert y.dtype == np.int32
    np.testing.assert_array_equal(y, a.astype(np.int64) @ b.astype(np.int64), strict=False)
    assert y.shape == (m, n)


@given(seeds, batches)
def test_int8_batches_and_vectors_broadcast_as_numpys_do(seed, shapes):
    a, b = numbers(seed, shapes[0], np.int8), numbers(seed + 1, shapes[1], np.int8)
    wanted = np.matmul(a.astype(np.int64), b.astype(np.int64))

    y = npurt.matmul(a, b)

    assert (y.dtype, y.shape) == (np.int32, wanted.shape)
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("rows", [511, 512, 513])
def test_int8_products_of_more_rows_than_one_run_takes_are_exact(rows):
    a, b = numbers(0, (rows, 33), np.int8), numbers(1, (33, 17), np.int8)

    np.testing.assert_array_equal(npurt.matmul(a, b), a.astype(np.int64) @ b)


@pytest.mark.parametrize("value", [-128, 127])
def test_the_largest_int8_sums_are_exact_and_larger_ones_refused(value):
    k = 131071  # the largest whose sum, K * 128 * 128, is below 2^31
    a, b = np.full((1, k), -128, np.int8), np.full((k, 1), value, np.int8)

    assert npurt.matmul(a, b) == k * -128 * value
    with pytest.raises(UnsupportedOp, match="131072"):
        npurt.matmul(np.ones((1, k + 1), np.int8), np.ones((k + 1, 1), np.int8))


# --- Floats ---------------------------------------------------------------------------------------


@given(
    seeds,
    batches,
    st.sampled_from([np.float16, np.float32, np.float64, np.int8]),
    st.sampled_from([np.float16, np.float32, np.float64]),
    layouts,
    layouts,
)
def test_float_products_are_numpys_to_float32_rounding(seed, shapes, one, other, of_a, of_b):
    a, b = numbers(seed, shapes[0], one), numbers(seed + 1, shapes[1], other)

    y = npurt.matmul(relaid(a, of_a), relaid(b, of_b))
    z = npurt.matmul(relaid(b.T, of_b), relaid(a.T, of_a)) if a.ndim == b.ndim == 2 else None

    assert_float_product(y, a, b)
    if z is not None:
        assert_float_product(z, b.T, a.T)


def test_nan_and_infinity_pass_through_float_products_as_in_numpy():
    a = np.array([[np.nan, 1], [np.inf, 1], [-np.inf, np.inf], [0, 1]], np.float32)
    b = np.array([[1, 0], [2, 3]], np.float32)
    with np.errstate(all="ignore"):
        wanted = np.matmul(a, b)

    np.testing.assert_array_equal(npurt.matmul(a, b), wanted)


def test_float64_is_rounded_to_float32_and_refused_beyond_it():
    assert npurt.matmul(np.array([1 + 2.0**-40]), np.array([1.0])) == np.float32(1)
    with pytest.raises(NumericsError, match=r"b holds a value beyond float32, 1e\+39"):
        npurt.matmul(np.ones((1, 1)), np.full((1, 1), 1e39))


def test_infinite_float64_is_infinite_float32():
    assert npurt.matmul(np.array([np.inf]), np.array([2.0])) == np.inf


# --- Packed and quantised operands ----------------------------------------------------------------


@pytest.mark.parametrize("fmt", ENCODABLE)
@settings(max_examples=30)
@given(seed=seeds, m=st.integers(0, 5), blocks=st.integers(0, 3), n=st.integers(0, 40))
def test_a_packed_weight_of_every_format_multiplies_by_its_own_values(fmt, seed, m, blocks, n):
    k = blocks * max(BY_NAME[fmt].block, 7)
    x = numbers(seed, (m, k))
    w = npurt.pack(numbers(seed + 1, (k, n)), fmt)

    assert (w.shape, w.ndim, w.tensor.dtype, w.tensor.shape) == ((k, n), 2, fmt, (n, k))
    assert_packed_product(npurt.matmul(x, w), x, w.tensor)


@pytest.mark.parametrize("fmt", BY_NAME)
@settings(max_examples=30)
@given(seed=seeds, m=st.integers(1, 5), n=st.integers(1, 40))
def test_a_transposed_qtensor_of_every_format_multiplies_without_packing_first(fmt, seed, m, n):
    rng = np.random.default_rng(seed)
    k = 2 * max(BY_NAME[fmt].block, 32)
    if BY_NAME[fmt].block == 1:
        tensor = QTensor.quantize(numbers(seed, (n, k)), fmt)
    else:
        tensor = cases.weight(rng, fmt, n, k, SCALES)
    x = cases.activations(rng, m, k)

    y = npurt.matmul(x, tensor.T)

    if BY_NAME[fmt].block == 1:
        assert_float_product(y, x, tensor.T.dequantize())
    else:
        assert_packed_product(y, x, tensor)
        np.testing.assert_array_equal(npurt.matmul(x, npurt.pack(tensor.T)), y)


@given(seeds, st.lists(st.integers(0, 3), max_size=3), st.booleans(), layouts)
def test_batches_and_vectors_meet_a_packed_weight_row_by_row(seed, batch, vector, layout):
    x = numbers(seed, 64) if vector else numbers(seed, (*batch, 64), np.float64)
    w = npurt.pack(numbers(seed + 1, (64, 5)), "q4_0")

    assert_packed_product(npurt.matmul(relaid(x, layout), w), x, w.tensor)


def test_more_rows_than_one_run_takes_meet_a_packed_weight():
    x = numbers(0, (1030, 64))
    w = npurt.pack(numbers(1, (64, 20)), "q8_0")

    assert_packed_product(npurt.matmul(x, w), x, w.tensor)


def test_a_packed_weight_gives_the_same_row_whatever_rows_come_with_it():
    x = numbers(0, (20, 256))
    for fmt in ENCODABLE:
        w = npurt.pack(numbers(1, (256, 40)), fmt)
        single = [npurt.matmul(row, w) for row in x]
        np.testing.assert_array_equal(npurt.matmul(x, w), single)


@pytest.mark.parametrize("fmt", ["f32", "f16", "bf16"])
def test_a_qtensor_of_floats_multiplies_as_its_values(fmt):
    w = QTensor.quantize(numbers(0, (6, 32)), fmt)
    a, b = numbers(1, (3, 6)), numbers(2, (32, 4))

    assert_float_product(npurt.matmul(a, w), a, w.dequantize())
    assert_float_product(npurt.matmul(w, b), w.dequantize(), b)
    assert_float_product(npurt.matmul(w[0], b), w[0].dequantize(), b)
    assert_float_product(npurt.matmul(w, npurt.pack(b, "f32")), w.dequantize(), b)


@given(seeds, st.integers(0, 5), st.integers(1, 40), st.booleans())
def test_a_quantised_left_operand_rounds_the_columns_of_the_right_one(seed, m, n, packed):
    b = numbers(seed, (64, m))
    tensor = QTensor.quantize(numbers(seed + 1, (n, 64)), "q8_0")
    w = npurt.pack(tensor.T).T if packed else tensor

    assert_packed_product(npurt.matmul(w, b).T, b.T, tensor)


def test_packing_keeps_the_codes_of_a_qtensor_and_knows_what_it_is():
    tensor = QTensor.quantize(numbers(0, (48, 256)), "q4_k")

    w = npurt.pack(tensor.T)

    assert w.tensor is tensor
    assert npurt.pack(tensor.T, "Q4_K").tensor is tensor
    assert (w.device, w.shape) == ("cpu", (256, 48))
    assert tensor.nbytes <= w.nbytes <= 1.1 * tensor.nbytes
    np.testing.assert_array_equal(w.dequantize(), tensor.dequantize().T)
    assert "q4_k" in repr(w)
    assert "(256, 48)" in repr(w)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_int8_cannot_hold_are_refused_by_position(bad):
    x = np.ones((2, 3, 32), np.float32)
    x[1, 2, 5] = bad
    w = npurt.pack(np.ones((32, 4)), "q8_0")

    with pytest.raises(NumericsError, match="row 5, column 5"):
        npurt.matmul(x, w)
    assert not np.isfinite(npurt.matmul(x, npurt.pack(np.ones((32, 4)), "f16"))[1, 2]).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("device", ["cpu", "rknpu:sim", "hexagon:sim"])
def test_weights_that_are_not_finite_are_refused_by_row(device, bad):
    blocks = QTensor.quantize(np.ones((32, 256), np.float32), "q4_k").blocks.copy()
    blocks["dmin"][7, 0] = bad
    w = QTensor(blocks, "q4_k")

    with pytest.raises(NumericsError, match="row 7 "):
        npurt.pack(w.T, device=device)
    with pytest.raises(NumericsError, match="row 7 "):
        npurt.matmul(np.ones((1, 256), np.float32), w.T, device=device, verify="off")


# --- out= -----------------------------------------------------------------------------------------


@given(
    seeds,
    st.sampled_from(["fresh", "Fortran", "reversed", "view"]),
    st.sampled_from(["int8", "float", "packed"]),
)
def test_out_is_written_in_place_and_returned(seed, kind, product):
    dtype = np.int8 if product == "int8" else np.float32
    a, b = numbers(seed, (6, 32), dtype), numbers(seed + 1, (32, 6), dtype)
    b = npurt.pack(b, "q8_0") if product == "packed" else b
    result = np.int32 if product == "int8" else np.float32
    memory = np.full((12, 12), 7, result)
    out = {
        "fresh": np.empty((6, 6), result),
        "Fortran": np.empty((6, 6), result, order="F"),
        "reversed": memory[5::-1, 5::-1],
        "view": memory[::2, 1::2],
    }[kind]

    assert npurt.matmul(a, b, out=out) is out

    np.testing.assert_array_equal(out, npurt.matmul(a, b))
    if kind == "view":
        assert (memory[1::2] == 7).all()
        assert (memory[:, ::2] == 7).all()


def test_out_may_be_an_operand():
    a = numbers(0, (8, 8))
    wanted = npurt.matmul(a, a)

    for b in (a, a.T):
        c = a.copy()
        operands = (c, c if b is a else c.T)
        np.testing.assert_array_equal(
            npurt.matmul(*operands, out=c), wanted if b is a else npurt.matmul(a, a.T)
        )


def test_a_scalar_product_goes_to_a_0d_out_or_comes_as_a_scalar():
    a = np.arange(3, dtype=np.int8)
    out = np.empty((), np.int32)

    assert npurt.matmul(a, a, out=out) is out
    assert out == 5
    assert type(npurt.matmul(a, a)) is np.int32
    assert type(npurt.matmul(a.astype(np.float32), a)) is np.float32


@pytest.mark.parametrize(
    ("out", "said"),
    [
        (np.empty((2, 3), np.float64), r"out is float64 \(2, 3\), the result float32 \(2, 3\)"),
        (np.empty((2, 3), ">f4"), "the result float32"),
        (np.empty((3, 2), np.float32), r"out is float32 \(3, 2\)"),
        (np.empty((1, 2, 3), np.float32), r"\(1, 2, 3\)"),
        (read_only(np.empty((2, 3), np.float32)), "read-only"),
        ([[0.0] * 3] * 2, "out is list"),
    ],
)
def test_an_out_that_cannot_hold_the_result_is_refused_and_left_alone(out, said):
    before = copy.deepcopy(out)

    with pytest.raises(LayoutError, match=said):
        npurt.matmul(np.ones((2, 4), np.float32), np.ones((4, 3), np.float32), out=out)

    np.testing.assert_array_equal(out, before)
