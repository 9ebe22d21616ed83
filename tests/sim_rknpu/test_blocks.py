"""Test blocks other than plain products against numpy, with programs of these tests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim_rknpu import client, lists
from tests.sim_rknpu.alone import Lut, Pooling, activation
from tests.sim_rknpu.bench import hangs
from tests.sim_rknpu.client import Rknpu, Rocket
from tests.sim_rknpu.jobs import (
    SENTINEL,
    allocate,
    convolve,
    cube,
    integers,
    look_up,
    pool_cube,
    run,
    shifted_lut,
    sigmoid,
    unit_lut,
    weights_of,
)
from tests.sim_rknpu.programs import (
    Convolution,
    operand,
    pack_cube,
    requantise,
    unpack_cube,
)

# --- convolutions ----------------------------------------------------------------------------

geometry = st.tuples(
    st.integers(4, 12), st.integers(1, 12),  # height, width
    st.tuples(st.integers(1, 5), st.integers(1, 5)),  # kernel
    st.tuples(st.integers(1, 3), st.integers(1, 3)),  # stride
    st.integers(0, 2**16),  # the shape that is drawn from these limits
)  # fmt: skip


def shaped(ic, oc, drawn, **fields):
    """Return a convolution whose padding and dilation fit its kernel and its cube."""
    height, width, kernel, stride, seed = drawn
    rng = np.random.default_rng(seed)
    kernel = min(kernel[0], height), min(kernel[1], width)
    stride = stride[0], stride[1] if width > 1 else 1  # a stride that is never used is refused
    dilation = tuple(
        1 if k == 1 or k == size else int(rng.integers(1, (size - 1) // (k - 1) + 1))
        for k, size in zip(kernel, (height, width), strict=True)
    )
    reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    pad = tuple(int(rng.integers(0, min(reach[i // 2], 15) + 1)) for i in range(4))
    return Convolution(ic, height, width, oc, kernel, stride, pad, dilation, **fields), rng


@given(drawn=geometry)
def test_convolutions_of_int8_are_exact(drawn):
    conv, rng = shaped(64, 32, drawn, types=("int8", "int32"))
    x, w = integers(rng, (64, conv.ih, conv.iw), np.int8), weights_of(rng, conv, np.int8)
    with Rocket() as driver:
        out = convolve(driver, conv, x, w)

    np.testing.assert_array_equal(out, conv.sums(x, w))


@given(drawn=geometry, depthwise=st.booleans())
def test_convolutions_of_float16_are_rounded_once(drawn, depthwise):
    """Sums of small integers are exact, also in float32."""
    conv, rng = shaped(64, 64 if depthwise else 48, drawn, depthwise=depthwise)
    x = integers(rng, (64, conv.ih, conv.iw), np.float16, -8, 9)
    w = weights_of(rng, conv, np.float16, -8, 9)
    with Rocket() as driver:
        out = convolve(driver, conv, x, w)

    np.testing.assert_array_equal(out, conv.sums(x, w))


def test_a_convolution_runs_under_both_drivers(driver):
    conv = Convolution(32, 8, 8, 32, (3, 3), (2, 2), (1, 1, 1, 1), types=("int8", "int32"))
    rng = np.random.default_rng(1)
    x, w = integers(rng, (32, 8, 8), np.int8), weights_of(rng, conv, np.int8)

    np.testing.assert_array_equal(convolve(driver, conv, x, w), conv.sums(x, w))


# --- requantisation --------------------------------------------------------------------------


def round_half_up(sums, scale, shift):
    return (sums * scale + (1 << (shift - 1))) >> shift


@given(drawn=geometry, depthwise=st.booleans(), ic=st.sampled_from([3, 16, 32, 40, 48, 64]),
       zeros=st.tuples(*[st.integers(0, 255)] * 3))  # fmt: skip
def test_requantised_convolutions(drawn, depthwise, ic, zeros):
    """Mesa's programs subtract 128 from weights and features; biases include the zero points."""
    x_zero, w_zero, out_zero = zeros
    ic = 48 if depthwise and ic % 16 else ic
    plain, rng = shaped(ic, ic if depthwise else 20, drawn, types=("int8", "int8"),
                        depthwise=depthwise)  # fmt: skip
    x = integers(rng, (ic, plain.ih, plain.iw), np.int64, 0, 256)
    w = weights_of(rng, plain, np.int64, 0, 256)
    axes = tuple(range(1, w.ndim))
    bias = rng.integers(-20000, 20000, len(w))
    real = Convolution(**{**vars(plain), "types": ("int8", "int32")})
    sums = real.sums(x - x_zero, w - w_zero) + bias[:, None, None]
    scale, shift = int(rng.integers(1 << 14, 1 << 15)), int(rng.integers(22, 27))
    expected = np.clip(round_half_up(sums, scale, shift) + out_zero, 0, 255)
    corrected = bias - ((w - w_zero) * (x_zero - 128)).sum(axis=axes)
    with Rocket() as driver:
        biases = driver.buffer(corrected.astype(np.int32).tobytes())
        stages = requantise(biases.iova, w_zero, scale, shift, out_zero, (x_zero - 128,) * 2)
        conv = Convolution(**{**vars(plain), "stages": stages})
        fill = np.full((up16(ic), plain.ih, plain.iw), x_zero - 128, np.int8)
        fill[:ic] = x - 128
        out = convolve(driver, conv, fill, filled(conv, w, w_zero))

    np.testing.assert_array_equal(out[: len(w)].astype(int) + 128, expected)


