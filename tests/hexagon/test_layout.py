"""Test images of weights and the rounding of activations: inverses, limits, refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npurt.errors import LayoutError, NumericsError, UnsupportedOp
from npurt.hexagon.layout import images
from npurt.hexagon.layout.formats import BY_NAME, FORMATS, ImageFormat, Kernel
from npurt.hexagon.layout.quantise import multiplied, quantise
from npurt.quant.blocks import DTYPES
from npurt.quant.tensor import QTensor
from tests.hexagon.weights import columns, tensor
from tools.build import hexagon

TABLE = hexagon.DSP / "formats.inc"
CODED = [f.name for f in FORMATS if f.kernel not in ("q16", "per_channel")]
FLOATS = ["f32", "f16", "bf16"]


def test_a_row_of_the_table_is_read():
    """The rows of Q2_K and of its kernel have the values of formats.inc."""
    assert len(FORMATS) == TABLE.read_text().count("\nNPURT_FORMAT(")
    assert BY_NAME["q2_k"] == ImageFormat(
        "q2_k", 10, "q8_g16_offset", codes=16, scales=2, offsets=2, heads=2, arch=68, gain=32,
        centre=2,
    )  # fmt: skip
    assert BY_NAME["q2_k"].kind == Kernel(unit=8, group=16, bits=13, zero_point=128, sums=-16)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(CODED),
    n=st.integers(1, 70),
    k=st.integers(1, 20),
    seed=st.integers(0, 2**32 - 1),
)
def test_codes_come_back_unchanged(name, n, k, seed):
    t = tensor(np.random.default_rng(seed), name, n, columns(name, 32 * k))
    fmt = BY_NAME[name]

    held = images.unpack(images.pack(t), fmt, n, t.shape[1])

    file = t.canonical()
    codes = file.codes.astype(np.int32)
    if fmt.kernel == "lut":
        codes = file.codebook.astype(np.int32)[file.codes]
    np.testing.assert_array_equal(held.codes, (codes - fmt.centre) * fmt.gain)


@pytest.mark.parametrize("name", CODED)
def test_scales_are_off_by_half_a_unit_of_the_row_at_most(name):
    """The bound is that of the module's docstring; the scales of the file are in float64."""
    t = tensor(np.random.default_rng(1), name, 33, columns(name, 512))
    fmt = BY_NAME[name]

    held = images.unpack(images.pack(t), fmt, *t.shape)

    unit = np.ldexp(1.0, held.exponents)[:, None]
    exact = t.canonical().scales.astype(np.float64) * (fmt.kind.unit / fmt.gain)
    assert (abs(held.scales * unit - exact) <= unit / 2).all()
    both = abs(held.scales).max(axis=1)
    if held.offsets is not None:
        both = np.maximum(both, abs(held.offsets).max(axis=1))
    assert (both < 2**fmt.kind.bits).all()
    assert (both >= 2 ** (fmt.kind.bits - 1)).all()


@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_off_by_half_a_scale_of_their_block(name):
    t = QTensor.quantize(np.random.default_rng(2).standard_normal((40, 96)).astype("f4"), name)

    values = images.multiplied(images.pack(t), BY_NAME[name], 40, 96)

    exact = t.dequantize().astype(np.float64)
    block = abs(exact.reshape(40, 3, 32)).max(axis=2, keepdims=True)
    row = abs(exact).max(axis=1)[:, None, None]
    error = abs(values - exact).reshape(40, 3, 32)
    assert (error <= block * 2.0**-16 * (1 + 2**-14) + row * 2.0**-30).all()


def test_one_image_byte_by_byte():
    """A row of Q4_0 with scale 2 has words in lane 0, and a scale of 16384 times 2^-13."""
    blocks = np.zeros((1, 2), BY_Q4)
    blocks["d"] = 2
    blocks["qs"] = np.arange(16, dtype=np.uint8) * 17  # codes i and i in byte i
    image = images.pack(QTensor(blocks, "q4_0"))

    assert image.size == (2 + 9) * 128
    assert image[:4].view(np.uint32)[0] == (-13 + 156) << 23
    assert image[128:136].view(np.int32).tolist() == [-13, -13]
    first = image[2 * 128 :].reshape(9, 32, 4)[:8, 0]  # lane 0 of the code vectors
    assert first[0].tolist() == [0x40, 0x51, 0x62, 0x73]  # columns 0..3 low, 4..7 high
    assert first[1].tolist() == [0xC8, 0xD9, 0xEA, 0xFB]
    assert image[10 * 128 :][:4].view(np.int16).tolist() == [16384, 16384]


BY_Q4 = DTYPES["q4_0"]


def test_rows_can_be_unpacked_in_parts():
    t = tensor(np.random.default_rng(3), "q4_k", 100, 256)
    image = images.pack(t)

    part = images.multiplied(image, BY_NAME["q4_k"], 100, 256, slice(30, 71))

    whole = images.multiplied(image, BY_NAME["q4_k"], 100, 256)
    np.testing.assert_array_equal(part, whole[30:71])


