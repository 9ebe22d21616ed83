"""Tests of reading rows of quantised matrices as floats, against numpy on the same blocks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.cpu.kernels import abi
from npurt.cpu.pool.vectors import Vectors
from npurt.quant.blocks import DTYPES
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME, FORMATS

ROWS = 5


@pytest.mark.parametrize("name", BY_NAME)
@given(seed=st.integers(0, 2**32 - 1), index=st.lists(st.integers(0, ROWS - 1), max_size=9))
def test_rows_are_those_of_numpy_bit_for_bit(name, seed, index):
    made = BY_NAME[name]
    k = 3 * max(made.block, 32)
    raw = np.random.default_rng(seed).integers(0, 256, (ROWS, made.row_bytes(k)), np.uint8)
    tensor = QTensor(raw.view(DTYPES[made.name]), made)
    out = np.full((len(index), k), 7, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        want = tensor.dequantize()[np.array(index, np.intp)]

    Vectors(tensor).take(np.array(index, np.int32), out)

    equal = (out.view(np.uint32) == want.view(np.uint32)) | (np.isnan(out) & np.isnan(want))
    assert equal.all()


def test_a_known_row():
    """A Q8_0 block is a float16 and 32 codes.  Source: ggml/src/ggml-common.h, block_q8_0."""
    block = np.float16(0.5).tobytes() + bytes(range(32))
    tensor = QTensor.from_bytes(bytes(34) + block, "q8_0", (2, 32))
    out = np.empty((1, 32), np.float32)

    Vectors(tensor).take(np.array([1]), out)

    np.testing.assert_array_equal(out[0], np.arange(32) / 2)


def test_rows_that_are_not_contiguous():
    whole = QTensor.quantize(np.arange(8 * 32.0).reshape(8, 32), "q8_0")
    every_other, out = QTensor(whole.blocks[::2], "q8_0"), np.empty((1, 32), np.float32)

    Vectors(every_other).take(np.array([2]), out)

    np.testing.assert_array_equal(out[0], whole.dequantize()[4])


@pytest.mark.parametrize(
    ("number", "k", "index"),
    [(8, 32, 2), (8, 32, -1), (8, 31, 0), (8, 0, 0), (12, 32, 0), (0, 32, 0), (99, 32, 0)],
)
def test_c_refuses_what_is_not_there_and_writes_nothing(number, k, index):
    ffi = abi.ffi()
    out = np.full(256, 7, np.float32)

    refused = abi.lib().npurt_take(
        number, ffi.new("uint8_t[]", 2 * 144), 2, k, 144, ffi.new("int32_t[]", [0, index]), 2,
        ffi.from_buffer("float[]", out),
    )  # fmt: skip

    assert refused == abi.lib().NPURT_REFUSED
    assert (out == 7).all()


def test_every_type_with_blocks_is_read_in_c():
    for each in FORMATS:
        if each.block > 1:
            zeros = QTensor(np.zeros((1, 256 // each.block), DTYPES[each.name]), each)
            assert Vectors(zeros)._bytes is not None