def up16(channels):
    return -(-channels // 16) * 16


def filled(conv, w, w_zero):
    """Return the weights minus 128, padded with channels of zeros to the number in memory."""
    if conv.depthwise:
        return (w - 128).astype(np.int8)
    padded = np.full((conv.oc, conv.k, *conv.kernel), w_zero - 128, np.int8)
    padded[:, : conv.ic] = w - 128
    return padded


CAPTURED_PAD = (126, 0)  # Mesa's pad value 0x7E, for even and for odd channels


def test_a_pad_value_is_two_bytes_of_which_depthwise_uses_both_for_half_the_channels():
    """The rule is that of a capture of an RK3588: a window of padding returns the pad value."""
    conv = Convolution(64, 4, 4, 64, (3, 3), (1, 1), (2, 2, 2, 2), types=("int8", "int8"),
                       depthwise=True)  # fmt: skip
    x, w = np.zeros((64, 4, 4), np.int8), np.zeros((64, 3, 3), np.int8)
    w[:, 0, 0] = 1
    with Rocket() as driver:
        biases = driver.buffer(bytes(256))
        stages = requantise(biases.iova, 0x80, 1, 1, 0x80, CAPTURED_PAD)
        out = convolve(driver, Convolution(**{**vars(conv), "stages": stages}), x, w)

    channels = np.arange(64)
    np.testing.assert_array_equal(
        out[:, 0, 0], np.where((channels < 32) & (channels % 2 == 1), 0, 63)
    )


def test_a_scale_cuts_what_becomes_a_float():
    """The result is (sum * scale) >> shift, rounded down, as in rocket-userspace's classifier."""
    stages = {
        "DPU_OUT_CVT_SCALE": {"out_cvt_scale": 3},
        "DPU_OUT_CVT_SHIFT": {"out_cvt_shift": 1, "cvt_type": 1},
    }
    conv = Convolution(32, 4, 4, 32, types=("int8", "fp32"), stages=stages)
    rng = np.random.default_rng(2)
    x, w = integers(rng, (32, 4, 4), np.int8), weights_of(rng, conv, np.int8)
    with Rocket() as driver:
        out = convolve(driver, conv, x, w)

    np.testing.assert_array_equal(out, conv.sums(x, w) * 3 >> 1)


# --- an operand ------------------------------------------------------------------------------

COMBINE = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


@given(which=st.sampled_from(list(COMBINE)), height=st.integers(4, 40), channels=st.integers(1, 6),
       seed=st.integers(0, 99))  # fmt: skip
def test_an_operand_is_combined_with_each_sum_in_float32(which, height, channels, seed):
    rng = np.random.default_rng(seed)
    height, n = max(height, 12), 16 * channels
    x = rng.standard_normal((32, height, 1)).astype(np.float16)
    other = rng.standard_normal((n, height, 1)).astype(np.float16)
    w = np.zeros((n, 32, 1, 1), np.float16)
    w[np.arange(n), np.arange(n) % 32] = 1  # so that each sum is exactly one value of x
    with Rocket() as driver:
        second = driver.buffer(pack_cube(other, np.float16).tobytes())
        stages = operand(which, second.iova, height)
        conv = Convolution(32, height, 1, n, types=("fp16", "fp16"), stages=stages)
        out = convolve(driver, conv, x, w)

    first = x[np.arange(n) % 32].astype(np.float32)
    expected = COMBINE[which](first, other.astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(out, expected)


# --- the LUT ---------------------------------------------------------------------------------


entries = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).integers(0, 0x8000, (2, 513)).astype(np.uint16)
)


