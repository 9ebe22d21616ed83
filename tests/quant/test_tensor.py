import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import LayoutError, UnsupportedOp
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME, FORMATS


def tensor(*shape, fmt="q8_0"):
    rng = np.random.default_rng(0)
    return QTensor.quantize(rng.standard_normal(shape, dtype=np.float32), fmt)


def test_attributes_are_those_of_an_array():
    w = tensor(6, 64)

    assert (w.shape, w.ndim, w.size, len(w)) == ((6, 64), 2, 384, 6)
    assert (w.dtype, w.nbytes) == ("q8_0", 6 * 2 * 34)


def test_repr_is_short():
    w = QTensor.from_bytes(bytes(4864 * 1024 // 256 * 144), "q4_k", (4864, 1024))

    assert repr(w) == "QTensor(q4_k, shape=(4864, 1024), 2.8 MB)"
    assert repr(w.T) == "QTensor(q4_k, shape=(1024, 4864), 2.8 MB, transposed)"
    assert repr(tensor(32)) == "QTensor(q8_0, shape=(32,), 34 B)"


def test_transpose_is_a_view_and_twice_is_the_original():
    w = tensor(6, 64)

    assert w.T.shape == (64, 6)
    assert w.T.transposed
    assert w.T.blocks is w.blocks
    assert w.T.T is w
    assert len(w.T) == 64
    np.testing.assert_array_equal(w.T.dequantize(), w.dequantize().T)


def test_transpose_of_a_vector_is_itself_and_of_a_stack_is_refused():
    v = tensor(32)

    assert v.T is v
    with pytest.raises(LayoutError, match=r"has no \.T"):
        _ = tensor(2, 3, 32).T


def test_canonical_keeps_the_orientation_of_the_file():
    w = tensor(6, 64)

    assert w.T.canonical().codes.shape == (6, 64)
    np.testing.assert_array_equal(w.T.canonical().dequantize(), w.dequantize())


def test_numpy_sees_the_values():
    w = tensor(6, 64)

    assert np.asarray(w).dtype == np.float32
    np.testing.assert_array_equal(np.asarray(w), w.dequantize())
    np.testing.assert_array_equal(np.asarray(w.T), w.dequantize().T)
    assert np.asarray(w, dtype=np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="do not exist in memory"):
        w.__array__(copy=False)


def test_equality_is_identity():
    w = tensor(6, 64)

    assert w == w.T.T
    assert w != QTensor(w.blocks, "q8_0")
    assert len({w, w.T.T, w.T}) == 2


# --- Bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_bytes_are_viewed_and_not_copied(fmt):
    raw = np.zeros(6 * fmt.row_bytes(512), np.uint8)

    w = QTensor.from_bytes(memoryview(raw), fmt, (2, 3, 512))

    assert (w.shape, w.nbytes, w.format) == ((2, 3, 512), raw.nbytes, fmt)
    assert np.shares_memory(w.blocks, raw)


def test_a_mapped_file_is_viewed_read_only(tmp_path):
    path = tmp_path / "weights"
    w = tensor(6, 64)
    path.write_bytes(b"x" * 3 + w.blocks.tobytes())  # at an odd offset

    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    read = QTensor.from_bytes(memoryview(mapped)[3:], "Q8_0", (6, 64))

    assert not read.blocks.flags.writeable
    np.testing.assert_array_equal(read.dequantize(), w.dequantize())


@pytest.mark.parametrize(
    ("size", "shape", "message"),
    [
        (33, (32,), "takes 34 contiguous bytes, not 33"),
        (35, (32,), "not 35"),
        (34, (33,), "K = 33"),
        (34, (), "is not a shape"),
        (34, (-1, 32), "is not a shape"),
        (34, (1, 1, 1, 32), "not rows"),
    ],
)
def test_wrong_sizes_are_refused(size, shape, message):
    with pytest.raises(LayoutError, match=message):
        QTensor.from_bytes(bytes(size), "q8_0", shape)


def test_a_buffer_with_gaps_is_refused():
    with pytest.raises(LayoutError, match="contiguous"):
        QTensor.from_bytes(memoryview(bytes(68))[::2], "q8_0", (32,))


def test_rows_with_gaps_are_refused_and_gaps_between_rows_are_not():
    blocks = np.zeros((4, 4), BY_NAME["q8_0"].dtype)

    assert QTensor(blocks[::2], "q8_0").shape == (2, 128)
    with pytest.raises(LayoutError, match="not rows"):
        QTensor(blocks[:, ::2], "q8_0")


def test_blocks_of_another_type_are_refused():
    with pytest.raises(LayoutError, match="q4_0 blocks are"):
        QTensor(np.zeros(4, BY_NAME["q8_0"].dtype), "q4_0")


def test_an_unknown_format_names_the_known_ones():
    with pytest.raises(UnsupportedOp, match="q9_9") as caught:
        QTensor.from_bytes(b"", "q9_9", (0,))

    assert "q8_0" in caught.value.remedy


def test_a_tensor_may_be_empty():
    assert QTensor.from_bytes(b"", "q4_k", (0, 256)).dequantize().shape == (0, 256)


# --- Rows ---------------------------------------------------------------------------------------

row = st.one_of(
    st.integers(-3, 2),
    st.slices(3),
    st.lists(st.integers(-3, 2), min_size=1, max_size=5),
)


@given(st.one_of(row, st.tuples(row), st.tuples(st.integers(-3, 2), row)))
def test_rows_are_chosen_as_numpy_chooses_them(index):
    w = tensor(3, 3, 64, fmt="q4_0")

    np.testing.assert_array_equal(w[index].dequantize(), w.dequantize()[index])


def test_a_slice_shares_the_blocks_and_iteration_ends():
    w = tensor(6, 64)

    assert np.shares_memory(w[2:4].blocks, w.blocks)
    assert [v.shape for v in w] == [(64,)] * 6
    with pytest.raises(IndexError):
        w[6]


@pytest.mark.parametrize("index", [(0, 0), None, ..., True, 0.5, [True] * 6, np.zeros((2, 2), int)])
def test_an_index_that_would_cut_rows_is_refused(index):
    with pytest.raises(LayoutError, match="cannot be indexed"):
        tensor(6, 64)[index]


def test_columns_and_elements_are_refused():
    with pytest.raises(LayoutError, match="cannot be indexed"):
        tensor(6, 64).T[0]
    with pytest.raises(LayoutError, match="cannot be indexed"):
        tensor(64)[0]
