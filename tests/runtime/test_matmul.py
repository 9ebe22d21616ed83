"""`matmul` and `pack` against numpy: every dtype, format, shape and layout, or a clear refusal."""

import copy
import ctypes

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import npurt
from npurt.errors import DeviceNotFound, LayoutError, NpurtError, NumericsError, UnsupportedOp
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME
from npurt.runtime.api.products import Products
from tests import oracle
from tests.cpu import cases
from tests.runtime.fake import FakeDevice

ENCODABLE = [name for name in BY_NAME if name not in ("q2_k", "q3_k", "iq4_xs")]
SCALES = np.array([0, 1, -0.5, 0.0123, 6e-8, 300], np.float16)  # products stay inside float32

LAYOUTS = {
    "C": lambda a: a,
    "Fortran": np.asfortranarray,
    "reversed": lambda a: a[::-1, ..., ::-1].copy()[::-1, ..., ::-1],
    "every other": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "byte-swapped": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "read-only": lambda a: _read_only(a),
    "list": lambda a: a.tolist() if a.dtype == np.float64 else a,
}
layouts = st.sampled_from(list(LAYOUTS))
seeds = st.integers(0, 2**32 - 1)
SIGNATURE = "(m?,k),(k,n?)->(m?,n?)"
batches = hnp.mutually_broadcastable_shapes(
    signature=SIGNATURE, max_dims=2, min_side=0, max_side=4
).map(lambda shapes: shapes.input_shapes)


def _read_only(a):
    a = a.copy()
    a.flags.writeable = False
    return a


def relaid(a, layout):
    """Return *a* with the same values in another layout, where it has the axes for that."""
    return LAYOUTS[layout](a) if a.ndim > 1 and a.size else a


def numbers(seed, shape, dtype=np.float32):
    rng = np.random.default_rng(seed)
    if dtype == np.int8:
        return rng.choice([-128, -127, -1, 0, 1, 127, *rng.integers(-128, 128, 9)], shape).astype(
            np.int8
        )
    return rng.standard_normal(shape).astype(dtype)


def assert_float_product(y, a, b):
    """*y* is float32 and ``a @ b`` of float32 operands, to the rounding of K sums in any order."""
    a, b = (np.asarray(each).astype(np.float32).astype(np.float64) for each in (a, b))
    k = a.shape[-1]
    assert y.dtype == np.float32
    assert np.shape(y) == np.shape(a @ b)
    oracle.assert_within(
        np.asarray(y), a @ b, oracle.gamma(k) * (abs(a) @ abs(b)) + k * oracle.TINY
    )


def assert_packed_product(y, x, tensor):
    """*y* is float32 ``x @ tensor.T`` as the format's kernels define it; x of any batch shape."""
    *batch, k = x.shape
    assert (y.dtype, y.shape) == (np.float32, (*batch, tensor.shape[0]))
    if not x.size:
        assert not y.any()
        return
    judge = oracle.dense_matmul if tensor.format.block == 1 else oracle.integer_matmul
    reference, bound, *_ = judge(x.reshape(-1, k).astype(np.float32), tensor)
    oracle.assert_within(y.reshape(reference.shape), reference, bound)


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


@pytest.mark.parametrize("least", [-128, 127])
def test_the_largest_int8_sums_are_exact_and_larger_ones_refused(least):
    k = 131071  # the largest whose sum, K * 128 * 128, is below 2^31
    a, b = np.full((1, k), -128, np.int8), np.full((k, 1), least, np.int8)

    assert npurt.matmul(a, b) == k * -128 * least
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
        (_read_only(np.empty((2, 3), np.float32)), "read-only"),
        ([[0.0] * 3] * 2, "out is list"),
    ],
)
def test_an_out_that_cannot_hold_the_result_is_refused_and_left_alone(out, said):
    before = copy.deepcopy(out)

    with pytest.raises(LayoutError, match=said):
        npurt.matmul(np.ones((2, 4), np.float32), np.ones((4, 3), np.float32), out=out)

    np.testing.assert_array_equal(out, before)


# --- What is no operand ---------------------------------------------------------------------------


class Arraylike:
    """Anything with numpy's or DLPack's protocol."""

    def __init__(self, values=None, error=None):
        self.values, self.error = values, error

    def __array__(self, dtype=None, copy=None):
        if self.error:
            raise self.error
        return self.values


class OnlyDlpack:
    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


class ManagedTensor(ctypes.Structure):
    """A DLManagedTensor, with the DLTensor that it begins with."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class Bfloat16:
    """A bfloat16 tensor as torch exports it: by DLPack, which numpy does not read."""

    def __init__(self, codes, *, c_order=False, device=(1, 0)):
        self.codes, self.at = codes, device
        many = ctypes.c_int64 * codes.ndim
        shape, strides = many(*codes.shape), many(*(s // 2 for s in codes.strides))
        address = codes.ctypes.data - 6
        self.tensor = ManagedTensor(
            address, device, codes.ndim, 4, 16, 1, shape, None if c_order else strides, 6
        )

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Got unsupported ScalarType BFloat16")  # what torch says

    def __dlpack__(self, **options):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
        return new(ctypes.addressof(self.tensor), b"dltensor", None)

    def __dlpack_device__(self):
        return self.at


def codes_of(values):
    """Return bfloat16 codes of *values*, cut off."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