def test_an_image_can_be_written_in_place():
    t = tensor(np.random.default_rng(4), "q8_0", 40, 64)
    out = np.full(images.image_bytes(BY_NAME["q8_0"], 40, 64), 0xA5, np.uint8)

    images.pack(t, out)

    np.testing.assert_array_equal(out, images.pack(t))


# --- refusals -----------------------------------------------------------------------------------


def spanning(powers):
    """Return MXFP4: 32 values 12 with one scale, and a single 1 with a scale 2^powers larger."""
    blocks = np.zeros((1, 2), DTYPES["mxfp4"])
    blocks["e"] = [[128 - powers, 128]]
    blocks["qs"][0, 0] = 0x77
    blocks["qs"][0, 1, 0] = 0x01
    return QTensor(blocks, "mxfp4")


def test_a_row_whose_scales_span_too_much_is_refused():
    """A ratio of 2^14 leaves the integer 1; 2^15 gives 0, an error of 2^-9 of the row."""
    exact = images.multiplied(images.pack(spanning(14)), BY_NAME["mxfp4"], 1, 64)
    np.testing.assert_array_equal(exact, spanning(14).dequantize())
    with pytest.raises(UnsupportedOp, match="differ too much"):
        images.pack(spanning(15))


def test_scales_that_are_not_finite_or_too_large_are_refused():
    blocks = np.zeros((2, 1), BY_Q4)
    blocks["d"][1] = np.inf
    with pytest.raises(NumericsError, match="row 1"):
        images.pack(QTensor(blocks, "q4_0"))
    huge = QTensor.quantize(np.full((1, 32), 1e38, np.float32), "f32")
    with pytest.raises(UnsupportedOp, match="too large"):
        images.pack(huge)


def test_wrong_shapes_are_refused():
    t = tensor(np.random.default_rng(0), "q4_0", 32, 64)
    with pytest.raises(LayoutError):
        images.pack(t.T)
    with pytest.raises(LayoutError):
        images.pack(t, np.empty(7, np.uint8))
    with pytest.raises(LayoutError):
        images.pack_i8(np.zeros((4, 33), np.int8), np.ones(4, np.float32))


def test_a_weight_of_zeros_is_zero():
    t = QTensor.quantize(np.zeros((33, 64), np.float32), "q4_1")

    assert not images.multiplied(images.pack(t), BY_NAME["q4_1"], 33, 64).any()


# --- activations --------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(
    k=st.integers(1, 12),
    group=st.sampled_from([32, 128, 0]),
    spread=st.floats(0, 8),
    seed=st.integers(0, 2**32 - 1),
)
def test_activations_are_rounded_to_half_a_scale(k, group, spread, seed):
    """The error is half a scale, plus that of 14 bits of a mantissa and 15 of a reciprocal."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((3, 32 * k)) * np.exp(spread * rng.standard_normal(32 * k))
    x = x.astype(np.float32)

    q = quantise(x, group)

    step = np.repeat(np.ldexp(q.scales.astype(float), q.exponents[:, None]), 32, axis=1)
    assert (abs(q.values() - x.astype(np.float64)) <= step * (0.5 + 127 * 2.0**-12)).all()
    assert abs(q.codes.astype(int)).max() <= 127
    assert ((q.scales >= 1) & (q.scales <= 32767)).all()


def test_groups_share_a_scale():
    x = np.random.default_rng(5).standard_normal((2, 416)).astype(np.float32)

    by128 = quantise(x, 128).scales
    assert (by128[:, :12].reshape(2, 3, 4) == by128[:, :12:4, None]).all()
    assert (quantise(x, 0).scales == quantise(x, 0).scales[:, :1]).all()


def test_gaussian_activations_lose_no_more_than_the_peer():
    """The error of ggml-hexagon with a scale per 32 columns (hvx-mm-kernels-flat.h) is 2.88e-5."""
    x = np.random.default_rng(6).standard_normal((256, 1536)).astype(np.float32)

    lost = ((multiplied(x).astype(np.float64) - x) ** 2).sum() / (x.astype(np.float64) ** 2).sum()

    assert lost <= 2.9e-5


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_named(value):
    x = np.ones((2, 64), np.float32)
    x[1, 33] = value
    with pytest.raises(NumericsError, match="row 1, column 33"):
        quantise(x)


@pytest.mark.parametrize(
    ("x", "group"),
    [
        (np.ones((1, 33), np.float32), 32),
        (np.ones((1, 32), np.float64), 32),
        (np.ones(32, np.float32), 32),
        (np.ones((1, 32), np.float32), 64),
    ],
)
def test_activations_of_another_shape_are_refused(x, group):
    with pytest.raises(LayoutError):
        quantise(x, group)
