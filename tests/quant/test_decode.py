"""Tests of dequantised values and of the canonical form, for every type.

The oracles are gguf-py's dequantiser and tests/data/quants/blocks.npz, which ggml decoded.
"""

from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import LayoutError
from npurt.quant import decode
from npurt.quant.blocks import DTYPES
from npurt.quant.canonical import canonical
from npurt.quant.decode import dequantize
from npurt.quant.types import BY_NAME, FORMATS

ORACLE = Path(__file__).parents[1] / "data/quants/blocks.npz"
DECODED_BY_GGML = (
    *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K"),
    *("iq4_nl", "iq4_xs", "mxfp4"),
)
every_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)


def assert_same_bits(values, expected):
    """Check that values are equal bit for bit, except for the payload of NaNs."""
    assert values.dtype == expected.dtype == np.float32
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(values), nan)
    np.testing.assert_array_equal(values[~nan].view(np.uint32), expected[~nan].view(np.uint32))


def reference(blocks, fmt):
    """Return the values of *blocks* that gguf-py computes."""
    rows = blocks.view(np.uint8).reshape(*blocks.shape[:-1], -1)
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(fmt.number))


def random_blocks(fmt, rows, count, seed=0):
    raw = np.random.default_rng(seed).bytes(rows * count * fmt.block_bytes)
    return np.frombuffer(raw, DTYPES[fmt.name]).reshape(rows, count)


@pytest.mark.parametrize("kind", ["", "rnd"], ids=["quantised", "random"])
@pytest.mark.parametrize("name", DECODED_BY_GGML)
def test_values_equal_what_ggml_decoded(name, kind):
    """The blocks are quantised data, and random bytes with infinite, NaN and subnormal scales."""
    fmt = BY_NAME[name.lower()]
    with np.load(ORACLE) as oracle:
        blocks = oracle[f"{name}_{kind}raw"].view(DTYPES[fmt.name])
        expected = oracle[f"{name}_{kind}f32"]

    assert_same_bits(dequantize(blocks, fmt), expected)


@every_format
@given(data=st.data())
def test_values_equal_those_of_gguf_py_for_any_bytes(fmt, data):
    size = 2 * fmt.block_bytes
    blocks = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), DTYPES[fmt.name])

    assert_same_bits(dequantize(blocks, fmt), reference(blocks, fmt))


@every_format
def test_values_equal_those_of_gguf_py_on_many_random_blocks(fmt):
    blocks = random_blocks(fmt, 64, 32)

    assert_same_bits(dequantize(blocks, fmt), reference(blocks, fmt))
    assert_same_bits(canonical(blocks, fmt).dequantize(), reference(blocks, fmt))


@every_format
def test_chunks_meet_without_a_seam(fmt, monkeypatch):
    blocks = random_blocks(fmt, 7, 3)
    whole = dequantize(blocks, fmt)

    monkeypatch.setattr(decode, "CHUNK", 4 * fmt.block)  # 21 blocks, four at a time

    assert_same_bits(dequantize(blocks, fmt), whole)


@every_format
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3), (2, 3, 4)], ids=str)
def test_leading_axes_are_kept(fmt, shape):
    values = dequantize(np.zeros(shape, DTYPES[fmt.name]), fmt)

    assert values.shape == (*shape[:-1], shape[-1] * fmt.block)
    assert canonical(np.zeros(shape, DTYPES[fmt.name]), fmt).codes.shape == values.shape


def test_q4_0_by_hand():
    block = bytes.fromhex("0038" + "80" + "f7" + "00" * 14)  # d = 0.5; nibbles low first

    values = dequantize(np.frombuffer(block, DTYPES["q4_0"]), BY_NAME["q4_0"])

    assert values.tolist() == [-4, -0.5, *[-4] * 14, 0, 3.5, *[-4] * 14]


def test_q4_k_by_hand():
    """Sub-block 1 has scale 2 and minimum 3; sub-block 5 has scale 0x21 and minimum 0x12."""
    scales = bytearray(12)
    scales[1] = 2 << 6 | 2  # the upper two bits of scale 5, above scale 1
    scales[5] = 1 << 6 | 3  # the upper two bits of minimum 5, above minimum 1
    scales[9] = 0x21  # the lower nibbles: minimum 5 above scale 5
    qs = bytearray(128)
    qs[0] = 0xF0  # first element of sub-block 1
    qs[64 + 31] = 0x70  # last element of sub-block 5
    block = bytes.fromhex("003c" + "0040") + scales + qs  # d = 1, dmin = 2

    form = canonical(np.frombuffer(block, DTYPES["q4_k"]), BY_NAME["q4_k"])

    assert form.scales.tolist() == [0, 2, 0, 0, 0, 33, 0, 0]
    assert form.offsets.tolist() == [0, -6, 0, 0, 0, -36, 0, 0]
    assert form.codes.nonzero()[0].tolist() == [32, 191]
    assert form.dequantize()[[32, 33, 190, 191]].tolist() == [24, -6, -36, 195]