@given(seeds, st.sampled_from(["C", "Fortran", "reversed", "every other"]), st.integers(0, 3))
def test_bfloat16_comes_by_dlpack_in_every_layout(seed, layout, rows):
    codes = relaid(codes_of(numbers(seed, (rows, 64))), layout)
    values = (codes.astype(np.uint32) << 16).view(np.float32)
    w = numbers(seed + 1, (64, 5))

    np.testing.assert_array_equal(npurt.matmul(Bfloat16(codes), w), npurt.matmul(values, w))
    if layout == "C":
        x = Bfloat16(codes, c_order=True)
        np.testing.assert_array_equal(npurt.matmul(x, w), npurt.matmul(values, w))
    np.testing.assert_array_equal(npurt.pack(Bfloat16(codes.T), "f32").dequantize(), values.T)


def test_bfloat16_that_is_not_in_memory_of_the_host_is_refused():
    with pytest.raises(LayoutError, match="BFloat16") as caught:
        npurt.matmul(Bfloat16(codes_of(numbers(0, (2, 4))), device=(2, 0)), GOOD)
    assert "t.detach().cpu()" in caught.value.remedy


@given(seeds, batches)
def test_bfloat16_of_ml_dtypes_is_widened(seed, shapes):
    a, b = (numbers(seed + i, shape).astype(ml_dtypes.bfloat16) for i, shape in enumerate(shapes))

    assert_float_product(npurt.matmul(a, b), a.astype(np.float32), b.astype(np.float32))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "int4"])
def test_narrow_numbers_of_ml_dtypes_are_refused_with_a_conversion_that_works(name):
    a = np.ones((2, 4), getattr(ml_dtypes, name))

    with pytest.raises(LayoutError, match=f"a is {name}; npurt multiplies") as caught:
        npurt.matmul(a, np.ones((4, 3), np.float32))

    assert "np.asarray(a, np.float32)" in caught.value.remedy
    assert npurt.matmul(np.asarray(a, np.float32), np.ones((4, 3), np.float32))[0, 0] == 4


def test_tensors_of_torch_are_operands_and_bfloat16_too():
    torch = pytest.importorskip("torch", reason="torch is large; CI does not install it")
    a, w = torch.randn(3, 64), npurt.pack(numbers(0, (64, 5)), "q8_0")

    np.testing.assert_array_equal(a @ w, a.numpy() @ w)
    np.testing.assert_array_equal(a.bfloat16() @ w, a.bfloat16().float().numpy() @ w)


@given(st.lists(st.lists(st.integers(-(2**31), 2**31), min_size=64, max_size=64), max_size=3))
def test_lists_of_integers_are_floats(rows):
    a, w = np.array(rows, np.float64).reshape(len(rows), 64), npurt.pack(numbers(0, (64, 5)))

    np.testing.assert_array_equal(npurt.matmul(rows, w) if rows else (a @ w), a @ w)
    for row in rows:
        np.testing.assert_array_equal(row @ w, npurt.matmul(np.array(row, np.float64), w))
        np.testing.assert_array_equal(tuple(row) @ w, row @ w)
        assert_float_product(npurt.matmul([row], numbers(1, (64, 2))), [row], numbers(1, (64, 2)))


@pytest.mark.parametrize("wrap", [Arraylike, OnlyDlpack])
@pytest.mark.parametrize("dtype", [np.int8, np.float32])
def test_other_peoples_arrays_are_operands(wrap, dtype):
    a, b = numbers(0, (3, 4), dtype), numbers(1, (4, 2), dtype)

    np.testing.assert_array_equal(npurt.matmul(wrap(a), wrap(b)), npurt.matmul(a, b))
    if dtype == np.float32:
        np.testing.assert_array_equal(npurt.pack(wrap(a), "f32").dequantize(), a)


GOOD = np.ones((4, 4), np.float32)
NO_OPERANDS = {
    "a number": 3.0,
    "a 0-d array": np.array(1, np.float32),
    "None": None,
    "text": "text",
    "a dict": {},
    "a ragged list": [[1.0, 2.0], [3.0]],
    "booleans": [[True, False, True, False]],
    "integers beyond int64": [[1 << 70]],
    "int32": np.ones((4, 4), np.int32),
    "uint8": np.ones((4, 4), np.uint8),
    "bool": np.ones((4, 4), bool),
    "complex": np.ones((4, 4), complex),
    "object": np.ones((4, 4), object),
    "longdouble": np.ones((4, 4), np.longdouble),
    "dates": np.zeros((4, 4), "M8[s]"),
    "records": np.zeros((4, 4), [("x", "f4")]),
    "a tensor that needs its gradient": Arraylike(error=RuntimeError("requires grad")),
    "a tensor on another device": Arraylike(error=TypeError("cuda:0")),
}


