"""Tests of the operands that `npurt.matmul` accepts, and of those that it refuses."""

import ctypes

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import npurt
from npurt.errors import DeviceNotFound, LayoutError, NpurtError, NumericsError, UnsupportedOp
from npurt.quant.tensor import QTensor
from npurt.runtime.api.products import Products
from tests.runtime.fake import FakeDevice
from tests.runtime.products import (
    assert_float_product,
    assert_packed_product,
    batches,
    numbers,
    relaid,
    seeds,
)


class Arraylike:
    """An object with numpy's array protocol."""

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
    """A DLManagedTensor, which begins with a DLTensor."""

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
    """A bfloat16 tensor as torch exports it: by DLPack, in a type that numpy does not read."""

    def __init__(self, codes, *, c_order=False, device=(1, 0)):
        self.codes, self.at = codes, device
        many = ctypes.c_int64 * codes.ndim
        shape, strides = many(*codes.shape), many(*(s // 2 for s in codes.strides))
        address = codes.ctypes.data - 6
        self.tensor = ManagedTensor(
            address, device, codes.ndim, 4, 16, 1, shape, None if c_order else strides, 6
        )

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Got unsupported ScalarType BFloat16")  # the message of torch

    def __dlpack__(self, **options):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
        return new(ctypes.addressof(self.tensor), b"dltensor", None)

    def __dlpack_device__(self):
        return self.at


def codes_of(values):
    """Return the bfloat16 codes of *values*, truncated."""
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


def test_a_conversion_that_would_drop_imaginary_parts_is_not_the_remedy():
    with pytest.raises(LayoutError, match="a is complex64") as caught:
        npurt.matmul(np.ones((2, 4), np.complex64), GOOD)
    assert caught.value.remedy == "multiply its real and imaginary parts separately"


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
    "an array that is being traced": Arraylike(error=AttributeError("__dlpack_device__")),
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