def test_mxfp4_scales_reach_the_subnormals():
    """A scale is 2^(e - 128): e = 0 and 1 are subnormal in float32, and 12 * 2^127 overflows."""
    blocks = np.zeros(3, DTYPES["mxfp4"])
    blocks["e"], blocks["qs"] = [0, 1, 255], 0x71  # codes 1 and 7: 1 and 12 in halves

    values = dequantize(blocks, BY_NAME["mxfp4"]).reshape(3, 32)

    assert values[:, 0].tolist() == [2.0**-128, 2.0**-127, 2.0**127]
    assert values[:, 31].tolist() == [12 * 2.0**-128, 12 * 2.0**-127, np.inf]


# --- The canonical form -------------------------------------------------------------------------

#        form  group  offsets  lowest and highest integer, after the codebook
FORMS = {
    "q4_0": ("w4", 32, False, -8, 7),
    "q4_1": ("w4", 32, True, 0, 15),
    "q5_0": ("w8", 32, False, -16, 15),
    "q5_1": ("w8", 32, True, 0, 31),
    "q8_0": ("w8", 32, False, -128, 127),
    "q2_k": ("w8", 16, True, 0, 3),
    "q3_k": ("w8", 16, False, -4, 3),
    "q4_k": ("w4", 32, True, 0, 15),
    "q5_k": ("w8", 32, True, 0, 31),
    "q6_k": ("w8", 16, False, -32, 31),
    "iq4_nl": ("w4", 32, False, -127, 113),
    "iq4_xs": ("w4", 32, False, -127, 113),
    "mxfp4": ("w4", 32, False, -12, 12),
}


@pytest.mark.parametrize("name", FORMS)
def test_form_and_shapes_are_those_of_the_design(name):
    form, group, has_offsets, _, _ = FORMS[name]
    fmt = BY_NAME[name]

    got = canonical(random_blocks(fmt, 5, 2), fmt)

    assert (got.form, got.group, got.offsets is not None) == (form, group, has_offsets)
    assert got.codes.shape == (5, 2 * fmt.block)
    assert got.codes.dtype == (np.uint8 if form == "w4" else np.int8)
    assert got.scales.dtype == np.float32
    assert got.scales.shape == (5, 2 * fmt.block // group)
    if has_offsets:
        assert got.offsets.dtype == np.float32
        assert got.offsets.shape == got.scales.shape
    if form == "w4":
        assert (got.codebook.dtype, got.codebook.shape) == (np.int8, (16,))


@pytest.mark.parametrize("name", FORMS)
def test_codes_fill_their_range_and_stay_in_it(name):
    form, _, _, lowest, highest = FORMS[name]
    got = canonical(random_blocks(BY_NAME[name], 64, 16), BY_NAME[name])

    integers = got.codebook[got.codes] if form == "w4" else got.codes

    assert (integers.min(), integers.max()) == (lowest, highest)


@pytest.mark.parametrize("name", FORMS)
@given(data=st.data())
def test_scale_times_code_is_exact_in_float32(name, data):
    """Any order of the products, and a fused multiply-add, thus gives the same value."""
    fmt = BY_NAME[name]
    raw = data.draw(st.binary(min_size=fmt.block_bytes, max_size=fmt.block_bytes))
    got = canonical(np.frombuffer(raw, DTYPES[fmt.name]), fmt)
    integers = got.codes if got.codebook is None else got.codebook[got.codes]

    with np.errstate(all="ignore"):
        single = integers.reshape(-1, got.group) * got.scales[:, None]
        double = integers.reshape(-1, got.group) * got.scales[:, None].astype(np.float64)
    finite = np.isfinite(single)

    assert single.dtype == np.float32
    np.testing.assert_array_equal(single[finite], double[finite])


@pytest.mark.parametrize(("name", "dtype"), [("f16", "f2"), ("bf16", "f4"), ("f32", "f4")])
def test_floats_stay_as_they_are(name, dtype):
    fmt = BY_NAME[name]
    blocks = random_blocks(fmt, 4, 40)  # 40 is not a multiple of 32

    got = canonical(blocks, fmt)

    assert (got.form, got.codes.dtype, got.group) == ("f16", dtype, 1)
    assert got.scales.shape == got.codes.shape
    assert (got.scales == 1).all()
    assert_same_bits(got.dequantize(), reference(blocks, fmt))


@pytest.mark.parametrize("read", [dequantize, canonical])
@pytest.mark.parametrize("blocks", [np.zeros(34, np.uint8), np.zeros((), DTYPES["q8_0"])])
def test_what_is_no_block_array_is_refused(read, blocks):
    with pytest.raises(LayoutError, match="q8_0 blocks must be"):
        read(blocks, BY_NAME["q8_0"])
