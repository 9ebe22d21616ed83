"""Tests of rows, copies, pickles and attributes of quantised weights, with numpy as the oracle."""

import copy
import operator
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npurt
from npurt.errors import LayoutError
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME
from tests.limits import HANG_SECONDS
from tests.runtime.test_array import DEVICES, K, N, assert_is, numbers


@pytest.fixture(scope="module", params=DEVICES)
def packed(request):
    """Return a weight ``[K, N]`` on each device in turn."""
    return npurt.pack(numbers(0, K, N), "q8_0", device=request.param)


@pytest.fixture(scope="module")
def weight():
    """Return the same weight on the CPU."""
    return npurt.pack(numbers(0, K, N), "q8_0", device="cpu")


def test_a_packed_weight_has_the_attributes_of_an_array(packed):
    w = packed

    assert (w.shape, w.ndim, w.size, len(w), w.dtype) == ((K, N), 2, K * N, K, "q8_0")
    assert (w.T.shape, w.T.size, len(w.T), w.T.dtype) == ((N, K), K * N, N, "q8_0")
    assert (np.shape(w), np.ndim(w), np.shape(w.T)) == ((K, N), 2, (N, K))
    assert w.T.T is w
    assert (w.T.nbytes, w.T.device) == (w.nbytes, w.device)
    np.testing.assert_array_equal(w.T.dequantize(), w.dequantize().T)
    assert repr(w.T).endswith(f"kB on {w.device}, transposed)")
    assert w != w.T
    assert len({w, w.T.T}) == 1


@pytest.mark.parametrize("rows", [slice(3, 20), slice(None, None, -5), [4, 0, 47, -1], slice(1)])
def test_rows_of_a_packed_weight_are_chosen_along_n(packed, rows):
    some, turned_ = packed[:, rows], packed.T[rows]

    assert some.tensor.dtype == packed.dtype
    np.testing.assert_array_equal(some.tensor.blocks, packed.tensor.blocks[rows])
    np.testing.assert_array_equal(some.dequantize(), packed.dequantize()[:, rows])
    np.testing.assert_array_equal(turned_.dequantize(), packed.dequantize().T[rows])
    np.testing.assert_array_equal(packed.T[rows, :].dequantize(), turned_.dequantize())
    assert_is(operator.matmul, numbers(1, 3, K), some)
    assert (some.device, turned_.device) == (packed.device, packed.device)


@pytest.mark.parametrize(
    "index",
    [
        0,
        slice(3),
        (0, 0),
        (slice(None), 3),
        (slice(1, 9), slice(3)),
        None,
        (..., ...),
        (1, 2, 3),
        (slice(None), True),
        (slice(None), [0.5]),
        np.arange(K) < 9,
    ],
)
def test_what_would_cut_k_is_refused(weight, index):
    with pytest.raises(LayoutError) as caught:
        weight[index]
    assert caught.value.remedy


def test_the_remedy_of_an_index_that_would_cut_k_can_be_carried_out(packed):
    stack = QTensor.quantize(numbers(0, 5, N, K), "q8_0")
    for w in (packed, packed.T, packed.tensor, packed.tensor.T, stack):
        index = (*[slice(None)] * w.sum_axis, 1)
        with pytest.raises(LayoutError, match=f"axis {w.sum_axis}") as caught:
            w[index]
        assert caught.value.what.startswith(repr(w))
        example = re.search(r"w\[.*\]", caught.value.remedy.partition(", or ")[0]).group()
        assert 2 in eval(example, {"w": w}).shape  # noqa: S307  our own text
    with pytest.raises(LayoutError) as caught:
        packed.tensor[0][1]
    assert caught.value.remedy == "index the array w.dequantize()"


@pytest.mark.parametrize("index", [slice(None), ..., (slice(None), slice(None)), (..., slice(K))])
def test_all_of_a_packed_weight_is_itself(packed, index):
    assert packed[index] is packed
    view = packed.T
    assert view[index] is view


@pytest.mark.parametrize("rows", [[N], [0, -N - 1], N, np.ones(N - 1, bool), np.ones(K, bool)])
def test_rows_that_a_weight_does_not_have_raise_indexerror(weight, rows):
    for w in (weight, weight.tensor.T):
        with pytest.raises(IndexError, match="axis 1"):
            w[:, rows]
        with pytest.raises(IndexError, match="axis 0"):
            w.T[rows]


@given(st.lists(st.booleans(), min_size=6, max_size=6), st.booleans())
def test_a_mask_chooses_rows_as_numpy_does(mask, as_list):
    w = QTensor.quantize(numbers(0, 6, K), "q8_0")
    stack = QTensor.quantize(numbers(0, 6, 2, K), "q8_0")
    rows = mask if as_list else np.array(mask)
    packed = npurt.pack(w.T, device="cpu")

    for each in (w.T, packed):
        np.testing.assert_array_equal(each[..., rows].dequantize(), w.T.dequantize()[..., rows])
        np.testing.assert_array_equal(each.T[rows].dequantize(), w.dequantize()[rows])
    np.testing.assert_array_equal(stack[rows, ..., 1, :].dequantize(), stack.dequantize()[rows, 1])


def test_no_rows_are_a_weight_without_rows(weight):
    for none in ([], np.array([], int), slice(5, 5), np.zeros(N, bool)):
        for w in (weight, weight.tensor.T):
            assert w[:, none].shape == (K, 0)
            assert (numbers(1, 3, K) @ w[:, none]).shape == (3, 0)


