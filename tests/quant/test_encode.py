"""Tests of quantisation: blocks made from floats.

For formats that npurt must encode as ggml does, the oracles are gguf-py's quantiser and ggml's
blocks.  For the other formats, the tests check error bounds that are derived from the input.
"""

from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from npurt.errors import LayoutError, NumericsError, UnsupportedOp
from npurt.quant import encode
from npurt.quant.decode import dequantize
from npurt.quant.encode import quantize
from npurt.quant.types import BY_NAME

ORACLE = Path(__file__).parents[1] / "data/quants/blocks.npz"
AS_GGML = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "mxfp4")
OURS = ("q4_k", "q5_k", "q6_k", "iq4_nl")
UNWRITTEN = ("q2_k", "q3_k", "iq4_xs")
F16_ULP = 2.0**-10  # largest relative increase of a float16 that is rounded up
F16_TINY = 2.0**-24  # largest absolute increase among the subnormals

half_range = st.floats(-60000, 60000, width=32)  # makes every scale and minimum finite in float16


def blocks_of_gguf_py(x, fmt):
    with np.errstate(all="ignore"):
        rows = gguf.quants.quantize(x, gguf.GGMLQuantizationType(fmt.number))
    return np.ascontiguousarray(rows).view(np.uint8)


def assert_same_bytes(blocks, expected):
    np.testing.assert_array_equal(blocks.view(np.uint8), expected)


@pytest.mark.parametrize("name", [*AS_GGML, "f16", "bf16"])
def test_blocks_equal_those_that_ggml_made(name):
    with np.load(ORACLE) as oracle:
        blocks, expected = quantize(oracle["x"], BY_NAME[name]), oracle[f"{name}_raw"]

    assert_same_bytes(blocks, expected.view(np.uint8))


@pytest.mark.parametrize("name", [name for name in AS_GGML if name != "mxfp4"])
@given(x=hnp.arrays(np.float32, (2, 64), elements=half_range))
def test_blocks_equal_those_of_gguf_py(name, x):
    """Tiny values are set to zero: below 3.7e-37, 1 / scale overflows and gguf-py casts NaN."""
    x[abs(x) < 1e-30] = 0

    assert_same_bytes(quantize(x, BY_NAME[name]), blocks_of_gguf_py(x, BY_NAME[name]))


@given(
    hnp.arrays(np.float32, (2, 64), elements=st.floats(-60000, 60000, width=16)),
    st.integers(-90, 90),
)
def test_mxfp4_blocks_equal_those_of_gguf_py(x, exponent):
    """Values have 11 bits: with more, gguf-py's float32 log2 rounds up to the next power of two."""
    x = np.ldexp(x, exponent)

    assert_same_bytes(quantize(x, BY_NAME["mxfp4"]), blocks_of_gguf_py(x, BY_NAME["mxfp4"]))


@given(hnp.arrays(np.uint32, 64, elements=st.integers(0, 2**32 - 1)))
def test_bf16_equals_gguf_py_for_any_bits(bits):
    """Bits include NaN and infinity; finite values that would round to infinity are set to zero."""
    magnitude = bits & 0x7FFF_FFFF
    bits[(magnitude >= 0x7F7F_8000) & (magnitude < 0x7F80_0000)] = 0
    x = bits.view(np.float32)

    assert_same_bytes(quantize(x, BY_NAME["bf16"]), blocks_of_gguf_py(x, BY_NAME["bf16"]))


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_floats_round_to_even_and_carry_nan_and_infinity(name):
    x = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8])
    rounded = {
        "f32": x.tolist(),
        "f16": [1, 1 + 2.0**-9, 1 + 2.0**-8, 1 + 3 * 2.0**-8],
        "bf16": [1, 1, 1, 1 + 2.0**-6],
    }
    specials = np.array([np.inf, -np.inf, np.nan])

    assert dequantize(quantize(x, BY_NAME[name]), BY_NAME[name]).tolist() == rounded[name]
    np.testing.assert_array_equal(
        dequantize(quantize(specials, BY_NAME[name]), BY_NAME[name]), specials
    )


