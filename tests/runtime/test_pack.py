"""Tests of `pack`: its format and device, and its errors, which name the wrong operand."""

import numpy as np
import pytest

import npurt
from npurt.errors import DeviceNotFound, LayoutError, NumericsError, UnsupportedOp
from npurt.quant.tensor import QTensor
from npurt.runtime.api.products import Products
from tests.runtime.fake import FakeDevice
from tests.runtime.products import numbers
from tests.runtime.test_operands import GOOD


def test_packing_to_another_format_quantises_what_the_codes_mean():
    tensor = QTensor.quantize(numbers(0, (48, 256)), "q4_k")

    w = npurt.pack(tensor.T, "q8_0")

    assert w.tensor.dtype == "q8_0"
    wanted = QTensor.quantize(tensor.dequantize(), "q8_0")
    np.testing.assert_array_equal(w.tensor.blocks, wanted.blocks)
    assert npurt.pack(numbers(0, (256, 4))).tensor.dtype == "q8_0"


def test_a_packed_weight_is_multiplied_by_where_it_is_and_nowhere_else(monkeypatch):
    device = FakeDevice()
    w = npurt.pack(np.ones((32, 4)), device="cpu")
    monkeypatch.setattr("npurt.runtime.api.packed_weight.shared", lambda name: Products(device))
    there = npurt.pack(np.ones((32, 4)), device="fake")
    x = numbers(0, (3, 32))

    for packed, own, other in ((w, "cpu", "fake"), (there, "fake", "cpu")):
        wanted = npurt.matmul(x, packed)
        np.testing.assert_array_equal(npurt.matmul(x, packed, device=own), wanted)
        for wrong in (other, "rknpu", "gpu", "", 5, None):
            with pytest.raises(LayoutError, match=f"packed for {own}, not for {wrong!r}"):
                npurt.matmul(x, packed, device=wrong)


@pytest.mark.parametrize("device", ["hexagon:sim", "rknpu:sim"])
@pytest.mark.parametrize("shape", [(64, 0), (0, 64)])
def test_a_weight_without_elements_is_for_the_cpu(device, shape):
    empty = np.ones(shape, np.float32)
    with pytest.raises(UnsupportedOp, match="no elements") as caught:
        npurt.pack(empty, "q8_0", device=device)
    assert caught.value.remedy == "use device 'cpu' for it"
    x = np.ones((2, shape[0]), np.float32)
    np.testing.assert_array_equal(x @ npurt.pack(empty, "q8_0", device="cpu"), x @ empty)


@pytest.mark.parametrize("name", [5, None, b"cpu", ["cpu"]])
def test_a_device_name_is_text(name):
    weight = QTensor.quantize(np.ones((4, 32)), "q8_0").T
    for call in (
        lambda: npurt.matmul(GOOD, GOOD, device=name),
        lambda: npurt.matmul(np.ones((2, 32)), weight, device=name),
        lambda: npurt.pack(GOOD, "f32", device=name),
    ):
        with pytest.raises(DeviceNotFound, match="is not a device name") as caught:
            call()
        assert "auto" in caught.value.remedy


def test_the_axes_that_do_not_fit_are_named():
    with pytest.raises(LayoutError, match=r"batch axes \(2,\) and \(3,\) do not broadcast"):
        npurt.matmul(np.ones((2, 4, 4)), np.ones((3, 4, 4)))
    with pytest.raises(LayoutError, match="a has K = 4, b has 5"):
        npurt.matmul(np.ones((3, 4)), np.ones((5, 6)))
    with pytest.raises(LayoutError, match="a has K = 4, b has 3"):
        npurt.matmul(np.ones((3, 4)), np.ones(3))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", ["q8_0", "q4_k", "f16", "f32", "auto"])
def test_what_is_no_number_is_found_where_the_caller_has_it(dtype, bad):
    b = np.ones((256, 8), np.float32)
    b[3, 5] = b[4, 0] = bad

    with pytest.raises(NumericsError, match=rf"^b\[3, 5\] is {bad}\b"):
        npurt.pack(b, dtype)


def test_a_block_that_cannot_be_held_is_one_of_b_transposed():
    b = np.ones((256, 8), np.float32)
    b[3, 5] = 1e6

    with pytest.raises(NumericsError, match=r"^in x = b\.T, the block at x\[5, 3\] has magnitudes"):
        npurt.pack(b, "f16")
