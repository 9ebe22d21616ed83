import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import LayoutError, UnsupportedOp
from npurt.quant.blocks import DTYPES
from npurt.quant.tensor import QTensor
from npurt.quant.types import FORMATS


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


@pytest.mark.parametrize("fmt", ["f32", "f16"])
def test_numpy_and_dlpack_view_the_values_of_floats_where_they_lie(fmt):
    w = tensor(6, 64, fmt=fmt)

    for each in (w, w.T):
        for read in (np.asarray, np.from_dlpack):
            values = read(each)
            assert (values.dtype, values.shape) == (fmt.replace("f", "float"), each.shape)
            assert np.shares_memory(values, w.blocks)
            np.testing.assert_array_equal(values, each.dequantize())
    assert np.asarray(w, np.float64).dtype == np.float64
    assert not np.shares_memory(np.array(w), w.blocks)
    assert w.__dlpack_device__() == (1, 0)  # kDLCPU


@pytest.mark.parametrize("fmt", [f for f in FORMATS if f.name not in ("f32", "f16")])
@pytest.mark.parametrize("read", [np.asarray, np.array, np.from_dlpack, list])
def test_values_that_are_not_in_memory_have_to_be_asked_for(fmt, read):
    w = QTensor.from_bytes(bytes(2 * fmt.row_bytes(256)), fmt, (2, 256))

    for each in (w, w.T) if read is not list else (w.T,):
        with pytest.raises((UnsupportedOp, LayoutError), match=r"w\.dequantize\(\)"):
            read(each)


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
        (34, (1, 1, 1, 32), "more than 3 axes"),
    ],
)
def test_wrong_sizes_are_refused(size, shape, message):
    with pytest.raises(LayoutError, match=message):
        QTensor.from_bytes(bytes(size), "q8_0", shape)


def test_a_buffer_with_gaps_is_refused():
    with pytest.raises(LayoutError, match="contiguous"):
        QTensor.from_bytes(memoryview(bytes(68))[::2], "q8_0", (32,))


def test_rows_with_gaps_are_refused_and_gaps_between_rows_are_not():
    blocks = np.zeros((4, 4), DTYPES["q8_0"])

    assert QTensor(blocks[::2], "q8_0").shape == (2, 128)
    with pytest.raises(LayoutError, match="more than 3 axes"):
        QTensor(blocks[:, ::2], "q8_0")


def test_blocks_of_another_type_are_refused():
    with pytest.raises(LayoutError, match="q4_0 blocks must be"):
        QTensor(np.zeros(4, DTYPES["q8_0"]), "q4_0")


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
    with pytest.raises(IndexError, match="axis 0"):
        w[6]
    stack = QTensor.quantize(np.ones((3, 8, 64)), "q8_0")
    with pytest.raises(IndexError, match="9 is out of bounds for axis 1 with size 8"):
        stack[0, 9]


@pytest.mark.parametrize(
    "index", [(0, 0), None, True, 0.5, np.ones((6, 64), bool), np.zeros((2, 2), int)]
)
def test_an_index_that_would_cut_rows_is_refused(index):
    with pytest.raises(LayoutError, match="cannot be indexed"):
        tensor(6, 64)[index]


def test_columns_and_elements_are_refused():
    with pytest.raises(LayoutError, match="cannot be indexed"):
        tensor(6, 64).T[0]
    with pytest.raises(LayoutError, match="cannot be indexed"):
        tensor(6, 64).T[1:, 0]
    with pytest.raises(LayoutError, match="cannot be indexed"):
        tensor(6, 64)[0, 1:]
    with pytest.raises(LayoutError, match="cannot be indexed"):
        tensor(64)[0]


FORMAT_NAMES = [None, 5, 1.5, b"q8_0", ["q8_0"], ("q8_0",), np.uint8(8), "", "q9_9"]


@pytest.mark.parametrize("fmt", FORMAT_NAMES)
def test_what_names_no_format_is_an_error_with_the_names(fmt):
    x, blocks = np.ones((2, 32), np.float32), tensor(2, 32).blocks

    for make in (
        lambda: QTensor.quantize(x, fmt),
        lambda: QTensor.from_bytes(b"", fmt, (0,)),
        lambda: QTensor(blocks, fmt),
    ):
        with pytest.raises(UnsupportedOp, match="q8_0") as caught:
            make()
        assert repr(fmt) in caught.value.what


@pytest.mark.parametrize("shape", [None, 32, "ab", (1.5, 32), (None,), (1, "32")])
def test_what_is_no_shape_is_an_error(shape):
    with pytest.raises(LayoutError, match=r"\(N, K\)"):
        QTensor.from_bytes(bytes(34), "q8_0", shape)


@pytest.mark.parametrize("buf", [None, "x" * 34, 34, [0] * 34, object()])
def test_what_is_no_buffer_is_an_error(buf):
    with pytest.raises(LayoutError, match="bytes"):
        QTensor.from_bytes(buf, "q8_0", (1, 32))


@pytest.mark.parametrize("blocks", [None, b"x" * 34, [1, 2], 5, np.ones(34, np.uint8)])
def test_what_are_no_blocks_is_an_error(blocks):
    with pytest.raises(LayoutError, match="from_bytes"):
        QTensor(blocks, "q8_0")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("fmt", [f for f in FORMATS if f.name != "mxfp4"], ids=lambda f: f.name)
def test_the_first_row_that_is_not_finite_is_found_in_every_field(fmt, bad):
    w = QTensor.from_bytes(bytes(6 * fmt.row_bytes(512)), fmt, (2, 3, 512))
    assert w.first_not_finite() is None

    fields = [n for n in DTYPES[fmt.name].names or () if DTYPES[fmt.name][n].kind == "f"] or [None]
    for field in fields:
        blocks = np.zeros((2, 3, 512 // fmt.block), DTYPES[fmt.name])
        for place in ((1, 2, 0), (1, 0, 1)):
            if fmt.name == "bf16":
                blocks[place] = np.array(bad, np.float32).view(np.uint32) >> 16
            elif field is None:
                blocks[place] = bad
            else:
                blocks[field][place] = bad
        assert QTensor(blocks, fmt).first_not_finite() == (1, 0)
        assert QTensor(blocks[0], fmt).first_not_finite() is None


def test_powers_of_two_of_mxfp4_are_infinite_where_their_codes_make_them_so():
    """A scale of 2^(255 - 127) overflows float32; 2^(254 - 127) does not, but 3 times it does."""
    blocks = np.zeros((3, 1), DTYPES["mxfp4"])
    blocks["e"] = [[255], [254], [253]]
    assert QTensor(blocks, "mxfp4").first_not_finite() is None  # all codes are 0
    blocks["qs"][1, 0, 3] = 0x02  # code 2 is 1
    blocks["qs"][2, 0, 3] = 0x05  # code 5 is 3
    assert QTensor(blocks, "mxfp4").first_not_finite() is None
    blocks["qs"][1, 0, 3] = 0x05
    assert QTensor(blocks, "mxfp4").first_not_finite() == (1,)