def test_q8_0_by_hand():
    x = np.zeros(32, np.float32)
    x[:5] = [127, 0.5, -0.5, 1.49, -127]  # scale 1; halves away from zero

    assert quantize(x, BY_NAME["q8_0"]).tobytes().hex() == "003c" + "7f01ff0181" + "00" * 27


def test_mxfp4_by_hand():
    """Ties of E2M1 (0 .5 1 1.5 2 3 4 6) go to the smaller magnitude; the 6 makes the scale 1."""
    x = np.zeros(32)
    x[:9] = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -5]

    values = dequantize(quantize(x, BY_NAME["mxfp4"]), BY_NAME["mxfp4"])

    assert values[:9].tolist() == [6, 0, 0.5, 1, 1.5, 2, 3, 4, -4]


# --- Error bounds -------------------------------------------------------------------------------


def scale_up(x):
    """Return the largest float16 to which `_half_up` may round *x*."""
    return x * (1 + F16_ULP) + F16_TINY


def bound_q6_k(x):
    """Return half of amax / 31 + d in each sub-block of 16, with d = largest amax / 31 / 127."""
    amax = abs(x.reshape(-1, 16, 16)).max(axis=-1, keepdims=True)
    d = scale_up(amax.max(axis=1, keepdims=True) / 31 / 127)
    return (amax / 31 + d) / 2


def bound_k(x, top):
    """Return half of (range + dmin) / top + d in each sub-block of 32."""
    sub = x.reshape(-1, 8, 32)
    low = np.maximum(-sub.min(axis=-1, keepdims=True), 0)
    dmin = scale_up(low.max(axis=1, keepdims=True) / 63)
    reach = np.maximum(sub.max(axis=-1, keepdims=True) + low + dmin, 0) / top
    d = scale_up(reach.max(axis=1, keepdims=True) / 63)
    return (reach + d) / 2


def bound_iq4_nl(x):
    """Return 11.5 d, half the widest gap of the codebook; d is at most amax / 113."""
    return 11.5 * scale_up(abs(x.reshape(-1, 1, 32)).max(axis=-1, keepdims=True) / 113)


BOUNDS = {
    "q4_k": lambda x: bound_k(x, 15),
    "q5_k": lambda x: bound_k(x, 31),
    "q6_k": bound_q6_k,
    "iq4_nl": bound_iq4_nl,
}


@pytest.mark.parametrize("name", OURS)
@given(
    x=hnp.arrays(np.float32, (2, 512), elements=half_range),
    exponent=st.integers(-40, 4),
    shift=st.sampled_from([0, -60000, 60000]),
)
def test_every_element_is_within_the_bound(name, x, exponent, shift):
    """Values are of any size and sign; float32 adds at most six roundings of the largest value."""
    x = np.ldexp(x + np.float32(shift), exponent)
    bound = BOUNDS[name](x.astype(np.float64))

    values = dequantize(quantize(x, BY_NAME[name]), BY_NAME[name])

    error = abs(values.astype(np.float64) - x).reshape(*bound.shape[:-1], -1)
    assert (error <= bound + 6 * 2.0**-24 * abs(x).max()).all()


@pytest.mark.parametrize("name", OURS)
def test_gaussian_weights_keep_the_precision_of_the_format(name):
    """An error that is uniform within the bound has a mean square of a third of the bound's."""
    x = np.random.default_rng(0).standard_normal((16, 1024), dtype=np.float32)

    values = dequantize(quantize(x, BY_NAME[name]), BY_NAME[name])

    assert np.square(values - x).mean() <= np.square(BOUNDS[name](x)).mean() / 3


@pytest.mark.parametrize("name", [*AS_GGML, *OURS])
def test_zeros_stay_zeros(name):
    blocks = quantize(np.zeros((1, 256)), BY_NAME[name])

    assert not dequantize(blocks, BY_NAME[name]).any()


# --- Refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [*AS_GGML, *OURS])
def test_what_is_not_finite_is_refused_with_its_place(name, value):
    x = np.zeros((3, 512), np.float32)
    x[2, 300] = value

    with pytest.raises(NumericsError, match=r"x\[2, 300\] is"):
        quantize(x, BY_NAME[name])