def test_what_needs_no_values_is_answered(weight):
    for w in (weight, weight.tensor.T):
        assert (np.size(w), np.size(w, 0), np.size(w.T, 0)) == (K * N, K, N)
        assert np.result_type(w) == np.result_type(np.float16(1), w, np.int8) == np.float32
        assert np.result_type(w, np.float64) == np.float64
        assert (np.iscomplexobj(w), np.isrealobj(w)) == (False, True)
        for axes in ((1, 0), (-1, 0), [1, -2]):
            np.testing.assert_array_equal(np.transpose(w, axes).dequantize(), w.T.dequantize())
        assert np.transpose(w, (0, 1)) is np.transpose(w, (-2, -1)) is w
    assert np.transpose(weight.tensor[3], 0).shape == (K,)


def test_the_copy_of_a_weight_multiplies_as_it(packed):
    tensor = packed.tensor.T

    assert packed.copy() is packed
    assert not np.shares_memory(tensor.copy().blocks, tensor.blocks)
    for w in (tensor, tensor.T, tensor.T[3], tensor[:, ::2]):
        assert w.copy().shape == w.shape
        np.testing.assert_array_equal(w.copy().dequantize(), w.dequantize())


@given(st.sampled_from([slice(1, 4), [2, 0], slice(None), 3, -1]))
def test_a_transposed_qtensor_chooses_columns_as_numpy_does(rows):
    w = QTensor.quantize(numbers(0, 6, K), "q8_0")

    np.testing.assert_array_equal(w.T[:, rows].dequantize(), w.T.dequantize()[:, rows])
    np.testing.assert_array_equal(w[rows, :].dequantize(), w.dequantize()[rows, :])


@pytest.mark.parametrize("other", DEVICES)
def test_packing_for_another_device_keeps_codes_and_type(packed, other):
    moved = npurt.pack(packed, device=other)

    assert (moved.device, moved.dtype) == (other, packed.dtype)
    assert moved.tensor is packed.tensor
    assert npurt.pack(packed) is packed
    assert_is(operator.matmul, numbers(1, 3, K), moved)
    back = npurt.pack(moved, device=packed.device)
    np.testing.assert_array_equal(back.tensor.blocks, packed.tensor.blocks)


def test_packing_a_packed_weight_in_another_format_quantises_its_values(weight):
    again = npurt.pack(weight, "q4_0")

    assert (again.dtype, again.device) == ("q4_0", "cpu")
    wanted = QTensor.quantize(weight.tensor.dequantize(), "q4_0")
    np.testing.assert_array_equal(again.tensor.blocks, wanted.blocks)
    with pytest.raises(LayoutError, match="not a right operand"):
        npurt.pack(weight.T)


def test_a_copy_of_a_packed_weight_is_itself(packed):
    assert copy.copy(packed) is packed
    assert copy.deepcopy({"w": packed})["w"] is packed


@pytest.mark.parametrize("transposed", [False, True])
def test_a_pickle_holds_the_codes_and_packs_them_for_the_same_device(packed, transposed):
    w = packed.T if transposed else packed
    text = pickle.dumps(w)

    loaded = pickle.loads(text)

    assert len(text) < packed.tensor.nbytes + 1000
    assert (loaded.shape, loaded.dtype, loaded.device) == (w.shape, w.dtype, w.device)
    np.testing.assert_array_equal(loaded.tensor.blocks, w.tensor.blocks)


def test_another_process_multiplies_by_a_pickled_weight(weight, tmp_path):
    path = tmp_path / "weight"
    a = numbers(1, 3, K)
    path.write_bytes(pickle.dumps((a, weight)))
    code = "import pickle, sys; a, w = pickle.load(sys.stdin.buffer); print((a @ w).tolist())"

    with path.open("rb") as file:
        run = subprocess.run(
            [sys.executable, "-c", code],
            stdin=file,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )

    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.strip() == str((a @ weight).tolist())


@pytest.mark.parametrize("fmt", BY_NAME)
def test_a_pickle_of_a_qtensor_of_every_format_has_the_same_bytes(fmt):
    form = BY_NAME[fmt]
    raw = np.random.default_rng(0).bytes(3 * form.row_bytes(512))
    w = QTensor.from_bytes(raw, fmt, (3, 512))  # read-only, as a mapped file is

    again = pickle.loads(pickle.dumps(w))

    assert (again.blocks.tobytes(), again.format) == (raw, form)


@pytest.mark.parametrize(
    "remake", [copy.copy, copy.deepcopy, lambda w: pickle.loads(pickle.dumps(w))]
)
@pytest.mark.parametrize("shape", [(K,), (N, K), (2, N, K)])
def test_copies_and_pickles_of_a_qtensor_are_equal_tensors(remake, shape):
    w = QTensor.quantize(numbers(0, *shape), "q4_0")
    for each in (w, w.T) if w.ndim < 3 else (w,):
        again = remake(each)

        assert again is not each
        assert (again.shape, again.format, again.transposed) == (
            each.shape,
            each.format,
            each.transposed,
        )
        np.testing.assert_array_equal(again.blocks, each.blocks)
        assert np.shares_memory(again.blocks, each.blocks) == (remake is copy.copy)