@pytest.mark.parametrize("bad", NO_OPERANDS.values(), ids=NO_OPERANDS)
def test_what_is_no_operand_is_refused_with_a_remedy(bad):
    for operands in ((bad, GOOD), (GOOD, bad)):
        with pytest.raises(LayoutError, match=r"(a|b) (is|cannot)") as caught:
            npurt.matmul(*operands)
        assert caught.value.remedy
    with pytest.raises(LayoutError):
        npurt.pack(bad)


SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=3)


@given(SHAPES, SHAPES, st.sampled_from([np.int8, np.float32]))
def test_shapes_that_numpy_refuses_are_refused_and_no_others(one, other, dtype):
    a, b = np.ones(one, dtype), np.ones(other, dtype)
    try:
        wanted = np.matmul(a.astype(np.float64), b.astype(np.float64))
    except ValueError:
        with pytest.raises(LayoutError, match="do not multiply"):
            npurt.matmul(a, b)
    else:
        np.testing.assert_array_equal(npurt.matmul(a, b), wanted)


def test_a_packed_weight_refuses_other_lengths_and_the_left_side():
    w = npurt.pack(np.ones((32, 4)), "q8_0")

    for a in (np.ones(31), np.ones((2, 4)), np.ones((32, 0))):
        with pytest.raises(LayoutError, match="do not multiply"):
            npurt.matmul(a, w)
    with pytest.raises(LayoutError, match="right operand"):
        npurt.matmul(w, np.ones((4, 4)))


def test_what_cannot_be_packed_is_refused():
    square = QTensor.quantize(np.ones((32, 32)), "q8_0")
    experts = QTensor.quantize(np.ones((2, 32, 32)), "q8_0")
    refused = [
        (LayoutError, (np.ones((33, 4)), "q8_0"), "pad K"),
        (LayoutError, (np.ones((2, 32, 4)), "q8_0"), "two"),
        (LayoutError, (np.ones(32), "q8_0"), "two"),
        (LayoutError, (square, "q8_0"), "w.T"),
        (LayoutError, (experts, "q8_0"), "w[i].T"),
        (NumericsError, (np.full((32, 2), np.nan), "q8_0"), "NaN"),
        (NumericsError, (np.full((32, 2), np.nan), "f16"), "NaN"),
        (NumericsError, (np.full((32, 2), np.inf), "f32"), "NaN"),
        (NumericsError, (np.full((32, 2), 1e39), "f32"), "scale"),
        (NumericsError, (np.full((32, 2), 1e30), "q8_0"), "scale"),
        (UnsupportedOp, (np.ones((256, 2)), "q2_k"), "q8_0"),
        (UnsupportedOp, (np.ones((32, 2)), "q9_9"), "q8_0"),
        (UnsupportedOp, (np.ones((32, 2)), None), "q8_0"),
        (UnsupportedOp, (square.T, "q9_9"), "q8_0"),
        (UnsupportedOp, (square.T, None), "q8_0"),
        (UnsupportedOp, (square.T, 8), "q8_0"),
    ]
    for error, arguments, remedy in refused:
        with pytest.raises(error) as caught:
            npurt.pack(*arguments)
        assert remedy in str(caught.value), arguments
        assert "q2_k" not in caught.value.remedy


def test_another_device_multiplies_packed_weights_only(monkeypatch):
    device = FakeDevice()
    monkeypatch.setattr("npurt.runtime.api.packed_weight.shared", lambda name: Products(device))
    x, w = numbers(0, (3, 32)), npurt.pack(numbers(1, (32, 4)), "q8_0", device="fake")

    assert w.device == "fake"
    assert_packed_product(npurt.matmul(x, w), x, w.tensor)
    for dtype in (np.int8, np.float32):
        with pytest.raises(UnsupportedOp, match="fake") as caught:
            npurt.matmul(GOOD.astype(dtype), GOOD.astype(dtype), device="fake")
        assert caught.value.remedy


@pytest.mark.parametrize("name", ["gpu", "", "hexagon:0", "hexagon:simv68", "rknpu", "cpu:1"])
def test_a_device_that_is_not_there_is_named(name, monkeypatch, tmp_path):
    monkeypatch.setenv("NPURT_FASTRPC_LIBRARY", str(tmp_path / "absent.so"))
    for call in (
        lambda: npurt.matmul(GOOD, GOOD, device=name),
        lambda: npurt.matmul(GOOD.astype(np.int8), GOOD.astype(np.int8), device=name),
        lambda: npurt.pack(GOOD, "f32", device=name),
    ):
        with pytest.raises(DeviceNotFound) as caught:
            call()
        assert repr(name) in str(caught.value)
        assert isinstance(caught.value, NpurtError)