@pytest.mark.parametrize("name", ["f16", *AS_GGML[:-1], *OURS])
def test_a_scale_beyond_float16_is_refused_with_its_place(name):
    x = np.zeros((2, 512), np.float32)
    x[1, 300:302] = [1e10, -1e10]
    fmt = BY_NAME[name]

    with pytest.raises(
        NumericsError, match=rf"x\[1, {300 // fmt.block * fmt.block}\] has magnitudes up to 1e\+10"
    ):
        quantize(x, fmt)


@pytest.mark.parametrize("name", [*AS_GGML, *OURS])
@given(data=st.data())
def test_finite_values_never_become_infinite(name, data):
    x = data.draw(
        hnp.arrays(
            np.float32, 256, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
        )
    )
    try:
        blocks = quantize(x, BY_NAME[name])
    except NumericsError:
        assert abs(x).max() > 60000
    else:
        assert np.isfinite(dequantize(blocks, BY_NAME[name])).all()


@pytest.mark.parametrize(("name", "value"), [("f32", 1e300), ("f16", 65520.0), ("bf16", 3.4e38)])
def test_a_value_that_would_round_to_infinity_is_refused(name, value):
    with pytest.raises(NumericsError, match=r"x\[1\]"):
        quantize([0, value], BY_NAME[name])


@pytest.mark.parametrize(("name", "padded"), [("q4_0", 128), ("q4_k", 256)])
def test_a_ragged_k_is_refused_with_what_to_pad_to(name, padded):
    with pytest.raises(LayoutError, match="K = 100") as caught:
        quantize(np.zeros((2, 100)), BY_NAME[name])

    assert f"to {padded}" in caught.value.remedy


@pytest.mark.parametrize("x", [1.0, np.zeros(32, complex), np.zeros(32, bool), ["a"] * 32])
def test_what_is_no_array_of_real_numbers_is_refused(x):
    with pytest.raises(LayoutError, match="cannot quantise"):
        quantize(x, BY_NAME["q8_0"])


@pytest.mark.parametrize("name", UNWRITTEN)
def test_formats_without_encoder_name_the_others(name):
    with pytest.raises(UnsupportedOp, match=name) as caught:
        quantize(np.zeros(256), BY_NAME[name])

    assert "q4_k" in caught.value.remedy


@pytest.mark.parametrize("name", ["q4_0", "bf16"])
@pytest.mark.parametrize("shape", [(0, 32), (3, 0), (2, 3, 64)], ids=str)
def test_leading_axes_are_kept(name, shape):
    fmt = BY_NAME[name]

    assert quantize(np.zeros(shape), fmt).shape == (*shape[:-1], shape[-1] // fmt.block)


def test_chunks_meet_without_a_seam(monkeypatch):
    x = np.random.default_rng(0).standard_normal((7, 96), dtype=np.float32)
    whole = quantize(x, BY_NAME["q4_0"])

    monkeypatch.setattr(encode, "CHUNK", 4 * 32)  # 21 blocks, four at a time

    assert_same_bytes(quantize(x, BY_NAME["q4_0"]), whole.view(np.uint8))


def test_a_transposed_array_is_quantised_along_its_last_axis():
    x = np.random.default_rng(0).standard_normal((64, 3), dtype=np.float32)

    assert_same_bytes(
        quantize(x.T, BY_NAME["q8_0"]), quantize(x.T.copy(), BY_NAME["q8_0"]).view(np.uint8)
    )


@pytest.mark.parametrize("name", ["q8_0", "bf16"])
def test_bfloat16_of_ml_dtypes_is_quantised_as_the_floats_that_it_is(name):
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(ml_dtypes.bfloat16)
    blocks = quantize(x, BY_NAME[name])

    assert_same_bytes(blocks, quantize(x.astype(np.float32), BY_NAME[name]).view(np.uint8))
    if name == "bf16":
        np.testing.assert_array_equal(blocks, x.view(np.uint16))