slopes = st.tuples(st.integers(0, 0x7FFF), st.integers(0, 31))


@given(tables=entries, scale=st.floats(0.01, 6e4), bias=st.floats(-2e4, 2e4), slope=slopes,
       exponent=st.integers(0, 20), seed=st.integers(0, 99))  # fmt: skip
def test_the_lut_follows_its_rule(tables, scale, bias, slope, exponent, seed):
    offset = int(np.random.default_rng(seed).integers(-(2**15), 2**15))
    lut = Lut(*tables, scale, bias, offset, exponent, *slope)
    x = (np.random.default_rng(seed).standard_normal(64) * 8).astype(np.float16)
    with Rocket() as driver:
        out = look_up(driver, lut, x)

    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out, lut.apply(x.astype(np.float32)))


# Published results of silicon: rocket-userspace's tests, gregordinary/rockchip-npu-notes.
# Function, LUT, inputs, largest error (relative, or absolute if published so).
LINEAR, LOG = np.linspace, np.geomspace
PUBLISHED = {
    "sigmoid": (sigmoid, unit_lut(sigmoid), LINEAR(-8, 8, 1024), "absolute", 0.00146),
    "hard sigmoid": (
        lambda x: np.clip(x / 6 + 0.5, 0, 1),
        unit_lut(lambda x: np.clip(x / 6 + 0.5, 0, 1)),
        LINEAR(-8, 8, 1024), "absolute", 0.00049,
    ),
    "exp": (np.exp, shifted_lut(np.exp, -16, 0), LINEAR(-16, 0, 1024), "absolute", 0.00055),
    "sqrt": (
        np.sqrt, shifted_lut(np.sqrt, 0.25, 64, exponent=3), LOG(0.3, 60, 1024), "relative", 0.0085
    ),
    "rsqrt": (
        lambda x: x**-0.5, shifted_lut(lambda x: x**-0.5, 0.5, 64, exponent=1),
        LOG(0.6, 60, 1024), "relative", 0.0044,
    ),
    "reciprocal": (
        lambda x: 1 / x, shifted_lut(lambda x: 1 / x, 0.25, 32, exponent=2),
        LOG(0.3, 30, 1024), "relative", 0.0103,
    ),
    "log": (
        np.log, shifted_lut(np.log, 0.25, 32, np.log(0.25), 3), LOG(0.3, 30, 1024), "absolute",
        0.0066,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_lut_is_as_far_off_as_that_of_silicon(name):
    f, lut, at, kind, published = PUBLISHED[name]
    x = at.astype(np.float16)
    true = f(x.astype(np.float64))
    if kind == "absolute" and name.endswith("sigmoid"):
        true = true.astype(np.float16).astype(np.float64)  # the reference of that test
    with Rocket() as driver:
        out = look_up(driver, lut, x)

    error = abs(out.astype(np.float64) - true) / (true if kind == "relative" else 1)
    unit = 10.0 ** np.floor(np.log10(published) - 1)  # half a unit of the last of two digits
    assert abs(error.max() - published) <= unit


def test_what_is_not_a_number_has_no_index():
    with Rocket() as driver:
        out = look_up(driver, unit_lut(sigmoid), np.array([np.nan, 0], np.float16))

    assert np.isnan(out[0])
    assert out[1] == np.float16(0.5)


@pytest.mark.parametrize(("exponent", "wrong"), [(15, 4), (14, 8), (13, 16), (11, 64), (10, 128)])
def test_a_sum_of_zero_is_what_silicon_makes_of_it(exponent, wrong):
    """The values of exp, tanh, hard swish, ELU and SiLU at zero depend on MINUS_EXP only."""
    lut = Lut(np.zeros(513), np.zeros(513), 1, 0, 0, exponent)
    with Rocket() as driver:
        assert (look_up(driver, lut, np.zeros(8, np.float16)) == wrong).all()


def test_around_zero_elu_spikes_as_often_as_on_silicon():
    """97 of 4,001 inputs with |x| <= 0.02 are wrong: indices are rounded, entries are truncated."""

    def elu(x):
        return np.where(x >= 0, x, np.exp(np.minimum(x, 0)) - 1)

    x = (-0.02 + 0.04 * np.arange(4001) / 4000).astype(np.float16)
    with Rocket() as driver:
        out = look_up(driver, shifted_lut(elu, -8, 8, -1.0, 4), x)

    assert (abs(out.astype(np.float64) - elu(x.astype(np.float64))) > 0.02).sum() == 97


def test_a_convolution_may_end_in_the_lut():
    lut = unit_lut(sigmoid)
    conv = Convolution(32, 5, 7, 32, (3, 3), (1, 1), (1, 1, 1, 1), types=("fp16", "fp16"),
                       stages=lut.fields())  # fmt: skip
    rng = np.random.default_rng(3)
    x = integers(rng, (32, 5, 7), np.float16, -2, 3)
    w = weights_of(rng, conv, np.float16, -1, 2) / np.float16(8)
    features, weights = (pack_cube(x, np.float16), conv.pack_weights(w))
    with Rocket() as driver:
        a, b = driver.buffer(features.tobytes()), driver.buffer(weights.tobytes())
        out = allocate(driver, 32 * 35 * 2)
        run(driver, lut.load(conv.words(a.iova, b.iova, out.iova)), 0x1D, out)
        got = unpack_cube(out.bytes, np.float16, 32, 5, 7)

    np.testing.assert_array_equal(got, lut.apply(conv.sums(x, w).astype(np.float32)))


# --- pooling ---------------------------------------------------------------------------------


@given(method=st.sampled_from(["mean", "max", "min"]), channels=st.integers(1, 20),
       size=st.tuples(st.integers(1, 12), st.integers(1, 12)),
       kernel=st.tuples(st.integers(2, 6), st.integers(2, 6)),
       stride=st.tuples(st.integers(1, 4), st.integers(1, 4)), seed=st.integers(0, 99))  # fmt: skip
def test_poolings(method, channels, size, kernel, stride, seed):
    rng = np.random.default_rng(seed)
    kernel = tuple(min(pair) for pair in zip(kernel, size, strict=True))
    if method == "mean" and 1 in kernel:
        return  # 65536 / 1 is no float16
    pads = [int(rng.integers(0, kernel[i // 2])) if method != "min" else 0 for i in range(4)]
    pool = Pooling(method, channels, *size, kernel, stride, tuple(pads))
    x = rng.standard_normal((channels, *size)).astype(np.float16)
    out = pooled(Rocket, pool, x)

    exact = pool.oracle(x)
    if method == "mean":  # sums of float16 in double are exact to 2^-40 of their size
        np.testing.assert_array_less(abs(out - exact), 2.0**-11 * abs(exact) + 2.0**-24)
    else:
        np.testing.assert_array_equal(out, exact)


def pooled(kind, pool, x):
    with kind() as driver:
        out = pool_cube(driver, pool, cube(driver, x))
        return unpack_cube(out.bytes, np.float16, pool.channels, *pool.out_shape).astype(np.float64)


@pytest.mark.parametrize("kind", [Rocket, Rknpu])
def test_a_pooling_runs_under_both_drivers(kind):
    pool = Pooling("max", 16, 6, 6, (3, 3), (2, 2), (1, 0, 1, 0))
    x = np.random.default_rng(4).standard_normal((16, 6, 6)).astype(np.float16)

    np.testing.assert_array_equal(pooled(kind, pool, x), pool.oracle(x))


# --- refusals --------------------------------------------------------------------------------

NARROW = Convolution(32, 4, 1, 16, types=("fp16", "fp16"))
WIDE = Convolution(32, 8, 8, 32, (3, 3), (1, 1), (1, 1, 1, 1), types=("int8", "int8"))
REFUSED = {
    "an operand of few pixels": (NARROW, operand("add", 0x10000000, 4), "fewer than 12 pixels"),
    "a transposed convolution": (
        Convolution(**{**vars(WIDE), "types": ("int8", "int32")}),
        {"CNA_CONV_CON3": {"conv_x_stride": 1, "conv_y_stride": 1, "deconv_x_stride": 1}},
        "besides strides",
    ),
    "two pad values of a direct convolution": (
        WIDE, requantise(0x10000000, 0x80, 1, 1, 0x80, (1, 2)), "the channels of the second"
    ),
    "int8 out without a bias": (WIDE, {}, "DPU_BS_CFG"),
    "an operand of another size": (
        Convolution(32, 16, 1, 16, types=("fp16", "fp16")),
        operand("add", 0x10000000, 16) | {"DPU_RDMA_SURF_NOTCH": {"surf_notch_addr": 15}},
        "RDMA_SURF_NOTCH",
    ),
    "an int8 sum cut before the DPU": (
        WIDE,
        requantise(0x10000000, 0x80, 1, 1, 0x80) | {"CORE_CLIP_TRUNCATE": {"clip_truncate": 1}},
        "CORE_CLIP_TRUNCATE",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_stage_that_nobody_has_seen_work_is_refused(case):
    conv, stages, reason = REFUSED[case]
    conv = Convolution(**{**vars(conv), "stages": stages})
    x, w = np.zeros((32, conv.ih, conv.iw)), np.zeros((conv.oc, 32, *conv.kernel))
    with Rocket() as driver, hangs(driver):
        assert (convolve(driver, conv, x, w).view(np.uint8) == SENTINEL).all()

    assert reason in client.report()["last_refusal"]


def test_tables_of_another_program_do_not_count():
    lut = unit_lut(sigmoid)
    with Rocket() as driver:
        look_up(driver, lut, np.zeros(8, np.float16))
        source, out = driver.buffer(bytes(16)), allocate(driver, 16)
        program = activation(lut, 1, source.iova, out.iova)
        data = np.uint64(0x4104)
        keep = np.flatnonzero((program & np.uint64(0xFFFF)) == data)[-1]
        with hangs(driver):
            run(driver, np.delete(program, keep), 0x18, out)

    assert "both tables of 513 entries" in client.report()["last_refusal"]


@pytest.mark.parametrize("entries", [514, 512])
def test_a_table_has_513_entries(entries):
    lut = unit_lut(sigmoid)
    longer = Lut(**{**vars(lut), "negative": np.resize(lut.negative, entries)})
    with Rocket() as driver, hangs(driver):
        assert (look_up(driver, longer, np.zeros(8, np.float16)).view(np.uint8) == SENTINEL).all()

    assert "513 entries" in client.report()["last_refusal"]


def test_an_entry_above_15_bits_is_refused():
    tables = np.zeros((2, 513), np.uint16)
    tables[1, 7] = 0x8000
    with Rocket() as driver, hangs(driver):
        look_up(driver, Lut(*tables, 1, 0, 0, 15), np.zeros(8, np.float16))

    assert "DPU_LUT_ACCESS_DATA = 0x8000" in client.report()["last_refusal"]


BAD_POOLINGS = {
    "int8": ({"PPU_RDMA_DATA_FORMAT": {"in_precision": 0}}, "PPU_RDMA_DATA_FORMAT"),
    "what the DPU gives": (
        {"PPU_OPERATION_MODE_CFG": {"pooling_method": 1}}, "PPU_OPERATION_MODE_CFG"
    ),
    "no such method": (
        {"PPU_OPERATION_MODE_CFG": {"pooling_method": 3, "flying_mode": 1}},
        "PPU_OPERATION_MODE_CFG",
    ),
    "other channels": ({"PPU_DATA_CUBE_OUT_CHANNEL": {"cube_out_channel": 3}}, "OUT_CHANNEL"),
    "a burst": ({"PPU_MISC_CTRL": {"burst_len": 2}}, "PPU_MISC_CTRL"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_POOLINGS)
def test_a_pooling_that_nobody_has_seen_work_is_refused(case):
    changes, reason = BAD_POOLINGS[case]
    pool = Pooling("max", 8, 6, 6, (2, 2), (2, 2), changes=changes)
    with Rocket() as driver, hangs(driver):
        source, out = driver.buffer(bytes(6 * 6 * 16)), allocate(driver, 3 * 3 * 16)
        run(driver, pool.words(source.iova, out.iova), 0x60, out)
        assert (out.bytes == SENTINEL).all()

    assert reason in client.report()["last_refusal"]


def test_a_register_of_a_stage_is_kept_in_the_list_of_what_must_be_written():
    conv = Convolution(32, 4, 4, 32, types=("int8", "int32"))
    with Rocket() as driver:
        source, out = driver.buffer(bytes(4096)), allocate(driver, 32 * 16 * 4)
        program = conv.words(source.iova, source.iova, out.iova)
        offset = np.uint64(lists.word(0, 0x1068, 0))
        with hangs(driver):
            run(driver, program[(program & np.uint64(0xFFFF)) != offset], 0x1D, out)

    assert "CNA_PAD_CON0 is not written" in client.report()["last_refusal"]
